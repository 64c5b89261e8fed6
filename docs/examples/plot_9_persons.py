"""
Persons with several rows
=========================

If a person has several rows, one row is the wrong unit. The figure shows what a claim for one row means for a person, and the script trains with the person as
the unit.
"""

import matplotlib.pyplot as plt
import numpy as np

from ratewise import RateConstrainedClassifier
from ratewise.datasets import census_like

visits = census_like(30_000, random_state=0).frame()
visits["person"] = np.random.default_rng(0).integers(0, 10_000, len(visits))

by_row = RateConstrainedClassifier(epsilon=1.0).fit(visits.drop(columns="person"), "income")
by_person = RateConstrainedClassifier(epsilon=1.0).fit(visits, "income", privacy_ids="person")
print("unit:", by_row.privacy_.unit, "/", by_person.privacy_.unit)

# %%
# A bound for m rows from a bound for one row (group privacy): epsilon grows m times, and delta faster.

rows = np.arange(1, 11)
figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
axis.plot(rows, rows * by_row.privacy_.epsilon, "o-", color="#b2182b")
axis.plot(rows, np.full(len(rows), by_person.privacy_.epsilon), "o-", color="#2166ac")
axis.annotate("unit: a row", (7, 7), (-70, 4), textcoords="offset points", color="#b2182b")
axis.annotate("unit: a person", (7, 1), (-10, 6), textcoords="offset points", color="#2166ac")
axis.set(xlabel="rows of a person", ylabel="epsilon for the person", ylim=(0, None))
others = census_like(20_000, random_state=1).frame()
for name, model in (("row", by_row), ("person", by_person)):
    print(f"unit {name}: accuracy {np.mean(model.predict(others.drop(columns='income')) == others['income']):.3f}")
