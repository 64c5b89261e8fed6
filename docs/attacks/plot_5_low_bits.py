"""
Low bits of floating-point noise
================================

A noisy number that is computed in floating point cannot take every value: from 0 some outputs are impossible that are possible from 1, and conversely. So a
single output can identify the data with certainty, whatever epsilon is (Mironov 2012).
"""

import matplotlib.pyplot as plt
import numpy as np

from ratewise.mechanisms.noise import RoundedLaplaceMechanism
from ratewise.mechanisms.randomness import SecureGenerator

rng = np.random.default_rng(0)


def textbook(value, size):
    """Return value + Laplace noise of scale 1, computed as in textbooks."""
    uniform, sign = rng.integers(1, 2**53, size) / 2.0**53, rng.choice([-1.0, 1.0], size)
    return value + sign * -np.log(uniform)


# %%
# The attack
# ----------
# Is there a uniform number from which 0 plus noise gives this output? Only a few candidates have the right logarithm.


def possible_from_zero(output):
    """Return whether each output is a value of the textbook mechanism at 0."""
    nearest = np.rint(np.exp(-np.abs(output)) * 2.0**53)
    candidates = [np.clip(nearest + shift, 1, 2.0**53 - 1) / 2.0**53 for shift in range(-8, 9)]
    return np.any([-np.log(candidate) == np.abs(output) for candidate in candidates], axis=0)


outputs = textbook(1.0, 20_000)
identified = np.mean(~possible_from_zero(outputs))
print(
    f"outputs from 1 that cannot come from 0: {identified:.1%}; from 0: {np.mean(~possible_from_zero(textbook(0.0, 20_000))):.1%}"
)
assert identified > 0.1

figure, axis = plt.subplots(figsize=(6, 2.4), layout="constrained")
axis.barh(["allowed at any epsilon", "textbook Laplace noise"], [0.0, 100 * identified], color="#b2182b")
axis.set(xlabel="% of outputs that identify the data with certainty", xlim=(0, 100))

# %%
# A mechanism with epsilon 1 would allow certainty in no case at all.
#
# The defence
# -----------
# The library rounds values to a grid that does not depend on the data and adds whole multiples of it, drawn exactly. Every multiple is possible from every value.

mechanism, source = RoundedLaplaceMechanism(1.0), SecureGenerator()
released = mechanism.release(np.ones(20_000), source)
steps = released / mechanism.grid
assert np.array_equal(steps, np.rint(steps))
print(f"all outputs are multiples of 2**{np.log2(mechanism.grid):.0f}, from 0 as from 1")
