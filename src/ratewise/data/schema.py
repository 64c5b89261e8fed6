"""The public description of a table: what each column is, which values it may hold, what is to be predicted.

A schema holds no rows. A person writes it and declares that its bounds and values are public knowledge, or it
is drafted from the data (`draft_schema`) for a person to check and sign. Everything in it is an
optional declaration: what it leaves open is found by private releases.

A draft reports everything that it found. It accepts further tables from the same source: bounds have a margin and are
rounded outward, values that are rare or not listed count as "other", and every column may have missing cells.
Columns that cannot generalise (identifiers, constants, free text) are left out, and reported.

>>> schema = Schema(
...     {"age": Number(17, 90), "income": Number(), "job": Category(["clerk", "sales"])},
...     label="repaid",
...     classes=[False, True],
...     groups={"sex": Category(["Female", "Male"])},
... )
>>> schema.feature_bounds
{'age': (17.0, 90.0)}
>>> Schema.from_dict(schema.to_dict()) == schema
True
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ratewise import _validate
from ratewise.constraints.domain import Numeric, in_order, list_values
from ratewise.data.cells import (
    DEFAULT_FORMAT,
    NUMBER,
    UNPARSABLE,
    CellFormat,
    CellKind,
    ParsedNumbers,
    cell_kinds,
    code_cells,
    count_kinds,
    date_of_days,
    number_of,
    parse_number,
    parse_text,
    refuse_ambiguous,
    text_of,
)
from ratewise.data.table import Finding, named_columns
from ratewise.exceptions import InvalidInput, InvalidType

__all__ = ["Category", "Column", "Date", "Number", "Schema"]

_FIRST_DAY = -719162.0  # 0001-01-01
_LAST_DAY = 2932896.0  # 9999-12-31

# ----------------------------------------------------------------------------------------------- columns


class _Declaration:
    """Shared by columns and schemas: compared by what is written, so that 1, 1.0 and True differ."""

    def _written(self) -> dict[str, Any]:
        """Return the fields that say something."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}  # type: ignore[arg-type]
        empty: tuple[Any, ...] = (None, "", (), {}, DEFAULT_FORMAT)
        return {name: value for name, value in values.items() if value not in empty}

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self._written().items())
        return f"{type(self).__name__}({said})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


class _Column(_Declaration):
    type: ClassVar[str]
    title: str | None

    def __post_init__(self) -> None:
        if self.title is not None and (not isinstance(self.title, str) or not self.title.strip()):
            raise InvalidType(f"title must be text, got {self.title!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without what is None; dates are ISO dates."""
        return {"type": self.type, **_listed(self._written())}


def _listed(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


@dataclass(frozen=True, eq=False, repr=False)
class Number(_Column):
    """A column of numbers, clipped to public bounds. Dates and durations are numbers of days.

    A cell that holds no number is missing; `ratewise.data.cells.parse_number` defines how cells are read.

    Parameters
    ----------
    lower, upper : float, date or None
        Public bounds. None leaves a bound to be found privately, at a price.
    title : str or None
        What the column is called in reports.
    """

    type: ClassVar[str] = "number"
    lower: float | None = None
    upper: float | None = None
    title: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lower", "upper"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, self._bound(name, value))
        if self.lower is None or self.upper is None:
            return
        if not self.lower < self.upper:
            raise InvalidInput(f"lower must be below upper, got {self!r}")
        if not math.isfinite(self.upper - self.lower):
            raise InvalidInput(f"lower and upper are too far apart to be scaled, got {self!r}")

    def _bound(self, name: str, value: Any) -> float:
        if cell_kinds([value])[0] in (CellKind.DATE, CellKind.DURATION):
            return number_of(value)[0]
        return _validate.real(**{name: value})

    @property
    def bounded(self) -> bool:
        """Whether both bounds are declared."""
        return self.lower is not None and self.upper is not None


@dataclass(frozen=True, eq=False, repr=False)
class Date(Number):
    """A column of dates, read as days since 1970-01-01 and clipped to public bounds.

    Parameters
    ----------
    lower, upper : date, ISO text, number of days, or None
    title : str or None
    """

    type: ClassVar[str] = "date"

    def _bound(self, name: str, value: Any) -> float:
        days, code = number_of(value)
        if code != NUMBER or isinstance(value, bool) or not _FIRST_DAY <= days <= _LAST_DAY + 1:
            raise InvalidInput(f"{name} must be a date such as '2020-12-31', got {value!r}")
        return days

    def _written(self) -> dict[str, Any]:
        said = super()._written()
        return said | {name: date_of_days(said[name]) for name in ("lower", "upper") if name in said}


@dataclass(frozen=True, eq=False, repr=False)
class Category(_Column):
    """A column of values from a list; every other value is "other". True and false are a category, too.

    Cells and declared values are compared by their canonical text (`ratewise.data.cells.text_of`), so that
    1, 1.0 and "1" are one value.

    Parameters
    ----------
    values : iterable of text, whole numbers, numbers or booleans, or None
        Each once; the order is that of the encoded columns. None leaves the values to be found privately.
    title : str or None
        What the column is called in reports.
    labels : mapping or None
        What values are called in reports: ``{3: "American Indian"}``.
    """

    type: ClassVar[str] = "category"
    values: Any = None
    title: str | None = None
    labels: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        values = () if self.values is None else _plain_values("values", self.values)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "labels", _value_labels(self.labels, values))


Column = Number | Category

_TYPES: dict[Any, Any] = {
    **dict.fromkeys(("number", "continuous", "numeric"), Number),
    **dict.fromkeys(("date", "datetime"), Date),
    **dict.fromkeys(("category", "categorical", "binary", "boolean"), Category),
}


def _plain_values(name: str, values: Any) -> tuple[Any, ...]:
    """Return distinct plain scalars; text alone is refused, being a list of letters."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidType(f"{name} must be a list of values, got {type(values).__name__}")
    items = [value.item() if isinstance(value, np.generic) else value for value in values]
    for item in items:
        if not isinstance(item, str | bool | int | float):
            raise InvalidType(
                f"{name} must hold text, numbers or booleans, got {type(item).__name__}; convert the column"
            )
        if isinstance(item, float) and not math.isfinite(item):
            raise InvalidInput(f"{name} must hold finite numbers, got {item!r}")
    refuse_ambiguous(name, items)
    if not items:
        raise InvalidInput(f"{name} must hold at least one value, got none")
    return tuple(items)


def _value_labels(labels: Any, values: Iterable[Any]) -> dict[str, str]:
    """Return names of values by canonical text, after checking that such values are declared."""
    if labels is None:
        return {}
    if not isinstance(labels, Mapping) or not all(isinstance(label, str) for label in labels.values()):
        raise InvalidType(f"labels must map values to text, got {labels!r}")
    known = {text_of(value) for value in values}
    unknown = [value for value in labels if known and text_of(value) not in known]
    if unknown:
        raise InvalidInput(f"labels names {list_values(unknown)}, which is none of the declared values")
    return {text_of(value): label for value, label in labels.items()}


# -------------------------------------------------------------------------------------------- the schema


FORMAT = "ratewise-schema"
VERSION = 1
_TEXTS = ("name", "note")
_LABEL = {  # fields of the table "label" of plain data, and the arguments that they are
    "name": "label",
    "classes": "classes",
    "positive": "positive",
    "title": "title",
    "labels": "class_labels",
}


@dataclass(frozen=True, eq=False, repr=False)
class Schema(_Declaration):
    """What is public about a table; immutable, compared by value, and usable as a key.

    Parameters
    ----------
    columns : mapping of name to Number, Date or Category
        The features, in the order in which a model sees them.
    label : str
        Name of the column to predict; never a feature.
    classes : iterable or None
        The possible labels, at least two. None leaves them to be found privately.
    groups : mapping of name to Number, Date or Category, or iterable of names of `columns`
        Sensitive columns, which constraints may read. They are no features unless `columns` lists them too.
    signed : bool
        Whether a person vouches that all of this is public. What an unsigned schema says counts as leaked.
    positive : value or None
        The class that rates such as "false negative rate" are about.
    privacy_id : str or None
        Column that identifies the unit of privacy; its rows are protected together. Never a feature.
    leave_out : iterable of str
        Columns of the table that are not used.
    class_labels : mapping or None
        What classes are called in reports: ``{1: "repaid", 0: "defaulted"}``.
    cell_format : CellFormat
        How numbers and dates are written in text cells.
    title, name, note : str
        What the label is called in reports; a name of the table; a remark.
    """

    columns: dict[str, Column]
    _: KW_ONLY
    label: str
    classes: Any = None
    groups: Any = ()
    signed: bool = True
    positive: Any = None
    privacy_id: str | None = None
    leave_out: Any = ()
    class_labels: Any = None
    cell_format: CellFormat = DEFAULT_FORMAT
    title: str = ""
    name: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        features = _described("columns", self.columns)
        if not features:
            raise InvalidInput("columns must describe at least one feature, got none")
        classes = () if self.classes is None else tuple(in_order(_plain_values("classes", self.classes)))
        if len(classes) == 1:
            raise InvalidInput(f"classes must hold at least two values, got {list_values(classes)}")
        positive = self.positive
        if positive is not None and classes:
            place = int(code_cells([positive], classes)[0])
            if place < 0:
                raise InvalidInput(f"positive must be one of the classes ({list_values(classes)}), got {positive!r}")
            positive = classes[place]
        normalised = {
            "columns": features,
            "classes": classes,
            "groups": _groups(self.groups, features),
            "positive": positive,
            "leave_out": _names("leave_out", self.leave_out),
            "class_labels": _value_labels(self.class_labels, classes),
        }
        for name, value in normalised.items():
            object.__setattr__(self, name, value)
        if not isinstance(self.signed, bool):
            raise InvalidType(f"signed must be True or False, got {self.signed!r}")
        if not isinstance(self.cell_format, CellFormat):
            raise InvalidType(f"cell_format must be a CellFormat, got {type(self.cell_format).__name__}")
        for name in ("title", *_TEXTS):
            if not isinstance(getattr(self, name), str):
                raise InvalidType(f"{name} must be text, got {getattr(self, name)!r}")
        self._refuse_two_roles()

    def _refuse_two_roles(self) -> None:
        person = [] if self.privacy_id is None else [self.privacy_id]
        roles = {"the label": [self.label], "the privacy id": person, "left out": self.leave_out}
        _check_roles({**roles, "among the columns or groups": {**self.columns, **self.groups}})

    # --- what it says ----------------------------------------------------------------------------------

    @property
    def feature_bounds(self) -> dict[str, tuple[float, float]]:
        """Bounds of the continuous and date features that have both; dates are days since 1970-01-01."""
        numbers = {name: column for name, column in self.columns.items() if isinstance(column, Number)}
        return {
            name: (column.lower, column.upper)
            for name, column in numbers.items()
            if column.lower is not None and column.upper is not None
        }

    @property
    def categories(self) -> dict[str, tuple[Any, ...]]:
        """Values of the categorical features that declare them."""
        values = {name: getattr(column, "values", ()) for name, column in self.columns.items()}
        return {name: listed for name, listed in values.items() if listed}

    @property
    def group_values(self) -> dict[str, Any]:
        """Values of each sensitive column, or ``Numeric()``; columns that leave them open are not listed."""
        values = {name: getattr(column, "values", Numeric()) for name, column in self.groups.items()}
        return {name: listed for name, listed in values.items() if listed != ()}

    def title_of(self, name: str) -> str:
        """Return what a column is called in reports: its title, or its name."""
        column = self if name == self.label else self.columns.get(name) or self.groups.get(name)
        return getattr(column, "title", None) or name

    def value_label(self, name: str, value: Any) -> str:
        """Return a value of a column for reports: "3: American Indian", or the value alone.

        >>> race = Category([1, 3], labels={3: "American Indian"})
        >>> Schema({"RAC1P": race}, label="y", classes=[0, 1]).value_label("RAC1P", 3.0)
        '3: American Indian'
        """
        column = self.columns.get(name) or self.groups.get(name)
        labels = self.class_labels if name == self.label else getattr(column, "labels", {})
        text = text_of(value)
        return f"{text}: {labels[text]}" if text in labels else str(value)

    @property
    def leaks(self) -> tuple[str, ...]:
        """What an unsigned schema reveals, in words; nothing once it is signed."""
        if self.signed:
            return ()
        found = ["the classes"] if self.classes else []
        for name, column in {**self.groups, **self.columns}.items():
            if isinstance(column, Category):
                found += [f"the values of column {name!r}"] if column.values else []
            elif column.lower is not None or column.upper is not None:
                found.append(f"the bounds of column {name!r}")
        return tuple(found)

    def replace(self, **changes: Any) -> Schema:
        """Return the same schema with other arguments where they are given."""
        return Schema(**{**self._written(), "signed": self.signed, **changes})

    # --- plain data ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain data without None, fit for JSON and TOML; `from_dict` reads it back."""
        plain = _listed(self._written())
        found: dict[str, Any] = {"format": FORMAT, "version": VERSION, "signed": self.signed}
        found |= {name: plain[name] for name in (*_TEXTS, "privacy_id", "leave_out") if name in plain}
        if "cell_format" in plain:
            cells = {name: value for name, value in vars(self.cell_format).items() if value is not None}
            found["cells"] = {**cells, "missing": list(self.cell_format.missing)}
        found["label"] = {key: plain[argument] for key, argument in _LABEL.items() if argument in plain}
        for name, described in (("groups", self.groups), ("columns", self.columns)):
            found[name] = {key: column.to_dict() for key, column in described.items()}
        return found

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Schema:
        """Read what `to_dict` wrote, or what a person wrote by hand.

        By hand, `label` may be the name alone, with `classes` and `positive` beside it, and `groups` may be a
        list of names of columns.

        Raises
        ------
        InvalidInput, InvalidType
            A field is missing, unknown or of the wrong kind; the message says where.
        """
        optional = ("format", "version", "classes", "positive", "groups", "cells", "leave_out", "privacy_id")
        fields = _fields("a schema", description, ("signed", "label", "columns"), (*optional, *_TEXTS))
        if fields.pop("format", FORMAT) != FORMAT:
            raise InvalidInput(f"format must be {FORMAT!r}, got {description['format']!r}")
        version = fields.pop("version", VERSION)
        if version != VERSION or isinstance(version, bool):
            raise InvalidInput(f"version must be {VERSION}, got {version!r}; read it with a newer ratewise")
        label = fields.pop("label")
        label = _fields("label", {"name": label} if isinstance(label, str) else label, ("name",), _LABEL)
        fields |= {_LABEL[key]: value for key, value in label.items()}
        fields["signed"] = truth("signed", fields["signed"])
        cells = _fields("cells", fields.pop("cells", {}), (), vars(DEFAULT_FORMAT))
        if not isinstance(fields["columns"], Mapping):
            given = type(fields["columns"]).__name__
            raise InvalidType(f"columns must be a table of columns by name, got {given}")
        for name in ("columns", "groups"):
            described = fields.get(name, {})
            if isinstance(described, Mapping):
                fields[name] = {key: _column_from(f"{name}.{key}", item) for key, item in described.items()}
        return cls(**fields, cell_format=CellFormat(**cells))


def _fields(what: str, description: Any, needed: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a table of plain data, after checking their names."""
    if not isinstance(description, Mapping):
        raise InvalidType(f"{what} must be a table of named fields, got {type(description).__name__}")
    for name in needed:
        if name not in description:
            hint = "; write signed = true once a person has checked that every bound and value is public"
            raise InvalidInput(f"{what} lacks the field {name!r}{hint if name == 'signed' else ''}")
    unknown = [name for name in description if name not in needed and name not in optional]
    if unknown:
        raise InvalidInput(f"{what} has unknown fields: {list_values(unknown)}")
    return dict(description)


def truth(what: str, value: Any) -> bool:
    """Return a boolean, also if it is written as "yes" or "no".

    >>> truth("signed", "yes")
    True
    """
    if isinstance(value, str) and value.strip().lower() in ("yes", "true", "on", "no", "false", "off"):
        return value.strip().lower() in ("yes", "true", "on")
    if not isinstance(value, bool):
        raise InvalidType(f"{what} must be true or false, got {value!r}")
    return value


def _column_from(what: str, description: Any) -> Column:
    """Return the column that plain data describe; errors say which column is meant by `what`."""
    kind = description.get("type") if isinstance(description, Mapping) else None
    make = _TYPES.get(kind) if isinstance(kind, str) else None
    known = [item.name for item in dataclasses.fields(make)] if make else description
    fields = _fields(what, description, ("type",), known)
    if make is None:
        raise InvalidInput(f"{what}: type must be 'number', 'date' or 'category', got {kind!r}")
    del fields["type"]
    try:
        found: Column = make(**fields)
    except (InvalidInput, InvalidType) as problem:
        raise type(problem)(f"{what}: {problem}") from None
    return found


def _names(what: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidType(f"{what} must be a list of names, got {names!r}")
    listed = tuple(names)
    for name in listed:
        if not isinstance(name, str) or not name:
            raise InvalidType(f"{what} must be the name of a column, text that is not empty; got {name!r}")
    return tuple(dict.fromkeys(listed))


def _described(what: str, columns: Any) -> dict[str, Column]:
    if not isinstance(columns, Mapping):
        raise InvalidType(
            f"{what} must map names to Number(...), Date(...) or Category(...), got {type(columns).__name__}"
        )
    for name, column in zip(_names(what, columns.keys()), columns.values(), strict=True):
        if not isinstance(column, Number | Category):
            raise InvalidType(
                f"{what}[{name!r}] must be Number(lower, upper), Date(lower, upper) or Category(values), got {column!r}"
            )
    return dict(columns)


def _groups(groups: Any, features: Mapping[str, Column]) -> dict[str, Column]:
    if not isinstance(groups, Mapping):
        named = _names("groups", groups)
        for name in named:
            if name not in features:
                raise InvalidInput(
                    f"group {name!r} is not among the columns ({list_values(features)}); describe it with "
                    f"groups={{{name!r}: Category([...])}}"
                )
        return {name: features[name] for name in named}
    described = _described("groups", groups)
    for name in features.keys() & described.keys():
        first, second = features[name], described[name]
        if type(first) is not type(second) or (isinstance(first, Category) and first != second):
            raise InvalidInput(f"column {name!r} is described in columns and in groups, and differently")
    return described


# ---------------------------------------------------------------------------------------------- drafting


MOST_CLASSES = 50  # distinct labels up to which a column is taken for classes
MOST_VALUES = 1000  # listed values of a category; others are "other"
FEW_NUMBERS = 10  # distinct whole numbers up to which a sensitive column is taken for groups
_TYPED = 0.95  # share of numbers, or dates, from which a column is one of numbers, or dates
_RARE = 5  # rows from which a value is listed, in tables of 100 times as many rows
_LARGEST = 1e300  # beyond, widths of ranges overflow
_MARGIN = 0.1  # of the range, on either side of the bounds
_SUMMARIES = {  # of what concerns several columns alike
    "missing": "Cells without a value: {}. They stay missing; nothing is filled in.",
    "few_values": "Whole numbers with few values are taken for numbers: {}. If they are codes, write "
    'type = "category" and list the values.',
    "rare": "Values of few rows are not listed and count as other: {}.",
}
_IDENTIFIER = re.compile(
    r"(?:^|[_\W])(?:id|uid|uuid|guid|ssn|person|customer|client|member|subject|patient|respondent|record|case|index|rownames?|serial)"
    r"(?:[_\W]*(?:id|no|nr|num|number))?[_\W]*$|#$|(?<=[a-z])I[Dd]$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Draft:
    """A drafted schema, not signed, and what was found on the way."""

    schema: Schema
    findings: tuple[Finding, ...]


def draft_schema(
    frame: Any,
    *,
    label: str,
    groups: Collection[str] = (),
    leave_out: Collection[str] = (),
    features: Collection[str] | None = None,
    privacy_id: str | None = None,
    positive: Any = None,
    cell_format: CellFormat = DEFAULT_FORMAT,
) -> Draft:
    """Return a schema read off the data, and everything that was found.

    `groups` are the sensitive columns, which are not made features. Without `features`, all columns that can be used
    are features; a column named there is used even if it looks like an identifier. `positive` is the class that rates
    are about. If the table cannot be used for lack of decisions, one `InvalidInput` lists all of them.
    """
    columns = named_columns(frame, "frame")
    person = () if privacy_id is None else (privacy_id,)
    roles = {"the label": (label,), "among the groups": groups, "left out": leave_out}
    roles |= {"among the features": features or (), "the privacy id": person}
    _check_roles(roles, columns)
    notes: dict[str, list[str]] = {topic: [] for topic in _SUMMARIES}
    findings: list[Finding] = []

    def cells(name: str) -> _Cells:  # not kept: what is known of a column may be as large as the column
        return _Cells(name, columns[name], cell_format, notes, findings)

    classes = cells(label).classes()
    sensitive = {name: cells(name).group() for name in groups}
    described: dict[str, Column] = {}
    left_out = [*leave_out]
    for name in columns:
        if name in (label, *groups, *leave_out, *person):
            continue
        wanted = features is not None and name in features
        found = cells(name).feature(wanted) if features is None or wanted else None
        if found is None:
            left_out.append(name)
        else:
            described[name] = found
    if not described:
        said = "No column is left to predict from; name some of the columns."
        findings.append(Finding("features", said, "features", severe=True))
    findings += [Finding(topic, _SUMMARIES[topic].format(", ".join(of))) for topic, of in notes.items() if of]
    severe = " ".join(str(finding) for finding in findings if finding.severe)
    if severe:
        others = " ".join(str(finding) for finding in findings if not finding.severe)
        raise InvalidInput(f"decisions are needed: {severe}{others and f' Also found: {others}'}")
    schema = Schema(
        described,
        label=label,
        classes=classes,
        groups=sensitive,
        signed=False,
        positive=positive,
        privacy_id=privacy_id,
        leave_out=left_out,
        cell_format=cell_format,
    )
    return Draft(schema, tuple(findings))


def _check_roles(roles: Mapping[str, Any], columns: Collection[str] | None = None) -> None:
    """Raise one error that lists names with two roles, and those that are no `columns`, if these are given."""
    problems = []
    seen: dict[str, str] = {}
    for role, names in roles.items():
        for name in _names(f"a column ({role})", [names] if isinstance(names, str) else names):
            if columns is not None and name not in columns:
                problems.append(f"frame has no column {name!r}; its columns are {list_values(columns)}")
            if seen.setdefault(name, role) != role:
                problems.append(f"column {name!r} is both {seen[name]} and {role}; choose one")
    if problems:
        raise InvalidInput("; ".join(problems))


class _Cells:
    """One column of a draft: what its cells are and how often, and what was found."""

    def __init__(
        self, name: str, data: Any, cell_format: CellFormat, notes: dict[str, list[str]], findings: list[Finding]
    ) -> None:
        self._name, self._data, self._format = name, data, cell_format
        self._notes, self._findings = notes, findings

    @cached_property
    def _kinds(self) -> list[int]:
        """The number of cells of each `CellKind`."""
        return list(map(int, count_kinds(self._data, self._format)))

    @cached_property
    def _texts(self) -> Counter[str]:
        """How often each value occurs."""
        found = Counter(parse_text(self._data, self._format).tolist())
        del found[""]
        return found

    @cached_property
    def _numbers(self) -> ParsedNumbers:
        return parse_number(self._data, self._format)

    @cached_property
    def _distinct(self) -> NDArray[np.float64]:
        return np.unique(self._numbers.values[~np.isnan(self._numbers.values)])

    @cached_property
    def _type(self) -> CellKind | None:
        """Whether nearly all cells with a value are numbers, dates or durations; None for categories."""
        known = sum(self._kinds) - self._kinds[CellKind.MISSING] - self._kinds[CellKind.WORD]
        for kind in (CellKind.NUMBER, CellKind.DATE, CellKind.DURATION):
            if known and self._kinds[kind] >= _TYPED * known:
                return kind
        return None

    @property
    def _whole(self) -> bool:
        return bool(np.all(self._distinct == np.round(self._distinct)))

    def _values(self, found: Iterable[str]) -> list[Any]:
        """Return values in order, of the type that they have in the data: text, booleans or numbers."""
        texts = list(found)
        sample = [cell for cell in list(self._data[:100]) if text_of(cell)]
        numbers = parse_number(texts, self._format)
        if any(isinstance(cell, str) for cell in sample) or np.any(numbers.codes != NUMBER):
            return sorted(texts)
        ordered = np.sort(numbers.values).tolist()
        if sample and all(isinstance(cell, bool | np.bool_) for cell in sample):
            return [bool(value) for value in ordered]
        return [int(value) if value.is_integer() else value for value in ordered]

    def _say(self, topic: str, message: str, option: str | None = None, severe: bool = False) -> None:
        self._findings.append(Finding(topic, message, option, self._name, severe))

    def classes(self) -> list[Any]:
        """Return the classes of the label."""
        found, known = self._texts, self._texts.total()
        if known < len(self._data):
            gaps = _rows(len(self._data) - known)
            self._say("label", f"{gaps} of column {self._name!r} without a label: not used for training.")
        if len(found) < 2:
            said = f"The label {self._name!r} has the same value in every row; a classifier needs two classes."
            self._say("label", said, "label", severe=True)
        elif len(found) > MOST_CLASSES or (known >= 20 and len(found) > 0.5 * known):
            said = f"The label {self._name!r} has {len(found)} different values in {_rows(known)}; choose a column of "
            self._say("label", said + "classes, or cut the numbers into a few ranges.", "label", severe=True)
        elif len(self._data) >= 100 and (rare := sum(count < _RARE for count in found.values())):
            self._say("label", f"{rare} of the {len(found)} classes have fewer than {_RARE} rows.")
        return self._values(found)

    def group(self) -> Column | None:
        """Return a sensitive column: groups if its values are few, else a number or a date."""
        name, found = f"sensitive column {self._name!r}", dict(self._texts)
        self._note_missing()
        if not found:
            said = f"The {name} holds nothing but missing cells."
            self._say("groups", said, "groups", severe=True)
            return None
        if self._texts.total() < len(self._data):
            self._say("groups", f"Rows without a value of the {name} belong to none of its groups.")
        if self._type is not None:
            if self._type != CellKind.NUMBER or len(self._distinct) > FEW_NUMBERS or not self._whole:
                return self._number()
            found = dict.fromkeys(map(text_of, self._distinct.tolist()), 0)
        if len(found) > MOST_VALUES:
            said = f"The {name} has {len(found)} different values; merge them into groups."
            self._say("groups", said, "groups", severe=True)
            return None
        return Category(self._values(found))

    def feature(self, wanted: bool) -> Column | None:
        """Return what a feature is; None if it is left out."""
        reason = self._reason_to_leave_out(wanted)
        if reason is not None:
            topic, why, option = reason
            self._say(topic, f"Column {self._name!r} {why}; it is left out.", option)
            return None
        self._note_missing()
        if self._type is None:
            rare = len(self._texts) - len(self._common)
            self._notes["rare"] += [f"{self._name} ({rare})"] if rare else []
            return Category(self._values(self._common))
        distinct = self._distinct.tolist()
        if distinct in ([0.0, 1.0], [1.0, 2.0]):
            return Category(self._values(map(text_of, distinct)))
        if len(distinct) <= 20 and self._type == CellKind.NUMBER and self._whole:
            self._notes["few_values"].append(repr(self._name))
        return self._number()

    @property
    def _common(self) -> list[str]:
        """The values that are frequent enough to be listed."""
        least = min(_RARE, max(1, len(self._data) // 100))
        return [text for text, count in self._texts.most_common(MOST_VALUES) if count >= least]

    def _reason_to_leave_out(self, wanted: bool) -> tuple[str, str, str] | None:
        """Return topic, reason and option if the column is no feature; identifiers are, if the user asks for them."""
        known = sum(self._kinds) - self._kinds[CellKind.MISSING]
        found: tuple[str, str] | None = None
        if not known or self._kinds[CellKind.UNREADABLE] == known:
            found = ("empty", f"holds {'lists or other nested values' if known else 'nothing but missing cells'}")
        elif len(self._texts if self._type is None else self._distinct) == 1:
            found = "constant", "has the same value in every row"
        elif self._type == CellKind.NUMBER and not wanted:
            return self._number_identifies()
        elif self._type is None:
            found = None if wanted else self._text_identifies()
            if found is None and len(self._common) < 2:
                found = "free_text", f"has {len(self._texts)} values, nearly all of them rare"
        return None if found is None else (*found, "features")

    def _text_identifies(self) -> tuple[str, str] | None:
        found, known = self._texts, self._texts.total()
        share = len(found) / known
        if known < 20 or share <= 0.5:
            return None
        length = np.mean([len(text) for text in found])
        words = np.mean([text.count(" ") for text in found])
        if length > 40 or words >= 3:
            return "free_text", "holds free text, different in most rows"
        numbered = np.mean([re.search(r"\d{3}", text) is not None for text in found]) > 0.9
        if share > 0.9 or _IDENTIFIER.search(self._name) or numbered:
            return "identifier", "identifies rows, as names and case numbers do"
        return None

    def _number_identifies(self) -> tuple[str, str, str] | None:
        known = self._numbers.values[~np.isnan(self._numbers.values)]
        named = _IDENTIFIER.search(self._name) is not None
        if not self._whole or len(known) < 20:
            return None
        steps = np.diff(np.clip(known, -_LARGEST, _LARGEST))
        if len(self._distinct) == len(known) and (named or np.all(steps == 1)):
            return "identifier", "numbers the rows", "features"
        if named and len(self._distinct) >= 20:
            said = "looks like an identifier of persons with several rows each (if so, name it as the unit of privacy)"
            return "identifier", said, "privacy_id"
        return None

    def _number(self) -> Number:
        name, values = f"column {self._name!r}", self._numbers.values
        odd, infinite = int(np.sum(self._numbers.codes == UNPARSABLE)), int(np.sum(np.isinf(values)))
        if odd:
            what = "dates" if self._type == CellKind.DATE else "numbers"
            said = f"In {_rows(odd)} {name} holds text instead of {what}, which counts as missing."
            self._say("unparsable", said)
        if infinite:
            said = f"In {_rows(infinite)} {name} holds infinite values, which are clipped to the bounds."
            self._say("infinite", said)
        known = values[np.isfinite(values)]
        if not len(known):
            return Number()
        lower, upper = float(known.min()), float(known.max())
        if self._type == CellKind.DATE:
            return Date(*_rounded_dates(lower, upper))
        if max(abs(lower), abs(upper)) > _LARGEST:
            self._say("bounds", f"Some values of {name} are too large for bounds, which are left open.")
            return Number()
        return Number(*rounded_bounds(lower, upper))

    def _note_missing(self) -> None:
        gaps = self._kinds[CellKind.MISSING] + (0 if self._type is None else self._kinds[CellKind.WORD])
        if gaps:
            self._notes["missing"].append(f"{self._name} {gaps} ({gaps / sum(self._kinds):.0%})")


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def rounded_bounds(lower: float, upper: float) -> tuple[float, float]:
    """Return bounds of moderate numbers (at most 1e300) with a margin, rounded outward; signs are kept.

    >>> rounded_bounds(17, 90)
    (0.0, 100.0)
    >>> rounded_bounds(0.12, 0.97)
    (0.0, 1.1)
    """
    width = upper - lower
    if width <= 0:
        width = max(abs(upper), 1.0)
    step = 10.0 ** math.floor(math.log10(width))
    if step < 1e-290:  # the smallest numbers cannot be rounded
        return lower, math.nextafter(upper, math.inf)
    low = math.floor((lower - _MARGIN * width) / step) * step
    high = math.ceil((upper + _MARGIN * width) / step) * step
    if lower >= 0:
        low = max(low, 0.0)
    if upper <= 0 and lower < 0:
        high = min(high, 0.0)
    digits = max(0, 1 - math.floor(math.log10(step)))
    low, high = round(low, digits), round(high, digits)  # 3 * 0.1 is .30000000000000004
    if not low <= lower <= upper <= high or low == high:  # the range is within rounding
        return lower, math.nextafter(upper, math.inf)
    return low, high


def _rounded_dates(lower: float, upper: float) -> tuple[float, float]:
    """Return the first day of a year and the last day of a year around the dates, with a margin."""
    width = max(upper - lower, 1.0)
    ends = (lower - _MARGIN * width, upper + _MARGIN * width)
    first, last = (date_of_days(min(max(days, _FIRST_DAY), _LAST_DAY)) for days in ends)
    return number_of(f"{first[:4]}-01-01")[0], number_of(f"{last[:4]}-12-31")[0]
