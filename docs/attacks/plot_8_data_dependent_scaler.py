"""
A scaler fitted on private rows
===============================

Clipping bounds what a row adds, but not what it does to the features of other rows. A scaler that is fitted on the private rows lets one row move
all of them, and publishes the row's value as a parameter.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.preprocessing import MinMaxScaler

from ratewise import RateConstrainedClassifier
from ratewise.datasets import census_like

rng = np.random.default_rng(0)
incomes = rng.lognormal(10.5, 0.5, 5_000)

# %%
# The attack
# ----------
# The sum of clipped rows (clipping norm 1) with and without a rich person. The noise of a private step is made for a change of at most 1.


def clipped_sum(values):
    """Return the sum over rows of scaled values, each clipped to [-1, 1]."""
    scaled = MinMaxScaler().fit_transform(values[:, None])[:, 0]
    return np.clip(scaled, -1, 1).sum()


richest = np.geomspace(1e5, 1e9, 17)
moved = [abs(clipped_sum(np.append(incomes, income)) - clipped_sum(incomes)) for income in richest]
print("published with the model:", MinMaxScaler().fit(np.append(incomes, 1e9)[:, None]).data_max_)
assert max(moved) > 500

figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
axis.loglog(richest, moved, color="#b2182b")
axis.axhline(1, color="black", linestyle=":", linewidth=1)
axis.annotate("what the noise is made for", (richest[-1], 1), (0, 4), textcoords="offset points", ha="right")
axis.set(xlabel="income of one person", ylabel="change of the sum")

# %%
# The defence
# -----------
# Pass raw columns. Ranges that are not declared are found by noisy counts above a threshold, within epsilon: one person does not move them.

people = census_like(20_000, random_state=0).frame()
people["income_last_year"] = rng.lognormal(10.5, 0.5, len(people))
edges = []
for largest in (1e5, 1e9):
    people.loc[0, "income_last_year"] = largest
    model = RateConstrainedClassifier(epsilon=1.0).fit(people, "income")
    [shape] = [shape for shape in model.shape_functions() if shape.feature == "income_last_year"]
    edges.append(shape.edges[[0, -1]])
print("ranges found privately, with a largest income of 1e5 and of 1e9:", *edges)
assert max(edge[1] for edge in edges) < 1e7
