"""
Cancelling rows against clipping
================================

Fast private training computes the norm of a row's gradient without forming the gradient, and the sum over rows by one matrix product. In floating point the
two can disagree: a row whose terms cancel has a norm near zero, while rounding errors of its huge terms stay in the sum.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from ratewise.torch import PerRowClipper

torch.manual_seed(0)
CLIP, ROWS, POSITIONS, WIDTH = 1.0, 16, 8, 4
signs = torch.tensor([1.0, 0.7, 0.3, 1.1, -1.0, -0.7, -0.3, -1.1])


class Pooled(nn.Module):
    """A linear layer at each position, then the mean."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x):
        return self.layer(x).mean(1).squeeze(-1)


def batch(size):
    """Return ordinary rows, the first one replaced by a row of this size whose positions cancel."""
    rows = torch.randn(ROWS, POSITIONS, WIDTH)
    rows[0] = size * signs[:, None] * torch.tensor([1.0, 0.3, 0.9, 0.7])
    return rows


# %%
# The attack
# ----------
# The gradient of a row is the mean of its positions. Its norm follows from inner products of positions; the sum of clipped gradients is one product.


def fast_clipped_sum(rows):
    """Return the clipped sum as in fast implementations: norms by inner products, then one product."""
    inner = rows.double() @ rows.double().mT / POSITIONS**2
    norms = inner.sum((1, 2)).clamp(min=0).sqrt()
    weights = torch.minimum(torch.ones(ROWS, dtype=torch.float64), CLIP / norms).float()
    terms = (weights[:, None, None] * rows / POSITIONS).reshape(-1, WIDTH)
    return torch.ones(len(terms)) @ terms


def library_sum(rows, present):
    """Return the clipped sum of the library; an absent row is scaled to zero."""
    module = Pooled()
    clipper = PerRowClipper(module)
    with clipper.recording():
        losses = module(rows)
    return clipper.clipped_sum(losses, CLIP, scale_rows=present)[0]


sizes = 10.0 ** np.arange(2, 13)
fast, ours = [], []
for size in sizes:
    rows = batch(size)
    blank = rows.clone()
    blank[0] = 0
    fast.append(float((fast_clipped_sum(rows) - fast_clipped_sum(blank)).norm()))
    present = torch.ones(ROWS)
    absent = present.clone()
    absent[0] = 0
    ours.append(float((library_sum(rows, present) - library_sum(rows, absent)).norm()))

figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
axis.loglog(sizes, np.maximum(fast, 1e-9), color="#b2182b")
axis.loglog(sizes, np.maximum(ours, 1e-9), color="#2166ac")
axis.axhline(CLIP, color="black", linewidth=1, linestyle=":")
axis.annotate("fast clipping", (sizes[-4], fast[-4]), (-80, 5), textcoords="offset points", color="#b2182b")
axis.annotate("library", (sizes[-3], max(ours[-3], 1e-9)), (0, 8), textcoords="offset points", color="#2166ac")
axis.annotate("clipping norm", (sizes[0], CLIP), (0, 4), textcoords="offset points")
axis.set(xlabel="size of the row's terms", ylabel="how far the row moves the sum")
print(f"fast: moves the sum by {max(fast):.0f} times the clipping norm; library: {max(ours):.2g} times")
assert max(fast) > 100 * CLIP
assert max(ours) <= 1.02 * CLIP

# %%
# The defence
# -----------
# The library bounds the vector that is added as computed, including rounding and cancellation; the proof is in :doc:`/guarantees`, section 14.
