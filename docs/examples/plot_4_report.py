"""
Report
======

One page about a model on rows that it has not seen, as HTML, JSON, Markdown or figures. The rows of a report are read without noise.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.datasets import census_like

people, others = census_like(20_000, random_state=0), census_like(20_000, random_state=1)
model = RateConstrainedClassifier(demographic_parity("sex", max_gap=0.05), epsilon=1.0)
model.fit(people.X, people.y, sensitive_features=people.sensitive)
report = model.report(others.X, others.y, sensitive_features=others.sensitive, title="Who has a high income?")
print(report)

# %%
# The page is one file without links to elsewhere:

page = Path(tempfile.mkdtemp()) / "report.html"
report.to_html(page)
print(f"{page.stat().st_size // 1000} kB")

# %%
# Its parts are also matplotlib figures:

figure, axes = plt.subplots(2, 1, figsize=(8, 5), layout="constrained", height_ratios=(1, 3))
report.plot("constraints", ax=axes[0])
report.plot("ledger", ax=axes[1])
