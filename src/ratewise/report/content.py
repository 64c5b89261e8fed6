"""What a report says, as plain data: numbers, texts and nothing that draws.

Everything that the page, the card and the figures show is a field in here, so all of them agree, and the
JSON of a report is enough to draw it again. A number that does not exist (a rate of no rows, an infinite
epsilon) is None. Texts are as the user gave them; whoever renders them escapes them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ratewise._files import revive
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.training.certificate import CANNOT_TELL, HELD, MISSED, short

FORMAT = "ratewise-report"
VERSION = 8

STATES = (MISSED, CANNOT_TELL, HELD)

MEASURES = {
    "selection_rate": "predicted",
    "true_positive_rate": "found among those who are (TPR)",
    "false_positive_rate": "false alarms among others (FPR)",
    "false_negative_rate": "missed among those who are (FNR)",
    "true_negative_rate": "left alone among others (TNR)",
    "precision": "right among predicted (precision)",
    "false_discovery_rate": "wrong among predicted (FDR)",
    "base_rate": "true share",
}


@dataclass(frozen=True)
class Share:
    """A share of `rows` rows, with its confidence interval; None where there are no rows."""

    value: float | None
    low: float | None
    high: float | None
    rows: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval, if there is one."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Constraint:
    """One bounded quantity, as a formula and in words; a two-sided bound, or a gap, is one constraint.

    `reached` and its interval are about the training rows, or about the population of the rows measured on.
    `excess` is the distance beyond a bound, negative within both. `certified` is the private measurement on the training
    rows, from the model's certificate.
    """

    name: str
    words: str
    family: str | None
    gap: bool
    lower: float | None
    upper: float | None
    reached: float | None
    low: float | None
    high: float | None
    excess: float | None
    state: str
    certified: Constraint | None = None

    @property
    def requested(self) -> str:
        """The bounds as text."""
        if self.lower is None or self.upper is None:
            side = "at most" if self.lower is None else "at least"
            return f"{side} {short(self.upper or self.lower or 0.0)}"
        return f"{short(self.lower)} to {short(self.upper)}"

    def excess_of(self, value: float) -> float:
        """Return by how much a value exceeds a bound; negative where both are met."""
        above = -math.inf if self.upper is None else value - self.upper
        return above if self.lower is None else max(above, self.lower - value)

    @property
    def excess_interval(self) -> tuple[float, float] | None:
        """The interval as distances from the bound that is nearer to it, the better end first."""
        if self.low is None or self.high is None:
            return None
        ends = best = [self.excess_of(self.low), self.excess_of(self.high)]
        if self.lower is not None and self.upper is not None:
            middle = min(max((self.lower + self.upper) / 2, self.low), self.high)
            best = [*ends, self.excess_of(middle)]
        return min(best), max(ends)


@dataclass(frozen=True)
class Declared:
    """A declared family in words, the state of its worst constraint, and the rates that it compares.

    `points` are (series, group, rate).
    """

    name: str
    words: str
    state: str
    points: tuple[tuple[str, str, float | None], ...]


@dataclass(frozen=True)
class Group:
    """What predictions do to a group: rates by class and by measure, and how often they are right."""

    name: str
    rows: int
    accuracy: Share
    rates: dict[str, dict[str, Share]]

    @property
    def error(self) -> Share:
        """How often predictions are wrong."""
        right = self.accuracy
        if right.value is None or right.low is None or right.high is None:
            return right
        return Share(1.0 - right.value, 1.0 - right.high, 1.0 - right.low, right.rows)


@dataclass(frozen=True)
class Grouping:
    """All groups by the values of some columns."""

    by: tuple[str, ...]
    groups: tuple[Group, ...]

    @property
    def title(self) -> str:
        """The columns as text."""
        return " and ".join(self.by)


@dataclass(frozen=True)
class Bin:
    """Rows with similar scores: their mean score, and how often it was so."""

    score: float
    observed: Share


@dataclass(frozen=True)
class Calibration:
    """Scores of a group against outcomes.

    `error` is the mean distance between score and outcome over bins, weighted by rows; `brier` the mean
    square distance over rows.
    """

    group: str
    by: str
    bins: tuple[Bin, ...]
    error: float
    brier: float
    rows: int


@dataclass(frozen=True)
class ComparedModel:
    """A model on the same rows: the one reported comes first, others are there to compare.

    `worst` is the largest excess.
    """

    name: str
    accuracy: Share
    worst: float | None
    reached: tuple[float | None, ...]
    epsilon: float | None
    private: bool


@dataclass(frozen=True)
class Curve:
    """One constraint during training: released values minus bound, and its multiplier, by kept step."""

    name: str
    excess: tuple[float | None, ...]
    multiplier: tuple[float | None, ...]


@dataclass(frozen=True)
class Training:
    """What was released while the model was trained; `left_out` counts constraints without a curve."""

    steps: tuple[int, ...]
    gradient_norm: tuple[float | None, ...]
    curves: tuple[Curve, ...]
    left_out: int


@dataclass(frozen=True)
class LedgerEntry:
    """An entry of the ledger: epsilon of it alone, and of the ledger before and after it."""

    purpose: str
    data: str
    words: str
    alone: float | None
    before: float | None
    after: float | None


@dataclass(frozen=True)
class Spending:
    """The entries of the ledger in order."""

    delta: float
    cap: float | None
    total: float | None
    entries: tuple[LedgerEntry, ...]


@dataclass(frozen=True)
class Shape:
    """The shape function of a feature for one output: bars of categories, or steps over a range.

    `special` are values with a bin of their own, such as missing values, and their contributions.
    """

    feature: str
    output: str
    importance: float
    edges: tuple[float, ...]
    labels: tuple[str, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    special: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Note:
    """A fact of the first screen; or a remark, of kind "leak", "privacy", "certificate", "rows", "aim" or "page"."""

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything a report says; `released`: from values that the training released, without other rows."""

    title: str
    model: str
    created: str
    version: str
    released: bool
    rows: int
    headline: str
    confidence: float
    tolerance: float
    classes: tuple[str, ...]
    score_words: str = ""
    about: tuple[Note, ...] = ()
    families: tuple[Declared, ...]
    constraints: tuple[Constraint, ...]
    everyone: Group
    groupings: tuple[Grouping, ...] = ()
    calibration: tuple[Calibration, ...] = ()
    models: tuple[ComparedModel, ...] = ()
    shapes: tuple[Shape, ...]
    training: Training | None
    spending: Spending | None
    statement: dict[str, Any] | None
    words: tuple[str, ...]
    notes: tuple[Note, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Number of constraints in each state."""
        return {state: sum(one.state == state for one in self.constraints) for state in STATES}

    @property
    def shown_classes(self) -> tuple[str, ...]:
        """The classes worth a picture: of two, the second says it all."""
        return self.classes[1:] if len(self.classes) == 2 else self.classes

    def by_worst(self) -> list[Constraint]:
        """Return the constraints: missed, then undecided, then held, each by its excess."""
        by_excess = sorted(self.constraints, key=lambda one: -math.inf if one.excess is None else -one.excess)
        return sorted(by_excess, key=lambda one: STATES.index(one.state))

    @property
    def state(self) -> str:
        """The worst state of a constraint; "none" without constraints."""
        if self.constant:
            return CANNOT_TELL
        return min((one.state for one in self.constraints), key=STATES.index, default="none")

    @property
    def constant(self) -> bool:
        """Whether the model predicts one class for everyone because training found no second one."""
        return len(self.classes) < 2

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, fit for JSON."""
        plain = json.loads(json.dumps(dataclasses.asdict(self), allow_nan=False))
        return {"format": FORMAT, "version_of_format": VERSION, **plain}

    @classmethod
    def from_dict(cls, description: Any) -> Content:
        """Read back what `to_dict` wrote."""
        if not isinstance(description, Mapping):
            raise InvalidType(f"a report must be a mapping, got {type(description).__name__}")
        fields = dict(description)
        found = fields.pop("format", None), fields.pop("version_of_format", None)
        if found != (FORMAT, VERSION):
            raise InvalidInput(
                f"format must be {FORMAT!r} of version {VERSION}, got {found[0]!r} of version {found[1]!r}; "
                "use what Report.to_json() wrote"
            )
        remedy = "use what Report.to_json() wrote"
        revived: Content = revive(cls, fields, "report", remedy)
        groups = [group for grouping in revived.groupings for group in grouping.groups]
        if not all(set(revived.classes) <= group.rates.keys() for group in groups):
            raise InvalidInput(
                f"report.groupings must be an object with the rates of every class in every group; {remedy}"
            )
        return revived


# ------------------------------------------------------------------------------- numbers and texts


def finite(number: float) -> float | None:
    """Return the number as a float, or None for NaN and infinities, which JSON does not know."""
    return float(number) if math.isfinite(number) else None


def finites(*numbers: float) -> Any:
    """Return several numbers, each as `finite` does."""
    return tuple(map(finite, numbers))


def listed(texts: Iterable[str], most: int, mark: str = ", ") -> str:
    """Return the first texts, and how many more there are."""
    items = list(texts)
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return mark.join(items[:most]) + more
