"""
Trade-off between gap and accuracy
==================================

Accuracy of models with four bounds on the gap between women and men, with and without privacy, measured on people whom no model has seen.
"""

import matplotlib.pyplot as plt

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.datasets import census_like
from ratewise.metrics import rate_report

people, others = census_like(40_000, random_state=0).frame(), census_like(100_000, random_state=1).frame()
unseen = others.drop(columns="income")
bounds = (0.15, 0.1, 0.05, 0.02)

figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
for epsilon, color, name, place in (
    (None, "#777777", "not private", (-72, 6)),
    (1.0, "#2166ac", "epsilon 1", (8, -10)),
):
    gaps, accuracies = [], []
    for bound in bounds:
        parity = demographic_parity("sex", max_gap=bound)
        model = RateConstrainedClassifier(parity, epsilon=epsilon).fit(people, "income", sensitive_features="sex")
        predicted = model.predict(unseen)
        report = rate_report(parity, others["income"], predicted, sensitive_features=others[["sex"]])
        gaps.append(max(abs(row.reached) for row in report))
        accuracies.append((predicted == others["income"]).mean())
    axis.plot(gaps, accuracies, "o-", color=color)
    axis.annotate(name, (gaps[1], accuracies[1]), place, textcoords="offset points", color=color)
    print(name, "reached gaps:", *(f"{gap:.3f}" for gap in gaps))
axis.set(xlabel="gap in the rate of predicted high income", ylabel="accuracy", xlim=(0, 0.2))

# %%
# Each point is one training with its own budget. Choosing among models by looking at such a figure of *private* rows costs privacy: use
# :doc:`/selection`, or choose the bound before.
