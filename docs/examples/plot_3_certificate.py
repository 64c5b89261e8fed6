"""
Certificate
===========

After training, the predictions of the returned model are counted once more with noise. Each constraint gets an estimate, an interval and a verdict. Small groups
have wide intervals; where noise hides a rate the verdict is "cannot tell". A group that is too small to be found at a
small epsilon has no constraint.
"""

import matplotlib.pyplot as plt

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.datasets import census_like

people = census_like(20_000, random_state=0).frame()
constraints = [demographic_parity("sex", max_gap=0.05), demographic_parity("region", max_gap=0.05)]
colors = {"held": "#2166ac", "missed": "#b2182b", "cannot tell": "#777777"}

figure, axes = plt.subplots(2, 1, figsize=(6.4, 5.5), layout="constrained", sharex=True)
for axis, epsilon in zip(axes, (1.0, 0.1), strict=True):
    model = RateConstrainedClassifier(constraints, epsilon=epsilon)
    model.fit(people, "income", sensitive_features=["sex", "region"])
    rows = list(model.certificate_.rows)
    widest = max(row.interval[1] for row in rows)
    for place, row in enumerate(rows):
        (low, high), color = row.interval, colors[row.verdict]
        axis.plot([low, high], [place, place], color=color, linewidth=3)
        axis.plot(row.estimate, place, "o", color=color)
        axis.annotate(row.verdict, (max(high, 0.05), place), (6, -4), textcoords="offset points", color=color)
    axis.axvline(0.05, color="black", linewidth=1, linestyle=":")
    groups = [row.name.split(" | ")[1].split(")")[0] for row in rows]
    axis.set_yticks(range(len(rows)), groups)
    axis.set(title=f"epsilon {epsilon}", ylim=(-0.6, len(rows) - 0.4))
    print(model.certificate_.summary)
axes[-1].set(xlabel="gap to everyone else (dotted: bound)", xlim=(-0.01, 1.3 * widest))
