"""
One draw of noise for several cells
===================================

A table of predictions needs an independent draw for every entry. If one draw is added to several entries, as in published code for
equalized odds, their differences are exact.
"""

import matplotlib.pyplot as plt
import numpy as np

from ratewise.mechanisms.noise import RoundedGaussianMechanism
from ratewise.mechanisms.randomness import SecureGenerator

with_person = np.array([[120.0, 31.0], [80.0, 18.0]])
without = with_person - [[0, 0], [0, 1]]
rng = np.random.default_rng(0)


def difference(table):
    """Return what the adversary looks at: the last entry minus the first."""
    return table[1, 1] - table[0, 0]


# %%
# The attack
# ----------
# With shared noise of standard deviation 20, the difference of two cells tells the two tables apart in every game.

shared = {
    name: [difference(table + 20 * rng.normal()) for _ in range(500)]
    for name, table in (("with", with_person), ("without", without))
}
assert np.ptp(shared["with"]) < 1e-9
assert abs(np.mean(shared["with"]) - np.mean(shared["without"]) - 1) < 1e-9

# %%
# The defence
# -----------
# The mechanisms of the library draw for each entry.

mechanism, source = RoundedGaussianMechanism(20.0, whole=True), SecureGenerator()
ours = {
    name: [difference(mechanism.release(table.copy(), source)) for _ in range(500)]
    for name, table in (("with", with_person), ("without", without))
}
assert np.std(ours["with"]) > 20

figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.2), layout="constrained")
titles = ("one draw for all cells", "one draw per cell")
for axis, found, title, bins in zip(axes, (shared, ours), titles, (3, 25), strict=True):
    axis.hist(
        [found["without"], found["with"]], bins=bins, color=["#999999", "#b2182b"], label=["without", "with the person"]
    )
    axis.set(title=title, xlabel="difference of two cells")
axes[0].set(ylabel="games", xticks=[-103, -102])
axes[1].set_ylim(0, 1.4 * axes[1].get_ylim()[1])
axes[1].legend(frameon=False, loc="upper left")
