"""
Your own CSV file
=================

This script trains a private model on a file with numbers, text and missing cells, predicts, and saves the model. Nothing about the columns is declared.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import ratewise
from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.cli.demo import raw_columns
from ratewise.datasets import census_like

folder = Path(tempfile.mkdtemp())
made = census_like(20_000, random_state=0)
table = pd.DataFrame({**raw_columns(made), "sex": made.sensitive["sex"], "rich": made.y})
table.loc[::17, "age"] = None
table.to_csv(folder / "people.csv", index=False)

# %%
# This is where your own file comes in:

people = pd.read_csv(folder / "people.csv")
model = RateConstrainedClassifier(demographic_parity("sex", max_gap=0.05), epsilon=1.0)
model.fit(people, "rich", sensitive_features="sex")
print(model.certificate_)

# %%
# What was released, and what epsilon protects:

print(model.privacy_)

# %%
# Predictions need the columns, not the label. The saved file holds released values only.

new = people.drop(columns="rich").head()
print(model.predict(new))
model.save(folder / "model.ratewise")
assert (ratewise.load(folder / "model.ratewise").predict(new) == model.predict(new)).all()

# %%
# The model can be looked at without further cost:

model.plot_shape("age", ax=plt.subplots(figsize=(6, 3.2), layout="constrained")[1])

# %%
# The same in one command, without Python: ``ratewise start people.csv`` (:doc:`/command-line`).
