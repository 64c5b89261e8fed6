"""
Several fits within one budget
==============================

A ledger with a cap admits plans until the budget is spent, also if later plans depend on earlier results. What does not fit is refused before anything is released.
"""

import matplotlib.pyplot as plt

from ratewise import Budget, BudgetExceeded, Ledger, RateConstrainedClassifier
from ratewise.datasets import census_like

people = census_like(10_000, random_state=0)
ledger = Ledger(cap=Budget(epsilon=1.0, delta=1e-5))
epsilons, spent = [0.4, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3], [0.0]
for epsilon in epsilons:
    model = RateConstrainedClassifier(
        epsilon=epsilon, ledger=ledger, classes=people.classes, feature_bounds=people.feature_bounds
    )
    try:
        model.fit(people.X, people.y)
    except BudgetExceeded as refused:
        print(refused)
        break
    spent.append(100 * ledger.spent)

figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
axis.bar(range(1, len(spent)), spent[1:], color="#2166ac")
axis.axhline(100, color="black", linewidth=1)
axis.annotate("refused", (len(spent), 2), ha="center", color="#b2182b")
axis.set(xlabel="fits at epsilon 0.4, 0.3, 0.3, ...", ylabel="% of the cap spent", xlim=(0.4, len(spent) + 0.6))
assert len(spent) - 1 < len(epsilons)

# %%
# The epsilons of the fits add up to more than the cap: the ledger composes, which is tighter than adding.

print(f"{len(spent) - 1} fits, epsilons add up to {sum(epsilons[: len(spent) - 1]):.1f}, guarantee: epsilon 1")
print(ledger.terms)
