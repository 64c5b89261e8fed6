"""
Shape functions
===============

A private model is a sum of one function per feature. They are computed from released values, so looking at them
costs no privacy. The bands are intervals that contain the noise of training with probability at least 95%, cut off at the range of the curve. They are wider than
needed, because they ignore that later steps correct the noise of earlier ones.
"""

import matplotlib.pyplot as plt

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.datasets import census_like

people = census_like(30_000, random_state=0).frame()
model = RateConstrainedClassifier(demographic_parity("sex", max_gap=0.05), epsilon=1.0)
model.fit(people, "income", sensitive_features="sex")

# %%
# The most important features first:

figure, axes = plt.subplots(2, 2, figsize=(6.4, 5.6), layout="constrained")
ranked = sorted(model.shape_functions(), key=lambda shape: -shape.importance)
for shape, axis in zip(ranked, axes.flat, strict=False):
    model.plot_shape(shape.feature, ax=axis)

# %%
# The largest contributions to the score of one person:

[contributions] = model.explain(people.drop(columns="income")[:1])
for feature, value in sorted(contributions.items(), key=lambda item: -abs(item[1]))[:5]:
    print(f"{feature:<20} {value:+.2f}")
