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
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ratewise import _validate
from ratewise.constraints.domain import Numeric, in_order, list_values, show_number
from ratewise.data.cells import (
    DEFAULT_FORMAT,
    NUMBER,
    UNPARSABLE,
    CellFormat,
    CellKind,
    cell_kinds,
    date_of_days,
    number_of,
    parse_number,
    parse_text,
    text_of,
)
from ratewise.data.table import Finding, named_columns
from ratewise.exceptions import InvalidInput, InvalidType

__all__ = ["Category", "Column", "Date", "Number", "Schema"]

# ----------------------------------------------------------------------------------------------- columns


FIRST_DAY = -719162.0  # 0001-01-01
LAST_DAY = 2932896.0  # 9999-12-31


class _Declaration:
    """Shared by columns and schemas: compared by what is written, so that 1, 1.0 and True differ."""

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in _said(self).items())
        return f"{type(self).__name__}({said})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def _said(declared: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that say something."""
    values = {item.name: getattr(declared, item.name) for item in dataclasses.fields(declared)}
    return {name: value for name, value in values.items() if value not in (None, "", (), {}, DEFAULT_FORMAT)}


@dataclass(frozen=True, eq=False, repr=False)
class Number(_Declaration):
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
        for name in ("lower", "upper"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, self._bound(name, value))
        _check_title(self.title)
        if self.lower is None or self.upper is None:
            return
        if not self.lower < self.upper:
            shown = f"{self._written(self.lower)} and {self._written(self.upper)}"
            raise InvalidInput(f"lower must be below upper, got {shown}")
        if not math.isfinite(self.upper - self.lower):
            raise InvalidInput(
                f"lower and upper are too far apart to be scaled, got {self.lower:g} and {self.upper:g}"
            )

    @staticmethod
    def _bound(name: str, value: Any) -> float:
        if cell_kinds([value])[0] in (CellKind.DATE, CellKind.DURATION):
            return number_of(value)[0]
        return _validate.real(**{name: value})

    @staticmethod
    def _written(value: float) -> Any:
        return show_number(value)

    @property
    def bounded(self) -> bool:
        """Whether both bounds are declared."""
        return self.lower is not None and self.upper is not None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without what is None."""
        return {"type": self.type, **_said(self)}


@dataclass(frozen=True, eq=False, repr=False)
class Date(Number):
    """A column of dates, read as days since 1970-01-01 and clipped to public bounds.

    Parameters
    ----------
    lower, upper : date, ISO text, number of days, or None
    title : str or None
    """

    type: ClassVar[str] = "date"

    @staticmethod
    def _bound(name: str, value: Any) -> float:
        days, code = number_of(value)
        if code != NUMBER or isinstance(value, bool) or not FIRST_DAY <= days <= LAST_DAY + 1:
            raise InvalidInput(f"{name} must be a date such as '2020-12-31', got {value!r}")
        return days

    @staticmethod
    def _written(value: float) -> Any:
        return date_of_days(value)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with ISO dates, without what is None."""
        said = super().to_dict()
        return {
            name: self._written(value) if name in ("lower", "upper") else value
            for name, value in said.items()
        }


@dataclass(frozen=True, eq=False, repr=False)
class Category(_Declaration):
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
        _check_title(self.title)
        values = () if self.values is None else _plain_values("values", self.values)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "labels", _value_labels(self.labels, values))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without what is None."""
        said = {"type": self.type, **_said(self)}
        return {**said, "values": list(self.values)} if self.values else said


Column = Number | Category

_TYPES: dict[str, Any] = {
    **dict.fromkeys(("number", "continuous", "numeric"), Number),
    **dict.fromkeys(("date", "datetime"), Date),
    **dict.fromkeys(("category", "categorical", "binary", "boolean"), Category),
}


def _plain_values(name: str, values: Any) -> tuple[Any, ...]:
    """Return distinct plain scalars; text alone is refused, being a list of letters."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidType(f"{name} must be a list of values, got {type(values).__name__}")
    items = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    if not items:
        raise InvalidInput(f"{name} must hold at least one value, got none")
    seen: dict[str, Any] = {}
    for item in items:
        if not isinstance(item, str | bool | int | float):
            raise InvalidType(
                f"{name} must hold text, numbers or booleans, got {type(item).__name__}; convert the column"
            )
        if isinstance(item, float) and not math.isfinite(item):
            raise InvalidInput(f"{name} must hold finite numbers, got {item!r}")
        text = text_of(item)
        if text in seen:
            hint = "" if seen[text] == item else f": cells cannot tell it from {seen[text]!r}"
            raise InvalidInput(f"{name} must hold each value once, got {item!r} twice{hint}")
        seen[text] = item
    return items


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


def _check_title(title: Any) -> None:
    if title is not None and (not isinstance(title, str) or not title.strip()):
        raise InvalidType(f"title must be text, got {title!r}")


# -------------------------------------------------------------------------------------------- the schema


FORMAT = "ratewise-schema"
VERSION = 1
_TEXTS = ("name", "unit", "note")
_LABEL = {
    "name": "label",
    "classes": "classes",
    "positive": "positive",
    "title": "title",
    "labels": "class_labels",
}


@dataclass(frozen=True, eq=False, repr=False)
class Schema(_Declaration):
    """What is public about a table: features in order, the label and its classes, the sensitive columns.

    Parameters
    ----------
    columns : mapping of name to Number, Date or Category
        The features, in the order in which a model sees them.
    label : str
        Name of the column to predict; never a feature.
    classes : iterable or None
        The possible labels, at least two. None leaves them to be found privately.
    groups : mapping of name to Number, Date or Category, or iterable of names
        Sensitive columns, which constraints may read. They are no features unless `columns` lists them too;
        by name alone they are taken from `columns`.
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
    title, name, unit, note : str
        What the label is called in reports; a name of the table; what a row stands for; a remark.

    Notes
    -----
    A schema is immutable, is compared by value and can be a dictionary key.
    """

    columns: dict[str, Column]
    label: str = field(kw_only=True)
    classes: Any = field(default=None, kw_only=True)
    groups: Any = field(default=(), kw_only=True)
    signed: bool = field(default=True, kw_only=True)
    positive: Any = field(default=None, kw_only=True)
    privacy_id: str | None = field(default=None, kw_only=True)
    leave_out: Any = field(default=(), kw_only=True)
    class_labels: Any = field(default=None, kw_only=True)
    cell_format: CellFormat = field(default=DEFAULT_FORMAT, kw_only=True)
    title: str = field(default="", kw_only=True)
    name: str = field(default="", kw_only=True)
    unit: str = field(default="", kw_only=True)
    note: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        features = _described("columns", self.columns)
        if not features:
            raise InvalidInput("columns must describe at least one feature, got none")
        classes = () if self.classes is None else tuple(in_order(_plain_values("classes", self.classes)))
        if len(classes) == 1:
            raise InvalidInput(f"classes must hold at least two values, got {list_values(classes)}")
        normalised = {
            "columns": features,
            "classes": classes,
            "groups": _groups(self.groups, features),
            "positive": _positive(self.positive, classes),
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
        label, person = _name("label", self.label), self.privacy_id
        if person is not None:
            _name("privacy_id", person)
        for place, described in (("columns", self.columns), ("groups", self.groups)):
            if label in described:
                raise InvalidInput(f"label {label!r} is also among the {place}; a label cannot be a feature")
            if person in described:
                raise InvalidInput(f"privacy_id {person!r} is also among the {place}; remove it there")
            for name in self.leave_out:
                if name in described:
                    raise InvalidInput(
                        f"leave_out names {name!r}, which is also among the {place}; choose one"
                    )
        if label == person or label in self.leave_out:
            raise InvalidInput(f"label {label!r} is also the privacy_id or left out; choose one role")

    # --- what it says ----------------------------------------------------------------------------------

    @property
    def feature_bounds(self) -> dict[str, tuple[float, float]]:
        """Bounds of the continuous and date features that have both; dates are days since 1970-01-01."""
        return {
            name: (column.lower, column.upper)
            for name, column in self.columns.items()
            if isinstance(column, Number) and column.lower is not None and column.upper is not None
        }

    @property
    def categories(self) -> dict[str, tuple[Any, ...]]:
        """Values of the categorical features that declare them."""
        return {
            name: column.values
            for name, column in self.columns.items()
            if isinstance(column, Category) and column.values
        }

    @property
    def group_values(self) -> dict[str, Any]:
        """Values of each sensitive column, or ``Numeric()``; columns that leave them open are not listed."""
        return {
            name: column.values if isinstance(column, Category) else Numeric()
            for name, column in self.groups.items()
            if not isinstance(column, Category) or column.values
        }

    def title_of(self, name: str) -> str:
        """Return what a column is called in reports: its title, or its name."""
        if name == self.label:
            return self.title or name
        column = self.columns.get(name) or self.groups.get(name)
        return name if column is None or column.title is None else column.title

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
        return Schema(**{**_said(self), "signed": self.signed, **changes})

    # --- plain data ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain data without None, fit for JSON and TOML; `from_dict` reads it back."""
        said = _said(self)
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}
        label = {key: plain[argument] for key, argument in _LABEL.items() if argument in plain}
        cells = {} if self.cell_format == DEFAULT_FORMAT else _said(self.cell_format)
        return {
            "format": FORMAT,
            "version": VERSION,
            "signed": self.signed,
            **{name: plain[name] for name in (*_TEXTS, "privacy_id", "leave_out") if name in plain},
            **({"cells": {**cells, "missing": list(self.cell_format.missing)}} if cells else {}),
            "label": label,
            "groups": {name: column.to_dict() for name, column in self.groups.items()},
            "columns": {name: column.to_dict() for name, column in self.columns.items()},
        }

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
        for name in ("classes", "leave_out"):
            if name in fields:
                _listed(name, fields[name])
        for name in ("columns", "groups"):
            described = fields.get(name, {})
            if isinstance(described, Mapping):
                fields[name] = {key: _column_from(f"{name}.{key}", item) for key, item in described.items()}
            elif name == "columns":
                raise InvalidType(
                    f"columns must be a table of columns by name, got {type(described).__name__}"
                )
        cells = _fields(
            "cells", fields.pop("cells", {}), (), [f.name for f in dataclasses.fields(CellFormat)]
        )
        if "missing" in cells:
            cells["missing"] = tuple(_listed("cells.missing", cells["missing"]))
        return cls(**fields, cell_format=CellFormat(**cells))


def _fields(
    what: str, description: Any, needed: Collection[str], optional: Collection[str] = ()
) -> dict[str, Any]:
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


def _listed(what: str, values: Any) -> Any:
    if not isinstance(values, list | tuple):
        raise InvalidType(f"{what} must be a list, got {type(values).__name__}")
    return values


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
        if "values" in fields:
            _listed("values", fields["values"])
        found: Column = make(**fields)
    except (InvalidInput, InvalidType) as problem:
        raise type(problem)(f"{what}: {problem}") from None
    return found


def _name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidType(f"{what} must be the name of a column, text that is not empty; got {name!r}")
    return name


def _names(what: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidType(f"{what} must be a list of names, got {names!r}")
    return tuple(dict.fromkeys(_name(what, name) for name in names))


def _positive(positive: Any, classes: tuple[Any, ...]) -> Any:
    """Return the declared class that is meant."""
    if positive is None or not classes:
        return positive
    found = {text_of(value): value for value in classes}
    if text_of(positive) not in found:
        raise InvalidInput(f"positive must be one of the classes ({list_values(classes)}), got {positive!r}")
    return found[text_of(positive)]


def _described(what: str, columns: Any) -> dict[str, Column]:
    if not isinstance(columns, Mapping):
        raise InvalidType(
            f"{what} must map names to Number(...), Date(...) or Category(...), got {type(columns).__name__}"
        )
    for name, column in columns.items():
        _name(what, name)
        if not isinstance(column, Number | Category):
            raise InvalidType(
                f"{what}[{name!r}] must be Number(lower, upper), Date(lower, upper) or Category(values), got "
                f"{column!r}"
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

    Parameters
    ----------
    frame : data frame, Arrow table, mapping of columns or record array
    label : str
        The column to predict.
    groups : collection of str
        The sensitive columns. They are not made features.
    leave_out : collection of str
        Columns that are neither label, group nor feature.
    features : collection of str, optional
        The features; without it all other columns that can be used. A column named here is used even if it
        looks like an identifier.
    privacy_id : str, optional
        The column that identifies the unit of privacy.
    positive : value, optional
        The class that rates are about.
    cell_format : CellFormat
        How numbers and dates are written in text cells.

    Raises
    ------
    InvalidInput
        The table cannot be used for lack of decisions; one message lists all of them.
    """
    columns = named_columns(frame, "frame")
    person = () if privacy_id is None else (privacy_id,)
    roles = {"the label": (label,), "among the groups": groups, "left out": leave_out}
    roles |= {"among the features": features or (), "the privacy id": person}
    _check_roles(columns, roles)
    drafting = _Drafting(cell_format)
    classes = drafting.classes(label, columns[label])
    sensitive = {name: drafting.group(name, columns[name]) for name in groups}
    described: dict[str, Column] = {}
    left_out = [*leave_out]
    for name in columns:
        if name in (label, *groups, *leave_out, *person):
            continue
        found = None
        if features is None or name in features:
            found = drafting.feature(name, columns[name], wanted=features is not None)
        if found is None:
            left_out.append(name)
        else:
            described[name] = found
    if not described:
        said = "No column is left to predict from; name some of the columns."
        drafting.add("features", said, "features", severe=True)
    drafting.summarise()
    drafting.refuse_severe()
    schema = Schema(
        described,
        label=label,
        classes=classes,
        groups={name: column for name, column in sensitive.items() if column is not None},
        signed=False,
        positive=positive,
        privacy_id=privacy_id,
        leave_out=left_out,
        cell_format=cell_format,
    )
    return Draft(schema, tuple(drafting.findings))


def _check_roles(columns: Collection[str], roles: Mapping[str, Collection[str]]) -> None:
    """Raise one error that lists columns that are not there, or have two roles."""
    problems = []
    seen: dict[str, str] = {}
    for role, names in roles.items():
        for name in [names] if isinstance(names, str) else names:
            if not isinstance(name, str) or not name:
                raise InvalidType(f"columns must be named by text, but {name!r} is {role}")
            if name not in columns:
                problems.append(f"frame has no column {name!r}; its columns are {list_values(columns)}")
            if seen.setdefault(name, role) != role:
                problems.append(f"column {name!r} is both {seen[name]} and {role}; choose one")
    if problems:
        raise InvalidInput("; ".join(problems))


class _Drafting:
    """Describes one column after another and collects what is found."""

    def __init__(self, cell_format: CellFormat) -> None:
        self.findings: list[Finding] = []
        self._format = cell_format
        self._missing: list[str] = []
        self._few: list[str] = []
        self._rare: list[str] = []

    def add(
        self,
        topic: str,
        message: str,
        option: str | None = None,
        column: str | None = None,
        severe: bool = False,
    ) -> None:
        """Add a finding."""
        self.findings.append(Finding(topic, message, option, column, severe))

    def summarise(self) -> None:
        """Add one finding for what concerns several columns alike."""
        if self._missing:
            said = (
                f"Cells without a value: {', '.join(self._missing)}. They stay missing; nothing is filled in."
            )
            self.add("missing", said)
        if self._few:
            self.add(
                "few_values",
                f"Whole numbers with few values are taken for numbers: {list_values(self._few)}. If they are "
                'codes, write type = "category" and list the values.',
            )
        if self._rare:
            said = f"Values of few rows are not listed and count as other: {', '.join(self._rare)}."
            self.add("rare", said)

    def refuse_severe(self) -> None:
        """Raise one error that lists all decisions that are needed, and all other findings."""
        severe = [str(finding) for finding in self.findings if finding.severe]
        others = [str(finding) for finding in self.findings if not finding.severe]
        if severe:
            found = f" Also found: {' '.join(others)}" if others else ""
            raise InvalidInput(f"decisions are needed: {' '.join(severe)}{found}")

    def classes(self, name: str, data: Any) -> list[Any] | None:
        """Return the classes of the label."""
        found, gaps = self._texts(data)
        if gaps:
            said = f"{_rows(gaps)} of column {name!r} without a label: not used for training."
            self.add("label", said, column=name)
        if len(found) < 2:
            said = f"The label {name!r} has the same value in every row; a classifier needs two classes."
            self.add("label", said, "label", name, severe=True)
            return None
        if len(found) > MOST_CLASSES:
            said = (
                f"The label {name!r} has {len(found)} different values; choose a column of classes, or cut "
            )
            self.add("label", said + "the numbers into a few ranges.", "label", name, severe=True)
            return None
        rare = sum(count < _RARE for count in found.values())
        if rare and len(data) >= 100:
            said = f"{rare} of the {len(found)} classes have fewer than {_RARE} rows."
            self.add("label", said, column=name)
        return self._values(data, found)

    def group(self, name: str, data: Any) -> Column | None:
        """Return a sensitive column: groups if its values are few, else a number or a date."""
        kinds = self._kinds(data)
        self._note_missing(name, kinds)
        found, gaps = self._texts(data)
        if not found:
            said = f"The sensitive column {name!r} holds nothing but missing cells."
            self.add("groups", said, "groups", name, severe=True)
            return None
        if gaps:
            said = f"Rows without a value of the sensitive column {name!r} belong to none of its groups."
            self.add("groups", said, column=name)
        typed = _typed(kinds)
        if typed is not None:
            distinct = self._distinct(data)
            if typed != CellKind.NUMBER or len(distinct) > FEW_NUMBERS or not _whole(distinct):
                return self._number(name, data, typed)
            numerals = {text_of(value) for value in distinct.tolist()}
            found = Counter({text: count for text, count in found.items() if text in numerals})
        if len(found) > MOST_VALUES:
            said = f"The sensitive column {name!r} has {len(found)} different values; merge them into groups."
            self.add("groups", said, "groups", name, severe=True)
            return None
        return Category(self._values(data, found))

    def feature(self, name: str, data: Any, wanted: bool) -> Column | None:
        """Return what a feature is; None if it is left out."""
        kinds = self._kinds(data)
        known = int(kinds.sum() - kinds[CellKind.MISSING])
        if not known or kinds[CellKind.UNREADABLE] == known:
            held = "lists or other nested values" if known else "nothing but missing cells"
            self._leave_out("empty", name, f"holds {held}")
            return None
        typed = _typed(kinds)
        if typed is None:
            return self._category(name, data, kinds, wanted)
        distinct = self._distinct(data)
        if len(distinct) == 1:
            self._leave_out("constant", name, "has the same value in every row")
            return None
        if not wanted and typed == CellKind.NUMBER and self._identifier(name, data, distinct):
            return None
        self._note_missing(name, kinds)
        if distinct.tolist() in ([0.0, 1.0], [1.0, 2.0]):
            return Category(self._values(data, map(text_of, distinct.tolist())))
        if len(distinct) <= 20 and typed == CellKind.NUMBER and _whole(distinct):
            self._few.append(name)
        return self._number(name, data, typed)

    def _category(self, name: str, data: Any, kinds: NDArray[np.int64], wanted: bool) -> Column | None:
        found, _ = self._texts(data)
        n_known = sum(found.values())
        if len(found) == 1:
            self._leave_out("constant", name, "has the same value in every row")
            return None
        share = len(found) / n_known
        if not wanted and n_known >= 20 and share > 0.5:
            length = np.mean([len(text) for text in found])
            words = np.mean([text.count(" ") for text in found])
            if length > 40 or words >= 3:
                self._leave_out("free_text", name, "holds free text, different in most rows")
                return None
            numbered = np.mean([re.search(r"\d{3}", text) is not None for text in found]) > 0.9
            if share > 0.9 or _IDENTIFIER.search(name) or numbered:
                self._leave_out("identifier", name, "identifies rows, as names and case numbers do")
                return None
        self._note_missing(name, kinds)
        least = min(_RARE, max(1, len(data) // 100))
        common = {text: count for text, count in found.most_common(MOST_VALUES) if count >= least}
        if len(common) < 2:
            self._leave_out("free_text", name, f"has {len(found)} values, nearly all of them rare")
            return None
        if len(common) < len(found):
            self._rare.append(f"{name} ({len(found) - len(common)})")
        return Category(self._values(data, common))

    def _identifier(self, name: str, data: Any, distinct: NDArray[np.float64]) -> bool:
        """Return whether a column of numbers identifies rows or persons; reported if it does."""
        numbers = parse_number(data, self._format).values
        known = numbers[~np.isnan(numbers)]
        if not _whole(distinct) or len(known) < 20:
            return False
        steps = np.diff(np.clip(known, -_LARGEST, _LARGEST))
        if len(distinct) == len(known) and (np.all(steps == 1) or _IDENTIFIER.search(name)):
            self._leave_out("identifier", name, "numbers the rows")
            return True
        if _IDENTIFIER.search(name) and len(distinct) >= 20:
            said = (
                f"Column {name!r} looks like an identifier of persons with several rows each, and is left out. "
                "If so, name it as the unit of privacy."
            )
            self.add("identifier", said, "privacy_id", name)
            return True
        return False

    def _number(self, name: str, data: Any, typed: CellKind) -> Number:
        parsed = parse_number(data, self._format)
        odd = int(np.sum(parsed.codes == UNPARSABLE))
        if odd:
            what = "dates" if typed == CellKind.DATE else "numbers"
            said = f"In {_rows(odd)} column {name!r} holds text instead of {what}, which counts as missing."
            self.add("unparsable", said, column=name)
        known = parsed.values[np.isfinite(parsed.values)]
        infinite = int(np.sum(np.isinf(parsed.values)))
        if infinite:
            said = f"In {_rows(infinite)} column {name!r} holds infinite values, which are clipped to the bounds."
            self.add("infinite", said, column=name)
        if not len(known):
            return Number()
        lower, upper = float(known.min()), float(known.max())
        if typed == CellKind.DATE:
            return Date(*_rounded_dates(lower, upper))
        if max(abs(lower), abs(upper)) > _LARGEST:
            said = f"Some values of column {name!r} are too large for bounds, which are left open."
            self.add("bounds", said, column=name)
            return Number()
        return Number(*rounded_bounds(lower, upper))

    def _leave_out(self, topic: str, name: str, why: str) -> None:
        self.add(topic, f"Column {name!r} {why}; it is left out.", "features", name)

    def _note_missing(self, name: str, kinds: NDArray[np.int64]) -> None:
        gaps = int(kinds[CellKind.MISSING])
        if _typed(kinds) is not None:
            gaps += int(kinds[CellKind.WORD])
        if gaps:
            self._missing.append(f"{name} {gaps} ({gaps / kinds.sum():.0%})")

    def _kinds(self, data: Any) -> NDArray[np.int64]:
        """Return the number of cells of each kind."""
        return np.bincount(cell_kinds(data, self._format), minlength=len(CellKind))

    def _texts(self, data: Any) -> tuple[Counter[str], int]:
        """Return how often each value occurs, and the number of missing cells."""
        found = Counter(parse_text(data, self._format).tolist())
        return found, found.pop("", 0)

    def _distinct(self, data: Any) -> NDArray[np.float64]:
        numbers = parse_number(data, self._format).values
        return np.unique(numbers[~np.isnan(numbers)])

    def _values(self, data: Any, found: Iterable[str]) -> list[Any]:
        """Return values in order, of the type that they have in the data: text, booleans or numbers."""
        texts = list(found)
        sample = [cell for cell in list(data[:100]) if text_of(cell)]
        numbers = parse_number(texts, self._format)
        if any(isinstance(cell, str) for cell in sample) or np.any(numbers.codes != NUMBER):
            return sorted(texts)
        ordered = np.sort(numbers.values).tolist()
        if sample and all(isinstance(cell, bool | np.bool_) for cell in sample):
            return [bool(value) for value in ordered]
        return [int(value) if value.is_integer() else value for value in ordered]


def _typed(kinds: NDArray[np.int64]) -> CellKind | None:
    """Return whether nearly all cells with a value are numbers, dates or durations; None for categories."""
    known = kinds.sum() - kinds[CellKind.MISSING] - kinds[CellKind.WORD]
    for kind in (CellKind.NUMBER, CellKind.DATE, CellKind.DURATION):
        if known and kinds[kind] >= _TYPED * known:
            return kind
    return None


def _whole(numbers: NDArray[np.float64]) -> bool:
    return bool(np.all(numbers == np.round(numbers)))


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
    first, last = (date_of_days(min(max(days, FIRST_DAY), LAST_DAY)) for days in ends)
    return number_of(f"{first[:4]}-01-01")[0], number_of(f"{last[:4]}-12-31")[0]
