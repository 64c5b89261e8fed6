"""What is certified about a model's predictions: one row and one verdict per requested constraint.

For a constraint ``value <= bound`` with the interval ``(low, high)`` of its value, the verdict is *held* if
``high <= bound + tolerance``, otherwise *missed* if ``low > bound``, otherwise (or if a group has too few rows beside
the noise) *cannot tell*. It is about the rows that were counted: training rows, a private hold-out or a public table,
whose counts are exact and whose interval is one number. The population interval says how far the people in general
may differ from these rows. `ratewise.training.certificate.certify` is the only caller of `verdict_of`.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, overload

from ratewise.constraints.domain import show_number
from ratewise.exceptions import InvalidInput

# ------------------------------------------------------------------------------------------ small tables


def text_table(head: list[str], rows: list[list[str]]) -> str:
    """Return columns aligned by spaces, under a ruled head."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def html_table(head: list[str], rows: list[list[str]], caption: str) -> str:
    """Return a plain HTML table; every text is escaped."""

    def line(tag: str, cells: list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption>"
        f"<thead>{line('th scope=col', head).replace('</th scope=col>', '</th>')}</thead>"
        f"<tbody>{body}</tbody></table>"
    )


Row = TypeVar("Row")


class RowSequence(Sequence[Row]):
    """A sequence of the `rows` of a table, which is printed as `_table` (head, body) says."""

    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        raise NotImplementedError

    def __str__(self) -> str:
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        return html_table(*self._table(), repr(self).strip("<>"))


def plain_data(value: Any) -> Any:
    """Return dataclasses, dictionaries and tuples as plain data, fit for JSON: numbers not finite become None."""
    if is_dataclass(value):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: plain_data(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [plain_data(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _restored(kind: Any, description: Mapping[str, Any], **given: Any) -> Any:
    """Return the dataclass that `plain_data` described, by the types of its fields."""
    read: dict[Any, Any] = {
        "float": _number,
        "str | None": lambda value: None if value is None else str(value),
        "tuple[float, float]": lambda ends: tuple(map(_number, ends)),
        "tuple[str, ...]": lambda texts: tuple(map(str, texts)),
        **{kind.__name__: kind for kind in (str, int, bool)},
    }
    rest = [field for field in fields(kind) if field.name not in given]
    return kind(**given, **{field.name: read[field.type](description[field.name]) for field in rest})


# ------------------------------------------------------------------------------------------------ verdicts


HELD, MISSED, CANNOT_TELL = "held", "missed", "cannot tell"
ROUNDING = 1e-9
"""A rate computed as 0.05 + 1e-17 satisfies a bound of 0.05."""


def verdict_of(interval: tuple[float, float], bounds: tuple[float, float], tolerance: float) -> str:
    """Return "held", "missed" or "cannot tell" for a value known to lie in an interval.

    >>> verdict_of((0.03, 0.055), (-math.inf, 0.05), tolerance=0.01)
    'held'
    """
    low, high = interval
    if math.isnan(low) or math.isnan(high):
        return CANNOT_TELL
    room = tolerance + ROUNDING
    if high <= bounds[1] + room and low >= bounds[0] - room:
        return HELD
    return MISSED if low > bounds[1] + ROUNDING or high < bounds[0] - ROUNDING else CANNOT_TELL


@dataclass(frozen=True)
class Estimate:
    """A released number with its interval; NaN where the noise leaves it open."""

    name: str
    value: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "unknown"
        return f"{short(self.value)} ({_ends(self.interval)})"


@dataclass(frozen=True)
class CertificateRow:
    """One requested constraint; a two-sided constraint is one row.

    `family` is the family that it was declared by. `kind` is "gap", "<=", ">=" or "within"; of a gap, `estimate` and
    `interval` are about the absolute value. `bounds` are the smallest and largest value requested, infinite where
    there is none. `estimate` is the private estimate on the rows, always inside `interval`; `interval` and
    `population_interval` are simultaneous intervals for the rows, and for the population that they were drawn
    from. `verdict` is "held", "missed" or "cannot tell"; `remedy` says what would help if it is not held. Unless
    `resolved`, there are too few rows to measure it, and estimate and intervals say nothing.
    """

    name: str
    family: str | None
    kind: str
    bounds: tuple[float, float]
    estimate: float
    interval: tuple[float, float]
    population_interval: tuple[float, float]
    verdict: str
    remedy: str = ""
    resolved: bool = True

    @property
    def bound(self) -> float:
        """The requested bound; of a pair of different bounds, the one that is nearer to the estimate."""
        low, high = self.bounds
        return low if math.isinf(high) or (low - self.estimate > self.estimate - high) else high

    @property
    def excess(self) -> float:
        """By how much the estimate exceeds the bound; negative if it is satisfied."""
        return max(self.estimate - self.bounds[1], self.bounds[0] - self.estimate)

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.interval[1] - self.interval[0]) / 2.0

    @property
    def requested(self) -> str:
        """The bound as text."""
        low, high = (show_number(bound) for bound in self.bounds)
        return {"within": f"{low} to {high}", ">=": f">= {low}"}.get(self.kind, f"<= {high}")

    def __str__(self) -> str:
        if not self.resolved:
            return f"{self.verdict}: {self.name}: too few rows to measure it"
        reached = f"reached {short(self.estimate)} ({_ends(self.interval)})"
        return f"{self.verdict}: {self.name}: {reached}; population {_ends(self.population_interval)}"


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(RowSequence[CertificateRow]):
    """What is certified about the predictions of one model on some rows; made by `certify`.

    A sequence of `CertificateRow`, one per requested constraint. ``str()`` starts with `summary`. A constraint counts
    as held if the upper end of its interval is at most the bound plus `tolerance`; `level` is the probability, over
    the noise, that all intervals contain the true values. `n_units` is the public number of units, `unit` what
    a unit is, in the plural, and `data` what was counted. `noise_std` is the standard deviation of the noise on
    each count, `majority_accuracy` the accuracy of always predicting the most common class (NaN if unknown), and
    `groups` are further rates, by group; each of their intervals has the level by itself.
    """

    rows: tuple[CertificateRow, ...]
    tolerance: float
    level: float
    n_units: int
    noise_std: float
    unit: str = "rows"
    data: str = "training rows"
    accuracy: Estimate | None = None
    majority_accuracy: float = math.nan
    warnings: tuple[str, ...] = ()
    groups: tuple[Estimate, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def all_held(self) -> bool:
        """Whether every constraint is held; True without constraints."""
        return all(row.verdict == HELD for row in self.rows)

    @property
    def verdict(self) -> str:
        """The verdict of all constraints together: missed if one is, held if all are."""
        verdicts = {row.verdict for row in self.rows}
        return next((verdict for verdict in (MISSED, CANNOT_TELL) if verdict in verdicts), HELD)

    @property
    def worst(self) -> CertificateRow | None:
        """Of the rows with the worst verdict, the one whose estimate exceeds its bound most."""
        verdict = self.verdict
        candidates = [row for row in self.rows if row.verdict == verdict]
        return max(candidates, key=lambda row: (row.resolved, row.excess), default=None)

    @property
    def summary(self) -> str:
        """One line: the decisive constraint, what was requested, what was reached, and the verdict."""
        row = self.worst
        if row is None:
            return "No constraints were requested."
        gaps = row.kind == "gap"
        parts = re.split(r" [<>]= ", row.name)  # bounds may be on either side of the quantity
        subject = "Largest gap" if gaps else parts[len(parts) == 3]
        asked = short(row.bounds[1]) if gaps else row.requested
        exact = row.half_width <= ROUNDING
        interval = f"population {_ends(row.population_interval)}" if exact else _ends(row.interval)
        reached = f"requested {asked}, reached {short(row.estimate)} ({interval})"
        if not row.resolved:
            subject, reached = row.name, "too few rows to measure it"
        line = f"{subject}: {reached}: {row.verdict} (tolerance {short(self.tolerance)})"
        counts = ((sum(r.verdict == v for r in self.rows), v) for v in (HELD, MISSED, CANNOT_TELL))
        together = f"; of {len(self)} constraints " + ", ".join(f"{c} {v}" for c, v in counts if c)
        return line + together if len(self) > 1 else line

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        yield self.summary
        for row in self.rows:
            yield f"  {row}"
            if row.remedy:
                yield f"    {row.remedy}"
        if self.accuracy is not None:
            beside = "" if math.isnan(self.majority_accuracy) else (
                f"; always predicting the most common class: {short(self.majority_accuracy)}"
            )  # fmt: skip
            yield f"Accuracy: {self.accuracy}{beside}"
        for estimate in self.groups:
            yield f"  {estimate.name}: {estimate}"
        for warning in self.warnings:
            yield f"Warning: {warning}"
        yield from self.notes
        yield (
            f"Intervals hold together with probability {show_number(self.level)} for the {self.n_units:,} "
            f"{self.unit} ({self.data}); population intervals also cover the sampling of these {self.unit}."
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"<Certificate: {self.summary}>"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head = ["constraint", "requested", "reached", "interval", "population interval", "verdict", "remedy"]
        body = []
        for row in self.rows:
            intervals = map(_ends, (row.interval, row.population_interval))
            body.append([row.name, row.requested, short(row.estimate), *intervals, row.verdict, row.remedy])
        return head, body

    def _repr_html_(self) -> str:
        rest = [line for line in self.lines() if line.startswith(("Accuracy", "Warning"))]
        table = html_table(*self._table(), self.summary)
        return table + "".join(f"<p>{html.escape(line)}</p>" for line in rest)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, fit for JSON."""
        data = plain_data(self)
        rows = data.pop("rows")
        return {"summary": self.summary, "verdict": self.verdict, **data, "constraints": rows}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Certificate:
        """Return the certificate that `to_dict` described."""
        try:
            rows, accuracy = [], description["accuracy"]
            for row in description["constraints"]:
                low, high = row["bounds"]
                bounds = -math.inf if low is None else float(low), math.inf if high is None else float(high)
                rows.append(_restored(CertificateRow, row, bounds=bounds))
            groups = tuple(_restored(Estimate, estimate) for estimate in description["groups"])
            accuracy = None if accuracy is None else _restored(Estimate, accuracy)
            found: Certificate = _restored(
                cls, description, rows=tuple(rows), groups=groups, accuracy=accuracy
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"this is no description of a certificate: {error!r}") from None
        return found


def short(value: float) -> str:
    """Return a rate with three decimals and without a leading zero, as in ``.048``.

    >>> short(0.048), short(0.05), short(-0.2), short(1.0), short(0.0)
    ('.048', '.05', '-.2', '1', '0')
    """
    if math.isnan(value):
        return "unknown"
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    if text in ("-0", "0", ""):
        return "0"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def _ends(interval: tuple[float, float]) -> str:
    return f"{short(interval[0])} to {short(interval[1])}"
