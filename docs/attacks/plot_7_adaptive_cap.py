"""
A cap on totals with adaptive choices
=====================================

Two analysts' plans each fit under a cap of epsilon 1 at delta 1e-5. If the second release is chosen by the output of the first, the composed total of either
plan is no bound for what happens.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

from ratewise.accounting import Budget, GaussianEvent, LaplaceEvent, Ledger, epsilon

FIRST, GAUSS, LAPLACE = GaussianEvent(10.0), GaussianEvent(1 / 0.2485), LaplaceEvent(1 / 0.6765)
for second in (GAUSS, LAPLACE):
    total = epsilon([FIRST, second], 1e-5)
    print(f"{type(second).__name__}: total epsilon {total:.4f}")
    assert total <= 1.0

# %%
# The attack
# ----------
# Given the privacy loss of the first output, take the second release that is more informative now. The curves are those of the two mechanisms.


def gaussian_delta(e, noise):
    """Return delta of a Gaussian release at epsilon e."""
    mu = 1 / noise
    return norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu)


def laplace_delta(e, noise):
    """Return delta of a Laplace release at epsilon e."""
    return np.maximum.reduce([1 - np.exp(e), 1 - np.exp((e - 1 / noise) / 2), np.zeros_like(e)])


output = np.linspace(-80, 90, 40_001)  # of the first release, with the person
weight = norm.pdf(output, 1, FIRST.noise) * (output[1] - output[0])
left = 1 - (2 * output - 1) / (2 * FIRST.noise**2)  # epsilon that is left for the second
curves = {"always Gaussian": gaussian_delta(left, GAUSS.noise), "always Laplace": laplace_delta(left, LAPLACE.noise)}
curves["chosen by the output"] = np.maximum(*curves.values())
reached = {name: float(np.sum(weight * curve)) for name, curve in curves.items()}
for name, value in reached.items():
    print(f"{name}: delta {value:.2e} at epsilon 1")
assert reached["chosen by the output"] > 1.5e-5

figure, axis = plt.subplots(figsize=(6, 2.6), layout="constrained")
axis.barh(list(reached), [1e5 * value for value in reached.values()], color=["#999999", "#999999", "#b2182b"])
axis.axvline(1, color="black", linewidth=1)
axis.set(xlabel="delta at epsilon 1, in units of the cap 1e-5 (line)")

# %%
# The defence
# -----------
# A ledger with a cap is a privacy filter (:doc:`/ledger`). After the first release it does not admit both.

ledger = Ledger(cap=Budget(1.0, 1e-5))
ledger.admit(FIRST).release()
admitted = [type(event).__name__ for event in (GAUSS, LAPLACE) if not ledger.would_exceed(event)]
print("still admitted:", admitted)
assert len(admitted) < 2
