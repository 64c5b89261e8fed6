"""
A membership query by rejected declarations
===========================================

Suppose that a library checks declarations against the rows, and refuses a constraint on a group without rows. The refusal looks like
help. It is an exact answer about the rows, without noise and without any record.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from ratewise import Budget, Ledger, RateConstrainedClassifier, between, group, rate

rng = np.random.default_rng(0)
salary = rng.integers(20_000, 60_000, 400).astype(float)
salary[123] = 91_234.0  # nobody else earns that much
X, y = rng.normal(size=(400, 3)), rng.integers(0, 2, 400)

# %%
# The attack
# ----------
# Ask for a constraint on people who earn between two numbers, and halve the interval after each answer.


def helpful_fit(low, high):
    """Refuse constraints on empty groups before spending any budget."""
    if not ((salary >= low) & (salary < high)).any():
        raise ValueError("no row earns that much")


low, high, intervals = 60_000.0, 120_000.0, []
while high - low > 1:
    middle = (low + high) / 2
    try:
        helpful_fit(middle, high)
        low = middle
    except ValueError:
        high = middle
    intervals.append((low, high))
print(f"after {len(intervals)} refusals and acceptances: {low:,.0f} to {high:,.0f}")
assert low <= 91_234 <= high

figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
steps = np.arange(1, len(intervals) + 1)
axis.fill_between(steps, *np.transpose(intervals), step="mid", color="#b2182b", alpha=0.4)
axis.axhline(91_234, color="black", linewidth=1)
axis.set(xlabel="declarations tried", ylabel="largest salary is between", title="No budget was spent")

# %%
# The defence
# -----------
# ``fit`` validates declarations without reading rows. Afterwards nothing raises, warns or is recorded differently because of a row:
# with the person and without, the adversary sees the same apart from noise. Here the constraint is about salaries that only this person has.


def seen(salaries):
    """Return what an observer sees besides noisy numbers."""
    ledger = Ledger(cap=Budget(10.0, 1e-4))
    model = RateConstrainedClassifier(
        rate(1, where=group(salary=between(90_000, 92_000))) <= 0.9, epsilon=1.0, ledger=ledger, classes=[0, 1]
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(X, y, sensitive_features={"salary": salaries})
    return [str(each.message) for each in said], ledger.events()


without = salary.copy()
without[123] = np.nan
assert seen(salary) == seen(without)
print("warnings and ledger are the same with and without the person")
