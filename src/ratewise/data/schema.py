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
>>> schema.types
{'age': 'continuous', 'income': 'continuous', 'job': 'binary'}
>>> Schema.from_dict(schema.to_dict()) == schema
True
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from ratewise import _validate
from ratewise.constraints.domain import Domain, Numeric, in_order, list_values, show_number
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
CONTINUOUS, CATEGORICAL, BINARY, DATE = "continuous", "categorical", "binary", "date"


@dataclass(frozen=True)
class Number:
    """A column of numbers, clipped to public bounds. Dates and durations are numbers of days.

    A cell that holds no number is missing; `ratewise.data.cells.parse_number` defines how cells are read.

    Parameters
    ----------
    lower, upper : float, date or None
        Public bounds. None leaves a bound to be found privately, at a price.
    missing : float or None
        The number that stands for a missing cell in models without a place for missing cells; None takes
        the middle of the bounds.
    title : str or None
        What the column is called in reports.
    """

    type: ClassVar[str] = "number"
    lower: float | None = None
    upper: float | None = None
    missing: float | None = None
    title: str | None = None

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "missing"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, self._bound(name, value))
        _check_title(self.title)
        if self.bounded and not self.lower < self.upper:  # type: ignore[operator]
            raise InvalidInput(
                f"lower must be below upper, got {self._shown(self.lower)} and {self._shown(self.upper)}"
            )
        if self.bounded and not math.isfinite(self.upper - self.lower):  # type: ignore[operator]
            raise InvalidInput(
                f"lower and upper are too far apart to be scaled, got {self.lower:g} and {self.upper:g}"
            )

    @staticmethod
    def _bound(name: str, value: Any) -> float:
        if cell_kinds([value])[0] in (CellKind.DATE, CellKind.DURATION):
            return number_of(value)[0]
        return _validate.real(**{name: value})

    @property
    def bounded(self) -> bool:
        """Whether both bounds are declared."""
        return self.lower is not None and self.upper is not None

    @property
    def feature_type(self) -> str:
        """The type of the feature."""
        return CONTINUOUS

    def _written(self, value: float) -> Any:
        """Return a bound as plain data."""
        return value

    def _shown(self, value: float | None) -> str:
        return "?" if value is None else show_number(value)

    def __repr__(self) -> str:
        said = {name: getattr(self, name) for name in ("lower", "upper", "missing")}
        written = {name: repr(self._written(value)) for name, value in said.items() if value is not None}
        parts = [written.pop("lower"), written.pop("upper")] if self.bounded else []
        parts += [f"{name}={value}" for name, value in written.items()]
        parts += [] if self.title is None else [f"title={self.title!r}"]
        return f"{type(self).__name__}({', '.join(parts)})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without what is None."""
        said = {name: getattr(self, name) for name in ("lower", "upper", "missing")}
        described = {name: self._written(value) for name, value in said.items() if value is not None}
        return {"type": self.type, **described, **_titled(self.title)}

    def in_words(self) -> str:
        """Return what the column is, for a person to read."""
        return f"{self.type} from {self._shown(self.lower)} to {self._shown(self.upper)}"


@dataclass(frozen=True, repr=False)
class Date(Number):
    """A column of dates, read as days since 1970-01-01 and clipped to public bounds.

    Parameters
    ----------
    lower, upper, missing : date, ISO text, number of days, or None
    title : str or None
    """

    type: ClassVar[str] = "date"

    @staticmethod
    def _bound(name: str, value: Any) -> float:
        days, code = number_of(value)
        if code != NUMBER or isinstance(value, bool) or not FIRST_DAY <= days <= LAST_DAY + 1:
            raise InvalidInput(f"{name} must be a date such as '2020-12-31', got {value!r}")
        return days

    @property
    def feature_type(self) -> str:
        """The type of the feature."""
        return DATE

    def _written(self, value: float) -> Any:
        return date_of_days(value)

    def _shown(self, value: float | None) -> str:
        return "?" if value is None else date_of_days(value)


@dataclass(frozen=True, init=False, repr=False)
class Category:
    """A column of values from a list; every other value is "other". True and false are a category, too.

    Cells and declared values are compared by their canonical text (`ratewise.data.cells.text_of`), so that
    1, 1.0 and "1" are one value.

    Parameters
    ----------
    values : iterable of text, whole numbers, numbers or booleans, or None
        Each once; the order is that of the encoded columns. None leaves the values to be found privately.
    missing : value or None
        The declared value that stands for a missing cell; None gives missing cells none of the values.
    title : str or None
        What the column is called in reports.
    labels : mapping or None
        What values are called in reports: ``{3: "American Indian"}``.
    """

    type: ClassVar[str] = "category"
    values: tuple[Any, ...]
    missing: Any = None
    title: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __init__(
        self,
        values: Iterable[Any] | None = None,
        missing: Any = None,
        title: str | None = None,
        labels: Mapping[Any, str] | None = None,
    ) -> None:
        declared = () if values is None else plain_values("values", values)
        object.__setattr__(self, "values", declared)
        object.__setattr__(self, "missing", missing)
        object.__setattr__(self, "title", _check_title(title))
        object.__setattr__(self, "labels", value_labels(labels, declared))
        if missing is not None and missing not in declared:
            raise InvalidInput(
                f"missing must be one of the declared values ({list_values(declared)}), got {missing!r}"
            )

    @property
    def feature_type(self) -> str:
        """The type of the feature."""
        return BINARY if len(self.values) == 2 and self.missing is None else CATEGORICAL

    def __repr__(self) -> str:
        said = {"missing": self.missing, "title": self.title, "labels": dict(self.labels) or None}
        more = "".join(f", {name}={value!r}" for name, value in said.items() if value is not None)
        return f"Category({list(self.values) if self.values else None!r}{more})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without what is None."""
        values = {"values": list(self.values)} if self.values else {}
        missing = {} if self.missing is None else {"missing": self.missing}
        labels = {"labels": dict(self.labels)} if self.labels else {}
        return {"type": self.type, **values, **missing, **_titled(self.title), **labels}

    def in_words(self) -> str:
        """Return what the column is, for a person to read."""
        return f"one of {list_values(self.values)}" if self.values else "a category"


Column = Number | Category

_FIELDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "number": (Number, ("lower", "upper", "missing", "title")),
    "date": (Date, ("lower", "upper", "missing", "title")),
    "category": (Category, ("values", "missing", "title", "labels")),
}
_OTHER_NAMES = {
    "continuous": "number",
    "numeric": "number",
    "datetime": "date",
    "categorical": "category",
    "binary": "category",
    "boolean": "category",
}


# ---------------------------------------------------------------------------------------- checked parts


def plain_values(name: str, values: Any) -> tuple[Any, ...]:
    """Return distinct plain scalars; text alone is refused, being a list of letters."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidType(f"{name} must be a list of values, got {type(values).__name__}")
    items = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    for item in items:
        if not isinstance(item, str | bool | int | float):
            raise InvalidType(
                f"{name} must hold text, numbers or booleans, got {type(item).__name__}; convert the column"
            )
        if isinstance(item, float) and not math.isfinite(item):
            raise InvalidInput(f"{name} must hold finite numbers, got {item!r}")
    if not items:
        raise InvalidInput(f"{name} must hold at least one value, got none")
    seen: dict[str, Any] = {}
    for item in items:
        text = text_of(item)
        if text in seen:
            hint = "" if seen[text] == item else f": cells cannot tell it from {seen[text]!r}"
            raise InvalidInput(f"{name} must hold each value once, got {item!r} twice{hint}")
        seen[text] = item
    return items


def value_labels(labels: Any, values: Iterable[Any] = ()) -> dict[str, str]:
    """Return names of values by canonical text, after checking that such values are declared."""
    if labels is None:
        return {}
    if not isinstance(labels, Mapping) or not all(isinstance(label, str) for label in labels.values()):
        raise InvalidType(f"labels must map values to text, got {labels!r}")
    found = {text_of(value): label for value, label in labels.items()}
    known = {text_of(value) for value in values}
    unknown = [value for value in labels if known and text_of(value) not in known]
    if unknown:
        raise InvalidInput(f"labels names {list_values(unknown)}, which is none of the declared values")
    return found


def _check_title(title: Any) -> Any:
    if title is not None and (not isinstance(title, str) or not title.strip()):
        raise InvalidType(f"title must be text, got {title!r}")
    return title


def _titled(title: str | None) -> dict[str, str]:
    return {} if title is None else {"title": title}


# ---------------------------------------------------------------------------------------- plain data


def fields_of(what: str, description: Any, needed: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a table of plain data, after checking that the needed ones are there."""
    if not isinstance(description, Mapping):
        raise InvalidType(f"{what} must be a table of named fields, got {type(description).__name__}")
    for name in needed:
        if name not in description:
            hint = (
                "; write signed = true once a person has checked that every bound and value is public"
                if name == "signed"
                else ""
            )
            raise InvalidInput(f"{what} lacks the field {name!r}{hint}")
    return dict(description)


def refuse_unknown(what: str, left: Mapping[str, Any]) -> None:
    """Raise if fields are left that nobody has read."""
    if left:
        raise InvalidInput(f"{what} has unknown fields: {list_values(left)}")


def listed(what: str, values: Any) -> Any:
    """Return the values if they are a list."""
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


def column_from(what: str, description: Any) -> Column:
    """Return the column that plain data describe; errors say which column is meant by `what`."""
    fields = fields_of(what, description, needed=("type",))
    kind = fields.pop("type")
    kind = _OTHER_NAMES.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise InvalidInput(
            f"{what}: type must be 'number', 'date' or 'category', got {description['type']!r}"
        )
    make, known = _FIELDS[kind]
    refuse_unknown(what, {name: value for name, value in fields.items() if name not in known})
    try:
        if "values" in fields:
            listed("values", fields["values"])
        found: Column = make(**fields)
    except (InvalidInput, InvalidType) as problem:
        raise type(problem)(f"{what}: {problem}") from None
    return found


# -------------------------------------------------------------------------------------------- the schema


FORMAT = "ratewise-schema"
VERSION = 1
_CELLS = ("decimal", "thousands", "date_order", "missing")
_TEXTS = ("title", "name", "unit", "note")


class Schema:
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

    __slots__ = (
        *("_columns", "_groups", "cell_format", "class_labels", "classes", "label", "leave_out"),
        *("name", "note", "positive", "privacy_id", "signed", "title", "unit"),
    )
    label: str
    classes: tuple[Any, ...]
    signed: bool
    positive: Any
    privacy_id: str | None
    leave_out: tuple[str, ...]
    class_labels: dict[str, str]
    cell_format: CellFormat
    title: str
    name: str
    unit: str
    note: str
    _columns: dict[str, Column]
    _groups: dict[str, Column]

    def __init__(
        self,
        columns: Mapping[str, Column],
        *,
        label: str,
        classes: Iterable[Any] | None = None,
        groups: Mapping[str, Column] | Iterable[str] = (),
        signed: bool = True,
        positive: Any = None,
        privacy_id: str | None = None,
        leave_out: Iterable[str] = (),
        class_labels: Mapping[Any, str] | None = None,
        cell_format: CellFormat = DEFAULT_FORMAT,
        title: str = "",
        name: str = "",
        unit: str = "",
        note: str = "",
    ) -> None:
        features = _described("columns", columns)
        if not features:
            raise InvalidInput("columns must describe at least one feature, got none")
        known = () if classes is None else tuple(in_order(plain_values("classes", classes)))
        if len(known) == 1:
            raise InvalidInput(f"classes must hold at least two values, got {list_values(known)}")
        sensitive = _groups(groups, features)
        _refuse_two_descriptions(features, sensitive)
        left_out = _names("leave_out", leave_out)
        person = None if privacy_id is None else _name("privacy_id", privacy_id)
        _refuse_two_roles(features, sensitive, _name("label", label), person, left_out)
        if not isinstance(signed, bool):
            raise InvalidType(f"signed must be True or False, got {signed!r}")
        if not isinstance(cell_format, CellFormat):
            raise InvalidType(f"cell_format must be a CellFormat, got {type(cell_format).__name__}")
        texts = {"title": title, "name": name, "unit": unit, "note": note}
        for what, text in texts.items():
            if not isinstance(text, str):
                raise InvalidType(f"{what} must be text, got {text!r}")
        for slot, value in {
            "_columns": features,
            "_groups": sensitive,
            "classes": known,
            "label": label,
            "signed": signed,
            "positive": _positive(positive, known),
            "privacy_id": person,
            "leave_out": left_out,
            "class_labels": value_labels(class_labels, known),
            "cell_format": cell_format,
            **texts,
        }.items():
            object.__setattr__(self, slot, value)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a schema is immutable, cannot set {name}; make a new one")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._said(),)

    # --- what it says ----------------------------------------------------------------------------------

    @property
    def columns(self) -> dict[str, Column]:
        """The features by name, in order."""
        return dict(self._columns)

    @property
    def groups(self) -> dict[str, Column]:
        """The sensitive columns by name."""
        return dict(self._groups)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns that the schema reads: features, sensitive columns, label, privacy id."""
        person = () if self.privacy_id is None else (self.privacy_id,)
        return tuple(dict.fromkeys((*self._columns, *self._groups, self.label, *person)))

    @property
    def types(self) -> dict[str, str]:
        """Type of each feature: "continuous", "categorical", "binary" or "date"."""
        return {name: column.feature_type for name, column in self._columns.items()}

    @property
    def feature_bounds(self) -> dict[str, tuple[float, float]]:
        """Bounds of the continuous and date features that have both; dates are days since 1970-01-01."""
        return {
            name: (column.lower, column.upper)
            for name, column in self._columns.items()
            if isinstance(column, Number) and column.lower is not None and column.upper is not None
        }

    @property
    def categories(self) -> dict[str, tuple[Any, ...]]:
        """Values of the categorical and binary features that declare them."""
        return {
            name: column.values
            for name, column in self._columns.items()
            if isinstance(column, Category) and column.values
        }

    @property
    def group_values(self) -> dict[str, Any]:
        """Values of each sensitive column, or ``Numeric()``; columns that leave them open are not listed."""
        return {
            name: column.values if isinstance(column, Category) else Numeric()
            for name, column in self._groups.items()
            if not isinstance(column, Category) or column.values
        }

    @property
    def domain(self) -> Domain:
        """The classes and sensitive columns, for compiling constraints."""
        return Domain(self.classes, self.group_values)

    def title_of(self, name: str) -> str:
        """Return what a column is called in reports: its title, or its name."""
        if name == self.label:
            return self.title or name
        column = self._columns.get(name) or self._groups.get(name)
        return name if column is None or column.title is None else column.title

    def value_label(self, name: str, value: Any) -> str:
        """Return a value of a column for reports: "3: American Indian", or the value alone.

        >>> race = Category([1, 3], labels={3: "American Indian"})
        >>> Schema({"RAC1P": race}, label="y", classes=[0, 1]).value_label("RAC1P", 3.0)
        '3: American Indian'
        """
        column = self._columns.get(name) or self._groups.get(name)
        labels = self.class_labels if name == self.label else getattr(column, "labels", {})
        text = text_of(value)
        return f"{text}: {labels[text]}" if text in labels else str(value)

    @property
    def leaks(self) -> tuple[str, ...]:
        """What an unsigned schema reveals, in words; nothing once it is signed."""
        if self.signed:
            return ()
        found = ["the classes"] if self.classes else []
        for name, column in {**self._groups, **self._columns}.items():
            if isinstance(column, Category):
                found += [f"the values of column {name!r}"] if column.values else []
            elif column.lower is not None or column.upper is not None:
                found.append(f"the bounds of column {name!r}")
        return tuple(found)

    def check(self, table: Any, *, labelled: bool = True) -> list[Finding]:
        """Return what a table lacks that the schema asks for, and what it holds that counts as other.

        Only absent columns are severe. Values that are not declared are accepted: numbers beyond the bounds are
        clipped, undeclared categories are "other", undeclared classes and groups count for no class or group.
        This reads rows for their owner and is outside any guarantee.

        Parameters
        ----------
        table : data frame, Arrow table, mapping of columns or record array
        labelled : bool
            Whether the label and the privacy id must be there; not for prediction.
        """
        present = named_columns(table, "the table")
        needed = [*self._columns, *self._groups, self.label] if labelled else [*self._columns]
        needed += [self.privacy_id] if labelled and self.privacy_id is not None else []
        absent = [name for name in dict.fromkeys(needed) if name not in present]
        found = []
        if absent:
            said = f"The table lacks {list_values(absent)}, which the schema describes."
            found.append(Finding("absent", said, severe=True))
        columns: dict[str, tuple[Any, ...]] = {self.label: self.classes, **self.categories}
        columns |= {name: values for name, values in self.group_values.items() if isinstance(values, tuple)}
        for name, values in columns.items():
            if name in present and values:
                known = {text_of(value) for value in values} | {""}
                others = sum(text not in known for text in parse_text(present[name], self.cell_format))
                if others:
                    said = f"{others} rows of column {name!r} hold values that are not declared."
                    found.append(Finding("other", said, column=name))
        return found

    # --- other schemas ---------------------------------------------------------------------------------

    def sign(self) -> Schema:
        """Return the same schema, vouched for: every bound and every value in it is public knowledge."""
        return self.replace(signed=True)

    def replace(self, **changes: Any) -> Schema:
        """Return the same schema with other arguments where they are given."""
        return Schema(**{**self._said(), **changes})

    def _said(self) -> dict[str, Any]:
        """Return the arguments that make this schema."""
        slots = (slot for slot in self.__slots__ if not slot.startswith("_"))
        said = {slot: getattr(self, slot) for slot in slots}
        return {**said, "classes": self.classes or None, "columns": self._columns, "groups": self._groups}

    # --- plain data ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain data without None, fit for JSON and TOML; `from_dict` reads it back."""
        texts = {what: getattr(self, what) for what in ("name", "unit", "note") if getattr(self, what)}
        label: dict[str, Any] = {"name": self.label}
        label |= {"classes": list(self.classes)} if self.classes else {}
        label |= {} if self.positive is None else {"positive": self.positive}
        label |= {"title": self.title} if self.title else {}
        label |= {"labels": dict(self.class_labels)} if self.class_labels else {}
        cells = {name: getattr(self.cell_format, name) for name in _CELLS}
        cells = {name: list(value) if isinstance(value, tuple) else value for name, value in cells.items()}
        cells = {name: value for name, value in cells.items() if value not in (None, [])}
        return {
            "format": FORMAT,
            "version": VERSION,
            "signed": self.signed,
            **texts,
            **({} if self.privacy_id is None else {"privacy_id": self.privacy_id}),
            **({"leave_out": list(self.leave_out)} if self.leave_out else {}),
            **({} if self.cell_format == DEFAULT_FORMAT else {"cells": cells}),
            "label": label,
            "groups": {name: column.to_dict() for name, column in self._groups.items()},
            "columns": {name: column.to_dict() for name, column in self._columns.items()},
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
        fields = fields_of("a schema", description, needed=("signed", "label", "columns"))
        if fields.pop("format", FORMAT) != FORMAT:
            raise InvalidInput(f"format must be {FORMAT!r}, got {description['format']!r}")
        version = fields.pop("version", VERSION)
        if version != VERSION or isinstance(version, bool):
            raise InvalidInput(f"version must be {VERSION}, got {version!r}; read it with a newer ratewise")
        said = {"signed": truth("signed", fields.pop("signed")), **_label_from(fields)}
        groups = fields.pop("groups", {})
        said["groups"] = groups if isinstance(groups, list) else _columns_from("groups", groups)
        said["columns"] = _columns_from("columns", fields.pop("columns"))
        said["cell_format"] = _cells_from(fields.pop("cells", {}))
        said["leave_out"] = listed("leave_out", fields.pop("leave_out", []))
        for name in ("privacy_id", "name", "unit", "note"):
            if name in fields:
                said[name] = fields.pop(name)
        refuse_unknown("a schema", fields)
        return cls(**said)

    # --- comparison and display ------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        # the text tells 1 from True and from 1.0, which Python holds equal
        return tuple(self._columns.items()), self.label, frozenset(self._groups.items()), repr(self)

    def __repr__(self) -> str:
        lines = [f"        {name!r}: {column!r}," for name, column in self._columns.items()]
        groups = [f"        {name!r}: {column!r}," for name, column in self._groups.items()]
        said = {name: getattr(self, name) for name in ("positive", "privacy_id", "leave_out", *_TEXTS)}
        said |= {"class_labels": self.class_labels, "signed": self.signed}
        said |= {} if self.cell_format == DEFAULT_FORMAT else {"cell_format": self.cell_format}
        return "\n".join(
            [
                "Schema(",
                "    {",
                *lines,
                "    },",
                f"    label={self.label!r},",
                f"    classes={list(self.classes) or None!r},",
                *(["    groups={", *groups, "    },"] if groups else []),
                *(
                    f"    {name}={value!r},"
                    for name, value in said.items()
                    if value not in (None, "", (), {})
                ),
                ")",
            ]
        )


def _rebuilt(said: dict[str, Any]) -> Schema:
    return Schema(**said)


# ----------------------------------------------------------------------------- what was declared


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
    if isinstance(groups, Mapping):
        return _described("groups", groups)
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise InvalidType(f"groups must be a mapping or a list of names, got {groups!r}")
    named = [_name("groups", name) for name in groups]
    for name in named:
        if name not in features:
            raise InvalidInput(
                f"group {name!r} is not among the columns ({list_values(features)}); describe it with "
                f"groups={{{name!r}: Category([...])}}"
            )
    return {name: features[name] for name in named}


def _refuse_two_descriptions(features: Mapping[str, Column], sensitive: Mapping[str, Column]) -> None:
    for name in features.keys() & sensitive.keys():
        first, second = features[name], sensitive[name]
        if type(first) is not type(second) or (isinstance(first, Category) and first != second):
            raise InvalidInput(f"column {name!r} is described in columns and in groups, and differently")


def _refuse_two_roles(
    features: Mapping[str, Column],
    sensitive: Mapping[str, Column],
    label: str,
    privacy_id: str | None,
    leave_out: tuple[str, ...],
) -> None:
    for place, described in (("columns", features), ("groups", sensitive)):
        if label in described:
            raise InvalidInput(f"label {label!r} is also among the {place}; a label cannot be a feature")
        if privacy_id in described:
            raise InvalidInput(f"privacy_id {privacy_id!r} is also among the {place}; remove it there")
        for name in leave_out:
            if name in described:
                raise InvalidInput(f"leave_out names {name!r}, which is also among the {place}; choose one")
    if label == privacy_id or label in leave_out:
        raise InvalidInput(f"label {label!r} is also the privacy_id or left out; choose one role")


# ------------------------------------------------------------------------------- from plain data


def _columns_from(what: str, table: Any) -> dict[str, Column]:
    if not isinstance(table, Mapping):
        raise InvalidType(f"{what} must be a table of columns by name, got {type(table).__name__}")
    return {name: column_from(f"{what}.{name}", described) for name, described in table.items()}


def _label_from(fields: dict[str, Any]) -> dict[str, Any]:
    """Take what concerns the label out of the fields."""
    label = fields.pop("label")
    beside = {name: fields.pop(name) for name in ("classes", "positive") if name in fields}
    if isinstance(label, str):
        label = {"name": label}
    label = {**fields_of("label", label, needed=("name",)), **beside}
    said = {"label": label.pop("name")}
    if "classes" in label:
        said["classes"] = listed("label.classes", label.pop("classes"))
    for key, argument in (("positive", "positive"), ("title", "title"), ("labels", "class_labels")):
        if key in label:
            said[argument] = label.pop(key)
    refuse_unknown("label", label)
    return said


def _cells_from(description: Any) -> CellFormat:
    fields = fields_of("cells", description, needed=())
    refuse_unknown("cells", {name: value for name, value in fields.items() if name not in _CELLS})
    if "missing" in fields:
        fields["missing"] = tuple(listed("cells.missing", fields["missing"]))
    return CellFormat(**fields)


# ---------------------------------------------------------------------------------------------- drafting


MOST_CLASSES = 50  # distinct labels up to which a column is taken for classes
MOST_VALUES = 1000  # listed values of a category; others are "other"
FEW_NUMBERS = 10  # distinct whole numbers up to which a sensitive column is taken for groups
_MISSING_GROUP = "missing"
_TYPED = 0.95  # share of numbers, or dates, from which a column is one of numbers, or dates
_RARE = 5  # rows from which a value is listed, in tables of 100 times as many rows
_LARGEST = 1e300  # beyond, widths of ranges overflow
_MARGIN = 0.1  # of the range, on either side of the bounds
_IDENTIFIER = re.compile(
    r"(?:^|[_\W])(?:id|uid|uuid|guid|ssn|subject|patient|respondent|record|case|index|rownames?|serial)"
    r"(?:[_\W]*(?:id|no|nr|num|number))?[_\W]*$|#$|(?<=[a-z])I[Dd]$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Draft:
    """A drafted schema and what was found on the way.

    Attributes
    ----------
    schema : Schema
        Not signed.
    findings : tuple of Finding
    """

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
    bounds: bool = True,
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
    bounds : bool
        False leaves bounds open, to be found privately.
    cell_format : CellFormat
        How numbers and dates are written in text cells.

    Raises
    ------
    InvalidInput
        The table cannot be used for lack of decisions; one message lists all of them.
    """
    columns = named_columns(frame, "frame")
    others = _asked(columns, label, groups, leave_out, features, privacy_id)
    drafting = _Drafting(cell_format, bounds)
    classes = drafting.classes(label, columns[label])
    sensitive = {name: drafting.group(name, columns[name]) for name in groups}
    described: dict[str, Column] = {}
    left_out = [*leave_out]
    for name in columns:
        if name in others:
            continue
        if features is not None and name not in features:
            left_out.append(name)
            continue
        found = drafting.feature(name, columns[name], wanted=features is not None)
        if found is None:
            left_out.append(name)
        else:
            described[name] = found
    if not described:
        drafting.add(
            "features",
            "No column is left to predict from; name some of the columns.",
            "features",
            severe=True,
        )
    drafting.summarise()
    _refuse_severe(drafting.findings)
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


def _asked(
    columns: dict[str, Any],
    label: str,
    groups: Collection[str],
    leave_out: Collection[str],
    features: Collection[str] | None,
    privacy_id: str | None,
) -> frozenset[str]:
    """Return the columns that are no features, after checking all names that were given."""
    lists = {"label": [label], "groups": groups, "leave_out": leave_out}
    lists |= {"features": features or (), "privacy_id": [] if privacy_id is None else [privacy_id]}
    problems = []
    for what, names in lists.items():
        for name in [names] if isinstance(names, str) else names:
            if not isinstance(name, str) or not name:
                raise InvalidType(f"{what} must name columns by text, got {name!r}")
            if name not in columns:
                problems.append(f"frame has no column {name!r}; its columns are {list_values(columns)}")
    seen: dict[str, str] = {}
    for what, names in lists.items():
        for name in names:
            role = {"label": "the label", "leave_out": "left out", "privacy_id": "the privacy id"}.get(what)
            role = role or f"among the {what}"
            if seen.setdefault(name, role) != role:
                problems.append(f"column {name!r} is both {seen[name]} and {role}; choose one")
    if problems:
        raise InvalidInput("; ".join(problems))
    return frozenset((label, *groups, *leave_out, *([] if privacy_id is None else [privacy_id])))


def _refuse_severe(findings: list[Finding]) -> None:
    severe = [finding for finding in findings if finding.severe]
    others = [finding for finding in findings if not finding.severe]
    if severe:
        found = f" Also found: {' '.join(map(str, others))}" if others else ""
        raise InvalidInput(f"decisions are needed: {' '.join(map(str, severe))}{found}")


# ----------------------------------------------------------------------------------- single columns


class _Drafting:
    """Describes one column after another and collects what is found."""

    def __init__(self, cell_format: CellFormat, bounds: bool) -> None:
        self.findings: list[Finding] = []
        self._format = cell_format
        self._bounds = bounds
        self._missing: dict[str, str] = {}
        self._few: list[str] = []
        self._rare: dict[str, int] = {}

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
            said = ", ".join(f"{name} {share}" for name, share in self._missing.items())
            self.add("missing", f"Cells without a value: {said}. They stay missing; nothing is filled in.")
        if self._few:
            self.add(
                "few_values",
                f"Whole numbers with few values are taken for numbers: {list_values(self._few)}. If they are "
                'codes, write type = "category" and list the values.',
            )
        if self._rare:
            said = ", ".join(f"{name} ({count})" for name, count in self._rare.items())
            self.add("rare", f"Values of few rows are not listed and count as other: {said}.")

    def classes(self, name: str, data: Any) -> list[Any] | None:
        """Return the classes of the label."""
        texts = parse_text(data, self._format)
        found = Counter(texts[texts != ""])
        gaps = int(np.sum(texts == ""))
        if gaps:
            self.add(
                "label",
                f"{_rows(gaps)} of column {name!r} without a label: not used for training.",
                column=name,
            )
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
        if rare and len(texts) >= 100:
            self.add(
                "label", f"{rare} of the {len(found)} classes have fewer than {_RARE} rows.", column=name
            )
        return _values(data, found, self._format)

    def group(self, name: str, data: Any) -> Column | None:
        """Return a sensitive column: groups if its values are few, else a number or a date."""
        kinds = _counts(data, self._format)
        self._note_missing(name, kinds)
        typed = _typed(kinds)
        texts = parse_text(data, self._format)
        found = Counter(texts[texts != ""])
        if not found:
            said = f"The sensitive column {name!r} holds nothing but missing cells."
            self.add("groups", said, "groups", name, severe=True)
            return None
        if typed is not None:
            numbers = parse_number(data, self._format).values
            distinct = np.unique(numbers[np.isfinite(numbers)])
            whole = bool(np.all(distinct == np.round(distinct)))
            if typed != CellKind.NUMBER or len(distinct) > FEW_NUMBERS or not whole:
                return self._number(name, data, typed)
            numerals = {_text(value) for value in distinct}
            found = Counter({text: count for text, count in found.items() if text in numerals})
        if len(found) > MOST_VALUES:
            said = f"The sensitive column {name!r} has {len(found)} different values; merge them into groups."
            self.add("groups", said, "groups", name, severe=True)
            return None
        values = _values(data, found, self._format)
        if np.any(texts == "") and _MISSING_GROUP not in values:
            said = f"Rows without a value of the sensitive column {name!r} are a group of their own."
            self.add("groups", said, column=name)
            return Category([*values, _MISSING_GROUP], missing=_MISSING_GROUP)
        return Category(values)

    def feature(self, name: str, data: Any, wanted: bool) -> Column | None:
        """Return what a feature is; None if it is left out."""
        kinds = _counts(data, self._format)
        known = int(kinds.sum() - kinds[CellKind.MISSING])
        if not known or kinds[CellKind.UNREADABLE] == known:
            held = "lists or other nested values" if known else "nothing but missing cells"
            self._leave_out("empty", name, f"holds {held}")
            return None
        typed = _typed(kinds)
        if typed is None:
            return self._category(name, data, kinds, wanted)
        numbers = parse_number(data, self._format).values
        distinct = np.unique(numbers[~np.isnan(numbers)])
        if len(distinct) == 1:
            self._leave_out("constant", name, "has the same value in every row")
            return None
        if not wanted and typed == CellKind.NUMBER and self._identifier(name, numbers, distinct):
            return None
        self._note_missing(name, kinds)
        if distinct.tolist() in ([0.0, 1.0], [1.0, 2.0]):
            return Category(_values(data, map(_text, distinct), self._format))
        if len(distinct) <= 20 and typed == CellKind.NUMBER and np.all(distinct == np.round(distinct)):
            self._few.append(name)
        return self._number(name, data, typed)

    def _category(self, name: str, data: Any, kinds: NDArray[np.int64], wanted: bool) -> Column | None:
        texts = parse_text(data, self._format)
        found = Counter(texts[texts != ""])
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
            if share > 0.9 or _IDENTIFIER.search(name) or _numbered(found):
                self._leave_out("identifier", name, "identifies rows, as names and case numbers do")
                return None
        self._note_missing(name, kinds)
        least = min(_RARE, max(1, len(texts) // 100))
        common = {text: count for text, count in found.most_common(MOST_VALUES) if count >= least}
        if len(common) < 2:
            self._leave_out("free_text", name, f"has {len(found)} values, nearly all of them rare")
            return None
        if len(common) < len(found):
            self._rare[name] = len(found) - len(common)
        return Category(_values(data, common, self._format))

    def _identifier(self, name: str, numbers: NDArray[np.float64], distinct: NDArray[np.float64]) -> bool:
        """Return whether a column of numbers identifies rows or persons; reported if it does."""
        known = numbers[~np.isnan(numbers)]
        whole = bool(np.all(distinct == np.round(distinct)))
        if not whole or len(known) < 20:
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
        make = Date if typed == CellKind.DATE else Number
        if not self._bounds or not len(known):
            return make()
        lower, upper = float(known.min()), float(known.max())
        if typed == CellKind.DATE:
            return Date(*_rounded_dates(lower, upper))
        if max(abs(lower), abs(upper)) > _LARGEST:
            said = f"Some values of column {name!r} are too large for bounds, which are left open."
            self.add("bounds", said, column=name)
            return make()
        return Number(*rounded_bounds(lower, upper))

    def _leave_out(self, topic: str, name: str, why: str) -> None:
        self.add(topic, f"Column {name!r} {why}; it is left out.", "features", name)

    def _note_missing(self, name: str, kinds: NDArray[np.int64]) -> None:
        gaps = kinds[CellKind.MISSING]
        if _typed(kinds) is not None:
            gaps = gaps + kinds[CellKind.WORD]
        if gaps:
            self._missing[name] = f"{int(gaps)} ({gaps / kinds.sum():.0%})"


# ---------------------------------------------------------------------------------------- parts


def _counts(data: Any, cell_format: CellFormat) -> NDArray[np.int64]:
    return np.bincount(cell_kinds(data, cell_format), minlength=len(CellKind))


def _typed(kinds: NDArray[np.int64]) -> CellKind | None:
    """Return whether nearly all cells with a value are numbers, dates or durations; None for categories."""
    known = kinds.sum() - kinds[CellKind.MISSING] - kinds[CellKind.WORD]
    for kind in (CellKind.NUMBER, CellKind.DATE, CellKind.DURATION):
        if known and kinds[kind] >= _TYPED * known:
            return kind
    return None


def _values(data: Any, found: Iterable[str], cell_format: CellFormat) -> list[Any]:
    """Return values in order, of the type that they have in the data: text, booleans or numbers."""
    texts = list(found)
    sample = [
        cell for cell in list(data[:100]) if type(cell).__name__ not in ("NoneType", "NAType", "NaTType")
    ]
    numbers = parse_number(texts, cell_format)
    if any(isinstance(cell, str) for cell in sample) or np.any(numbers.codes != NUMBER):
        return sorted(texts)
    ordered = np.sort(numbers.values)
    if sample and all(isinstance(cell, bool | np.bool_) for cell in sample):
        return [bool(value) for value in ordered]
    return [int(value) if value == int(value) else float(value) for value in ordered]


def _text(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _numbered(texts: Iterable[str]) -> bool:
    """Return whether most texts hold a number of three digits or more, as case numbers do."""
    listed = list(texts)
    return sum(re.search(r"\d{3}", text) is not None for text in listed) > 0.9 * len(listed)


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
