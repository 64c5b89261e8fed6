"""How large the rounding error of the accountant's FFT is, against its allowance.

The composed law is computed twice from the same grids: in double precision, as the accountant does, and in
extended precision (64 bits of mantissa; meaningful on x86). The error is the largest change of the tilted sum
that any epsilon could see: the sum of absolute differences over the window. Run:

    python -m benchmarks accountant_rounding
"""

import numpy as np
from scipy import fft

from ratewise.accounting import losses as c
from ratewise.accounting.losses import AddLoss, RemoveLoss, RowLoss

CASES = [
    (RemoveLoss, RowLoss(1.0), 0.01, 1000, 1e-5),
    (RemoveLoss, RowLoss(0.6), 0.02, 100, 1e-5),
    (RemoveLoss, RowLoss(20.0), 0.2, 200, 1e-5),
    (AddLoss, RowLoss(1.0), 0.01, 1000, 1e-5),
    (RemoveLoss, RowLoss(5.0), 0.0016, 12_000, 1e-5),
    (RemoveLoss, RowLoss(1.0, 1.0), 0.05, 1, 1e-5),
    (RemoveLoss, RowLoss(4.0, 2.0), 0.05, 1000, 1e-12),
    (RemoveLoss, RowLoss(scale=1.0), 0.02, 1000, 1e-5),
    (RemoveLoss, RowLoss(2.0, 2.0), 0.001, 1_000_000, 1e-5),
]


def both(kind, base, rate, steps, delta):
    tail = 1e-8 * delta / steps
    composition = c.Composition(((kind(base, rate), steps),))
    unit, tilt, _ = composition._place(lambda g: c._tilt_for_delta(g, delta), tail)
    grids = composition._grids(composition._width_for(c.TOLERANCE, tilt, unit), tail)
    found = grids.compose(tilt, grids.window(tilt, grids.slopes(tilt)))
    first, size = round(found.losses[0] / grids.width), len(found.losses)
    grid, count = grids.parts[0]
    exponent = np.longdouble(tilt) * grid.losses.astype(np.longdouble)
    weights = grid.mass.astype(np.longdouble) * np.exp(exponent - exponent.max())
    weights /= weights.sum()
    middle = round(float(weights @ grid.losses) / grids.width)
    start = (grid.first - middle) % size
    circle = np.zeros(-(-(start + len(weights)) // size) * size, dtype=np.longdouble)
    circle[start : start + len(weights)] = weights
    with np.errstate(divide="ignore"):
        spectrum = np.exp(count * np.log(fft.rfft(circle.reshape(-1, size).sum(axis=0))))
    exact = np.roll(fft.irfft(spectrum, size), -((first - count * middle) % size))
    return size, float(np.abs(exact - found.weights).sum()), c._ROUNDING * (steps + 1), found


if __name__ == "__main__":
    print("| direction, loss | q | steps | points | error of the tilted sum | allowance | tilted sum |")
    print("|---|---|---|---|---|---|---|")
    for kind, base, rate, steps, delta in CASES:
        size, error, allowance, found = both(kind, base, rate, steps, delta)
        epsilon = found.epsilon(delta)
        size_of_sum = delta / np.exp(found.log_scale - found.tilt * epsilon)
        name = f"{kind.__name__[:-4].lower()}, {base}".replace("Loss", "")
        print(
            f"| {name} | {rate:g} | {steps} | {size} | {error:.1e} | {allowance:.1e} | {size_of_sum:.2g} |", flush=True
        )
