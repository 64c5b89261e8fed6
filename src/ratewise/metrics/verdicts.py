"""What is certified about a model's predictions: one row and one verdict per requested constraint.

For a constraint ``value <= bound`` with the interval ``(low, high)`` of its value, the verdict is

================  =====================================================================
``held``          if ``high <= bound + tolerance``
``missed``        if it is not held and ``low > bound``
``cannot tell``   otherwise, and if a group has too few rows beside the noise
================  =====================================================================

A verdict is about the rows that were counted: training rows, a private hold-out or a public table, whose counts are exact
and whose interval is one number. How far the people in general may differ from these rows is said by the population
interval. `ratewise.training.certificate.certify` is the only caller of `verdict_of`, for Python, the command line, reports
and JSON.
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


def plain(number: float) -> float | None:
    """Return the number, or None for NaN, which JSON does not know."""
    return None if math.isnan(number) else number


def number(value: float) -> str:
    """Return a rate as text; a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.4f}"


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


# ------------------------------------------------------------------------------------------------ verdicts


Row = TypeVar("Row")


class RowSequence(Sequence[Row]):
    """A sequence of the `rows` of a table."""

    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; NaN becomes None."""
        return _plain_data(self)

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Estimate:
        """Return the estimate that `to_dict` described."""
        low, high = (_number(end) for end in description["interval"])
        return cls(str(description["name"]), _number(description["value"]), (low, high))

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "unknown"
        return f"{short(self.value)} ({short(self.interval[0])} to {short(self.interval[1])})"


@dataclass(frozen=True)
class CertificateRow:
    """One requested constraint; a two-sided constraint is one row.

    Attributes
    ----------
    name : str
    family : str or None
        The family that it was declared by.
    kind : "gap", "<=", ">=" or "within"
        ``gap``: the absolute value of a difference is bounded, and `estimate` and `interval` are about it.
    bounds : (float, float)
        Smallest and largest value requested, infinite where there is none.
    estimate : float
        Private estimate of the value (of the gap) on the rows; always inside `interval`.
    interval, population_interval : (float, float)
        Simultaneous intervals for the rows, and for the population that they were drawn from.
    verdict : "held", "missed" or "cannot tell"
    remedy : str
        What would help, if the constraint is not held; otherwise empty.
    resolved : bool
        Whether there are rows enough to measure it; otherwise estimate and intervals say nothing.
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; infinite bounds become None."""
        return _plain_data(self)

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> CertificateRow:
        """Return the row that `to_dict` described."""
        low, high = description["bounds"]
        family = description["family"]
        return cls(
            name=str(description["name"]),
            family=None if family is None else str(family),
            kind=str(description["kind"]),
            bounds=(-math.inf if low is None else float(low), math.inf if high is None else float(high)),
            estimate=float(description["estimate"]),
            interval=_pair(description["interval"]),
            population_interval=_pair(description["population_interval"]),
            verdict=str(description["verdict"]),
            remedy=str(description["remedy"]),
            resolved=bool(description["resolved"]),
        )

    def __str__(self) -> str:
        population = _ends(self.population_interval)
        if not self.resolved:
            return f"{self.verdict}: {self.name}: too few rows to measure it"
        return (
            f"{self.verdict}: {self.name}: reached {short(self.estimate)} ({_ends(self.interval)}); "
            f"population {population}"
        )

    @property
    def subject(self) -> str:
        """The bounded quantity as text, without its bounds."""
        parts = re.split(r" [<>]= ", self.name)
        return parts[1] if len(parts) == 3 else parts[0]


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(RowSequence[CertificateRow]):
    """What is certified about the predictions of one model on some rows; made by `certify`.

    A sequence of `CertificateRow`, one per requested constraint. ``str()`` starts with `summary`.

    Attributes
    ----------
    rows : tuple of CertificateRow
    tolerance : float
        A constraint counts as held if the upper end of its interval is at most the bound plus this.
    level : float
        Probability, over the noise, that all intervals contain the true values.
    n_units : int
        Public number of units.
    unit : str
        What a unit is, in the plural: rates are over these.
    data : str
        What was counted, such as "training rows".
    accuracy : Estimate or None
    majority_accuracy : float
        Accuracy of always predicting the most common class; NaN if unknown.
    warnings : tuple of str
    noise_std : float
        Standard deviation of the noise on each count.
    groups : tuple of Estimate
        Further rates, by group; each interval has the level by itself.
    notes : tuple of str
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
        subject = "Largest gap" if gaps else row.subject
        asked = short(row.bounds[1]) if gaps else row.requested
        exact = row.half_width <= ROUNDING
        interval = f"population {_ends(row.population_interval)}" if exact else _ends(row.interval)
        reached = f"requested {asked}, reached {short(row.estimate)} ({interval})"
        if not row.resolved:
            subject, reached = row.name, "too few rows to measure it"
        line = f"{subject}: {reached}: {row.verdict}"
        line += f" (tolerance {short(self.tolerance)})"
        if len(self) > 1:
            counts = ((sum(r.verdict == v for r in self.rows), v) for v in (HELD, MISSED, CANNOT_TELL))
            line += "; of " + f"{len(self)} constraints " + ", ".join(f"{c} {v}" for c, v in counts if c)
        return line

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

    def _repr_html_(self) -> str:
        head = ["constraint", "requested", "reached", "interval", "population interval", "verdict", "remedy"]
        body = [
            [
                row.name,
                row.requested,
                short(row.estimate),
                *(f"{short(low)} to {short(high)}" for low, high in (row.interval, row.population_interval)),
                row.verdict,
                row.remedy,
            ]
            for row in self.rows
        ]
        rest = [line for line in self.lines() if line.startswith(("Accuracy", "Warning"))]
        table = html_table(head, body, self.summary)
        return table + "".join(f"<p>{html.escape(line)}</p>" for line in rest)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, fit for JSON."""
        data = _plain_data(self)
        rows = data.pop("rows")
        return {"summary": self.summary, "verdict": self.verdict, **data, "constraints": rows}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Certificate:
        """Return the certificate that `to_dict` described."""
        try:
            accuracy = description["accuracy"]
            return cls(
                rows=tuple(CertificateRow.from_dict(row) for row in description["constraints"]),
                tolerance=float(description["tolerance"]),
                level=float(description["level"]),
                n_units=int(description["n_units"]),
                noise_std=float(description["noise_std"]),
                unit=str(description["unit"]),
                data=str(description["data"]),
                accuracy=None if accuracy is None else Estimate.from_dict(accuracy),
                majority_accuracy=_number(description["majority_accuracy"]),
                warnings=tuple(map(str, description["warnings"])),
                groups=tuple(Estimate.from_dict(estimate) for estimate in description["groups"]),
                notes=tuple(map(str, description["notes"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"this is no description of a certificate: {error!r}") from None


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


def _plain_data(record: Any) -> dict[str, Any]:
    """Return a dataclass as plain data, fit for JSON: numbers that are not finite become None."""
    return {field.name: _plain_value(getattr(record, field.name)) for field in fields(record)}


def _plain_value(value: Any) -> Any:
    if is_dataclass(value):
        return _plain_data(value)
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _pair(ends: Sequence[Any]) -> tuple[float, float]:
    low, high = ends
    return float(low), float(high)
