"""
What epsilon costs
==================

Accuracy of private models by epsilon and number of rows, without constraints. Accuracy depends mostly on their product.
"""

import matplotlib.pyplot as plt
import numpy as np

from ratewise import RateConstrainedClassifier
from ratewise.datasets import census_like

others = census_like(50_000, random_state=1).frame()
unseen = others.drop(columns="income")
epsilons = (0.1, 0.3, 1.0, 3.0)

figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
for rows, color, height in ((1_000, "#b2182b", -3), (5_000, "#d6604d", -11), (30_000, "#2166ac", 2)):
    people = census_like(rows, random_state=0).frame()
    models = [RateConstrainedClassifier(epsilon=each, classes=[0, 1]).fit(people, "income") for each in epsilons]
    accuracies = [np.mean(model.predict(unseen) == others["income"]) for model in models]
    axis.semilogx(epsilons, accuracies, "o-", color=color)
    axis.annotate(
        f"{rows:,} rows", (epsilons[-1], accuracies[-1]), (6, height), textcoords="offset points", color=color
    )
constant = max(others["income"].mean(), 1 - others["income"].mean())
axis.axhline(constant, color="black", linewidth=1, linestyle=":")
axis.annotate("most common class", (epsilons[1], constant), (12, 5), textcoords="offset points")
axis.set(
    xlabel="epsilon",
    ylabel="accuracy on unseen people",
    xlim=(0.09, 8),
    ylim=(0.735, 0.865),
    xticks=epsilons,
    xticklabels=epsilons,
)
axis.minorticks_off()
