"""The public description of a table: what each column is, which values it may hold, what is to be predicted.

A schema holds no data and is written down before any row is read: by a person, who vouches that bounds and
values are public knowledge, or drafted from the data (`Schema.draft`) for a person to check and sign.

>>> schema = Schema(
...     {"age": Number(17, 90), "income": Number(), "job": Category(["clerk", "sales"])},
...     label="repaid",
...     classes=[False, True],
...     groups={"sex": Category(["Female", "Male"])},
... )
>>> schema.unbounded
('income',)
>>> Schema.from_dict(schema.to_dict()) == schema
True
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

from ratewise.columns import (
    Category,
    Column,
    Number,
    column_from,
    fields_of,
    listed,
    plain_values,
    refuse_unknown,
)
from ratewise.domain import Domain, Numeric, list_values
from ratewise.drafting import read_column
from ratewise.exceptions import InvalidInput, InvalidType, PrivacyLeakWarning
from ratewise.frames import named_columns
from ratewise.tables import as_column, distinct
from ratewise.values import in_order

__all__ = ["Category", "Column", "Number", "Schema"]

FORMAT = "ratewise-schema"
VERSION = 1


class Schema:
    """What is public about a table: features in order, the label and its classes, the sensitive columns.

    Parameters
    ----------
    columns : mapping of name to Number or Category
        The features, in the order in which a model sees them.
    label : str
        Name of the column to predict; never a feature.
    classes : iterable
        The possible labels, at least two.
    groups : mapping of name to Number or Category, or iterable of names
        Sensitive columns, which constraints may read. They are no features unless `columns` lists them too;
        by name alone they are taken from `columns`.
    signed : bool
        Whether a person vouches that all of this is public. What an unsigned schema says counts as leaked.

    Notes
    -----
    A schema is immutable, is compared by value and can be a dictionary key.
    """

    __slots__ = ("_columns", "_groups", "classes", "label", "signed")
    label: str
    classes: tuple[Any, ...]
    signed: bool
    _columns: dict[str, Column]
    _groups: dict[str, Column]

    def __init__(
        self,
        columns: Mapping[str, Column],
        *,
        label: str,
        classes: Iterable[Any],
        groups: Mapping[str, Column] | Iterable[str] = (),
        signed: bool = True,
    ) -> None:
        features = _described("columns", columns)
        if not features:
            raise InvalidInput("columns must describe at least one feature, got none")
        known = tuple(in_order(plain_values("classes", classes)))
        if len(known) < 2:
            raise InvalidInput(f"classes must hold at least two values, got {list_values(known)}")
        sensitive = _groups(groups, features)
        name = _name("label", label)
        for place, described in (("columns", features), ("groups", sensitive)):
            if name in described:
                raise InvalidInput(f"label {name!r} is also among the {place}; a label cannot be given away")
        _refuse_two_minds(features, sensitive)
        if not isinstance(signed, bool):
            raise InvalidType(f"signed must be True or False, got {signed!r}")
        for slot, value in (
            ("_columns", features),
            ("_groups", sensitive),
            ("classes", known),
            ("label", name),
            ("signed", signed),
        ):
            object.__setattr__(self, slot, value)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a schema is immutable, cannot set {name}; make a new one")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._columns, self.label, self.classes, self._groups, self.signed)

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
        """Names of all columns that the schema speaks of: features, sensitive columns, label."""
        return tuple(dict.fromkeys((*self._columns, *self._groups, self.label)))

    @property
    def group_values(self) -> dict[str, Any]:
        """Values of each sensitive column, or ``Numeric()``: what `RateConstrainedClassifier` asks for."""
        return {
            name: column.values if isinstance(column, Category) else Numeric()
            for name, column in self._groups.items()
        }

    @property
    def domain(self) -> Domain:
        """The classes and sensitive columns, for compiling constraints."""
        return Domain(self.classes, self.group_values)

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Names of the numbers that lack a bound."""
        return tuple(
            name
            for name, column in self._columns.items()
            if isinstance(column, Number) and not column.bounded
        )

    @property
    def n_features(self) -> int:
        """Number of encoded features: one per number, one per value of a category."""
        return sum(
            len(column.values) if isinstance(column, Category) else 1 for column in self._columns.values()
        )

    @property
    def leaks(self) -> tuple[str, ...]:
        """What an unsigned schema gives away, in words; nothing once it is signed."""
        if self.signed:
            return ()
        found = ["the classes"]
        for name, column in {**self._groups, **self._columns}.items():
            if isinstance(column, Category):
                found.append(f"the values of column {name!r}")
            elif column.lower is not None or column.upper is not None:
                found.append(f"the bounds of column {name!r}")
        return tuple(found)

    @property
    def public(self) -> tuple[str, ...]:
        """What a signed schema declares as public, in words; nothing while it is not signed."""
        if not self.signed:
            return ()
        found = ["the classes"]
        for name, column in {**self._groups, **self._columns}.items():
            if isinstance(column, Category):
                found.append(f"the values of column {name!r}")
            elif column.bounded:
                found.append(f"the bounds of column {name!r}, at which values are cut off")
        return tuple(found)

    # --- other schemas ---------------------------------------------------------------------------------

    def sign(self) -> Schema:
        """Return the same schema, vouched for: every bound and every value in it is public knowledge."""
        return self._with(signed=True)

    def with_bounds(self, bounds: Mapping[str, tuple[float, float]]) -> Schema:
        """Return the same schema with bounds for the named numbers; sides that are declared stay."""
        columns = self.columns
        for name, (lower, upper) in bounds.items():
            column = columns.get(name)
            if not isinstance(column, Number):
                raise InvalidInput(f"bounds are for numbers, but {name!r} is none of the schema's")
            columns[name] = dataclasses.replace(
                column,
                lower=lower if column.lower is None else column.lower,
                upper=upper if column.upper is None else column.upper,
            )
        return self._with(columns=columns)

    def _with(self, **changes: Any) -> Schema:
        said = {
            "columns": self._columns,
            "label": self.label,
            "classes": self.classes,
            "groups": self._groups,
            "signed": self.signed,
        }
        return Schema(**{**said, **changes})

    # --- plain data ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain data without None, fit for JSON and TOML; `from_dict` reads it back."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "signed": self.signed,
            "label": {"name": self.label, "classes": list(self.classes)},
            "groups": {name: column.to_dict() for name, column in self._groups.items()},
            "columns": {name: column.to_dict() for name, column in self._columns.items()},
        }

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Schema:
        """Read back what `to_dict` wrote, or a person by hand.

        Raises
        ------
        InvalidInput, InvalidType
            A field is missing, unknown or of the wrong kind; the message says where.
        """
        fields = fields_of(
            "a schema", description, needed=("format", "version", "signed", "label", "columns")
        )
        if fields.pop("format") != FORMAT:
            raise InvalidInput(f"format must be {FORMAT!r}, got {description['format']!r}")
        version = fields.pop("version")
        if version != VERSION or isinstance(version, bool):
            raise InvalidInput(f"version must be {VERSION}, got {version!r}; read it with a newer ratewise")
        label = fields_of("label", fields.pop("label"), needed=("name", "classes"))
        columns, groups = fields.pop("columns"), fields.pop("groups", {})
        signed = fields.pop("signed")
        refuse_unknown("a schema", fields)
        name, classes = label.pop("name"), label.pop("classes")
        refuse_unknown("label", label)
        return cls(
            _columns_from("columns", columns),
            label=name,
            classes=listed("label.classes", classes),
            groups=_columns_from("groups", groups),
            signed=signed,
        )

    @classmethod
    def draft(
        cls,
        frame: Any,
        *,
        label: str,
        groups: Collection[str] = (),
        leave_out: Collection[str] = (),
        bounds: bool = True,
    ) -> Schema:
        """Return a schema **read off the data**, not signed, for a person to check.

        Smallest and largest entries, and values that occur once, are what a private model must not tell:
        round the bounds outward, strike out values that only one person has, then call `sign`.

        Parameters
        ----------
        frame : data frame, Arrow table, mapping of columns or record array
        label : str
        groups : collection of str
            The sensitive columns. They are not made features.
        leave_out : collection of str
            Columns that are neither label, group nor feature.
        bounds : bool
            False leaves bounds open, to be found privately.
        """
        columns = named_columns(frame, "frame")
        for name in (_name("label", label), *(_name("groups", g) for g in groups), *leave_out):
            if name not in columns:
                raise InvalidInput(f"frame has no column {name!r}; its columns are {list_values(columns)}")
        for name in groups:
            if name == label or name in leave_out:
                role = "the label" if name == label else "left out"
                raise InvalidInput(f"column {name!r} is both {role} and among the groups; choose one")
        warnings.warn(
            "this schema was read off the data: check every bound and value, strike out what is not public "
            "knowledge, then call sign(); until then it counts as a leak",
            PrivacyLeakWarning,
            stacklevel=2,
        )
        read = {
            name: read_column(name, data, bounds, group=name in groups)
            for name, data in columns.items()
            if name != label and name not in leave_out
        }
        sensitive = {name: read[name] for name in groups}
        return cls(
            {name: column for name, column in read.items() if name not in sensitive},
            label=label,
            classes=distinct(as_column(columns[label], f"column {label!r}"), f"column {label!r}"),
            groups=sensitive,
            signed=False,
        )

    # --- manners ---------------------------------------------------------------------------------------

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
        return "\n".join(
            [
                "Schema(",
                "    {",
                *lines,
                "    },",
                f"    label={self.label!r},",
                f"    classes={list(self.classes)!r},",
                *(["    groups={", *groups, "    },"] if groups else []),
                f"    signed={self.signed!r},",
                ")",
            ]
        )


def _rebuilt(
    columns: dict[str, Column], label: str, classes: tuple[Any, ...], groups: dict[str, Column], signed: bool
) -> Schema:
    return Schema(columns, label=label, classes=classes, groups=groups, signed=signed)


# ----------------------------------------------------------------------------- what was declared


def _name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidType(f"{what} must be the name of a column, text that is not empty; got {name!r}")
    return name


def _described(what: str, columns: Any) -> dict[str, Column]:
    if not isinstance(columns, Mapping):
        raise InvalidType(
            f"{what} must map names to Number(...) or Category(...), got {type(columns).__name__}"
        )
    for name, column in columns.items():
        _name(what, name)
        if not isinstance(column, Number | Category):
            raise InvalidType(
                f"{what}[{name!r}] must be Number(lower, upper) or Category(values), got {column!r}"
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


def _refuse_two_minds(features: Mapping[str, Column], sensitive: Mapping[str, Column]) -> None:
    for name in features.keys() & sensitive.keys():
        first, second = features[name], sensitive[name]
        if type(first) is not type(second) or (isinstance(first, Category) and first != second):
            raise InvalidInput(f"column {name!r} is described in columns and in groups, and differently")


# ------------------------------------------------------------------------------- from plain data


def _columns_from(what: str, table: Any) -> dict[str, Column]:
    if not isinstance(table, Mapping):
        raise InvalidType(f"{what} must be a table of columns by name, got {type(table).__name__}")
    return {name: column_from(f"{what}.{name}", described) for name, described in table.items()}
