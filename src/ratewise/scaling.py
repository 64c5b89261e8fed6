"""What is done to features before a model sees them: cut off at bounds, bent, shifted, stretched.

A scaling holds public and released numbers only, and no row; prediction does to rows what training did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ratewise.curves import Places, bend, half_width
from ratewise.exceptions import InvalidInput, UnsupportedCombination

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, eq=False)
class Scaling:
    """Prepare features: cut them off at bounds, then shift and stretch them.

    Parameters
    ----------
    lower, upper : array of d numbers, or None
        Bounds, public or released (`ratewise.tails`). Features are cut off there and mapped to [0, 1] (or
        [-1, 1]). None: as they come; so does a feature with no bounds, from minus infinity to infinity.
    origin : "lower" or "zero"
        "lower" sends `lower` to 0 and `upper` to 1. "zero" keeps zero at zero (as sparse features need) and
        divides by the larger of ``|lower|`` and ``|upper|``.
    mean, deviation : array of a number per prepared feature, or None
        Taken off, and divided by, after that. They are **released** values (`ratewise.standardisation`).
    curved : array of whole numbers, or None
        Features that enter a second time, bent within their bounds (`ratewise.curves`): as many more columns
        follow the others, between 0 and 1. Public; needs bounds and ``origin="lower"``.
    bend_lower, bend_upper : array of a number per curved feature, or None
        Where second columns bend, if elsewhere than between the bounds (`ratewise.bends`); **released**.
    """

    lower: Floats | None = None
    upper: Floats | None = None
    origin: str = "lower"
    mean: Floats | None = None
    deviation: Floats | None = None
    curved: Places | None = None
    bend_lower: Floats | None = None
    bend_upper: Floats | None = None

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "mean", "deviation", "bend_lower", "bend_upper"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, np.asarray(value, dtype=np.float64))
        if self.curved is not None:
            object.__setattr__(self, "curved", np.asarray(self.curved, dtype=np.intp))
        self._check()
        self._check_curved()

    def _check(self) -> None:
        given = [value for value in (self.lower, self.upper, self.mean, self.deviation) if value is not None]
        shapes = [value.shape for value in given]
        more = 0 if self.curved is None else self.curved.size  # second columns have a mean, and no bounds
        sizes = {v.size + more for v in (self.lower, self.upper) if v is not None}
        sizes |= {v.size for v in (self.mean, self.deviation) if v is not None}
        if (
            len(sizes) != 1
            or any(len(shape) != 1 for shape in shapes)
            or (self.lower is None) != (self.upper is None)
        ):
            raise InvalidInput(
                "lower and upper must be one number per feature each, got shapes "
                + " and ".join(str(shape) for shape in shapes)
            )
        if self.lower is not None and not np.all(self.lower <= np.asarray(self.upper)):
            raise InvalidInput("bounds of features must be finite, with lower at most upper")
        if not all(np.all(np.isfinite(value) | self._open_for(value)) for value in given):
            raise InvalidInput("bounds of features must be finite, with lower at most upper")
        if self.deviation is not None and not np.all(self.deviation > 0):
            raise InvalidInput("deviation must be above 0 for every feature")
        if self.origin not in ("lower", "zero"):
            raise InvalidInput(f"origin must be 'lower' or 'zero', got {self.origin!r}")

    def _open_for(self, value: Floats) -> npt.NDArray[np.bool_] | bool:
        """Return where `value`, if these are bounds, may be infinite: at features that have none."""
        if self.lower is None or self.upper is None or not (value is self.lower or value is self.upper):
            return False
        return np.asarray(np.isneginf(self.lower) & np.isposinf(self.upper))

    def _check_curved(self) -> None:
        if self.curved is None:
            if self.bend_lower is not None or self.bend_upper is not None:
                raise InvalidInput("bend_lower and bend_upper are of curved features, and none is curved")
            return
        if self.lower is None or self.upper is None or self.origin != "lower":
            raise InvalidInput("curved features need bounds, and origin='lower'")
        places, width = self.curved, len(self.lower)
        if places.ndim != 1 or not np.all((places >= 0) & (places < width)):
            raise InvalidInput(f"curved must list features by their places 0 to {width - 1}")
        if not np.all(np.diff(places) > 0):
            raise InvalidInput("curved must list features in order, each once")
        low, high = self.bend_lower, self.bend_upper
        if low is None and high is None:
            low, high = self.lower[places], self.upper[places]
        if low is None or high is None:
            raise InvalidInput("give both of bend_lower and bend_upper, or neither")
        if low.shape != places.shape or high.shape != places.shape:
            raise InvalidInput("bend_lower and bend_upper must be one number per curved feature each")
        if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(half_width(low, high) > 0)):
            raise InvalidInput("curved features need a lower bound below the upper one, both finite")

    @property
    def n_features(self) -> int:
        """Number of features, as they come."""
        return next(len(v) for v in (self.lower, self.mean, self.deviation) if v is not None)

    @property
    def n_prepared(self) -> int:
        """Number of features after preparation: those that are curved count twice."""
        return self.n_features + (0 if self.curved is None else len(self.curved))

    def bend(self, rows: Array, out: Floats) -> None:
        """Write the second columns of the curved features, between 0 and 1, to `out`."""
        if self.curved is None or self.lower is None or self.upper is None:
            return
        first, places = int(self.curved[0]), self.curved
        row = places[-1] - first + 1 == len(places)  # one after the other, as numbers mostly are
        values = rows[:, first : first + len(places)] if row else rows.take(places, axis=1)
        if self.bend_lower is None or self.bend_upper is None:
            bend(values, self.lower[places], self.upper[places], out=out)
        else:  # which may lie beyond the bounds, where features are cut off
            np.clip(values, self.lower[places], self.upper[places], out=out)
            bend(out, self.bend_lower, self.bend_upper, out=out)

    def standardised(self, mean: Floats | None, deviation: Floats) -> Scaling:
        """Return the same preparation with a released mean and deviation on top."""
        if self.deviation is None:
            return replace(self, mean=mean, deviation=deviation)
        before = 0.0 if self.mean is None else self.mean
        moved = self.mean if mean is None else before + mean * self.deviation
        return replace(self, mean=moved, deviation=self.deviation * deviation)

    def tables(self) -> ScalingTables:
        """Return what has to be done to each feature."""
        shift, width = np.zeros(self.n_prepared), np.ones(self.n_prepared)
        bounds = None
        if self.lower is not None and self.upper is not None:
            more = self.n_prepared - self.n_features
            bounds = np.append(self.lower, np.zeros(more)), np.append(self.upper, np.ones(more))
        with np.errstate(over="ignore"):
            if bounds is not None:
                if self.origin == "lower":
                    shift, width = bounds[0], bounds[1] - bounds[0]
                else:
                    width = np.maximum(np.abs(bounds[0]), np.abs(bounds[1]))
                shift = np.where(np.isinf(shift), 0.0, shift)  # of features without bounds
                width = np.where(np.isposinf(bounds[1]), 1.0, width)
            if self.mean is not None:
                shift = shift + self.mean * width
            if self.deviation is not None:
                width = width * self.deviation
            factor = np.divide(1.0, width, out=np.zeros(self.n_prepared), where=width > 0)
        factor[~np.isfinite(factor)] = 0.0  # bounds that coincide, or nearly: the feature counts for nothing
        return ScalingTables(bounds, shift, factor)


class ScalingTables(NamedTuple):
    """What is done to each feature: cut off at `bounds`, less `shift`, times `factor`."""

    bounds: tuple[Array, Array] | None
    shift: Array
    factor: Array

    @property
    def reach(self) -> Array:
        """Magnitudes that do not overflow when they are scaled."""
        return np.asarray(_LARGEST * 1e-3 / np.maximum(np.abs(self.factor), 1.0))

    @property
    def safe(self) -> bool:
        """Whether bounds cut off all that could overflow."""
        if self.bounds is None:
            return False
        return bool(np.all(np.maximum(np.abs(self.bounds[0]), np.abs(self.bounds[1])) <= self.reach))

    def guarded(self) -> ScalingTables:
        """Return the same tables with cuts so far out that only what would overflow is cut off."""
        reach = self.reach
        lower, upper = (-reach, reach) if self.bounds is None else self.bounds
        return self._replace(bounds=(np.maximum(lower, -reach), np.minimum(upper, reach)))

    def apply(self, block: Any) -> None:
        """Scale a dense or sparse block in place."""
        if not isinstance(block, np.ndarray):
            columns = block.indices
            if self.bounds is not None:
                np.clip(block.data, self.bounds[0][columns], self.bounds[1][columns], out=block.data)
            with np.errstate(over="ignore"):
                block.data *= self.factor[columns]
            return
        self.cut(block)
        self.stretch(block)

    def cut(self, block: Floats) -> None:
        """Cut a dense block off at the bounds, in place; faster than `np.clip`, and the same but for NaN."""
        if self.bounds is not None:
            np.maximum(block, self.bounds[0], out=block)
            np.minimum(block, self.bounds[1], out=block)

    def stretch(self, block: Floats) -> None:
        """Shift and scale a dense block that was cut off, in place."""
        with np.errstate(over="ignore"):  # rows of enormous length are dealt with by their norm
            block -= self.shift
            block *= self.factor


def scaling_tables(scaling: Scaling | None, n_features: int, sparse: bool) -> ScalingTables | None:
    """Return the tables of a scaling, or say why it does not fit the features."""
    if scaling is None:
        return None
    if scaling.n_features != n_features:
        raise InvalidInput(f"bounds are given for {scaling.n_features} features, X has {n_features}")
    if sparse and scaling.n_prepared > n_features:
        raise UnsupportedCombination(
            "X is sparse, but its features bend, which would fill it; give a dense X"
        )
    tables = scaling.tables()
    if sparse and np.any(tables.shift != 0):
        raise UnsupportedCombination(
            "sparse features cannot be shifted without becoming dense; scale them with origin='zero'"
        )
    lower, upper = scaling.lower, scaling.upper
    if sparse and lower is not None and not np.all((lower <= 0) & (np.asarray(upper) >= 0)):
        raise UnsupportedCombination(
            "bounds of sparse features must include 0, which is most of their values"
        )
    return tables
