"""Which columns of a table are what, and whether its partitions agree: public facts of tables that stay where they are.

Supported tables are `pyarrow.dataset.Dataset`, `dask.dataframe.DataFrame` and `pyspark.sql.DataFrame`. Labels,
sensitive features and ids are columns of the table, given by name. None of the three packages is imported here: a
table is known by the module of its type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ratewise.exceptions import InvalidInput, InvalidType

ARROW, DASK, SPARK = "pyarrow dataset", "Dask data frame", "Spark data frame"
_MODULES = {"pyarrow": ARROW, "dask": DASK, "pyspark": SPARK}


@dataclass(frozen=True)
class Layout:
    """The columns of a table by their use.

    Attributes
    ----------
    features : tuple of str
        All columns but the label and the id; sensitive columns are among them.
    label : str
    groups : tuple of str
        Sensitive columns that constraints read.
    ids : str or None
    """

    features: tuple[str, ...]
    label: str
    groups: tuple[str, ...] = ()
    ids: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns in use, each once."""
        own = (self.label,) if self.ids is None else (self.label, self.ids)
        return (*self.features, *own)


def table_kind(table: Any) -> str | None:
    """Return which supported kind of table this is, None for data in memory."""
    kinds = type(table).__mro__
    for kind in kinds:
        package = kind.__module__.partition(".")[0]
        if package in _MODULES and kind.__name__ in ("Dataset", "DataFrame"):
            return _MODULES[package]
    return None


def layout_of(
    columns: Sequence[Any], y: Any, sensitive: Any, ids: Any, needed: Collection[str] | None
) -> Layout:
    """Return the layout of a table; names that are no columns are errors.

    Parameters
    ----------
    columns : sequence of str
        Columns of the table.
    y, sensitive, ids
        As given to `fit`: the names of columns.
    needed : collection of str or None
        Sensitive columns that constraints read; None keeps all.
    """
    names = [name for name in columns if isinstance(name, str)]
    if len(names) < len(columns) or len(set(names)) < len(names):
        raise InvalidType("the columns of X must have distinct names that are text")
    if not isinstance(y, str):
        raise InvalidType(f"y must be the name of a column of X for such a table, got {type(y).__name__}")
    if ids is not None and not isinstance(ids, str):
        raise InvalidType(
            f"privacy_ids must be the name of a column of X for such a table, got {type(ids).__name__}"
        )
    given = () if sensitive is None else (sensitive,) if isinstance(sensitive, str) else sensitive
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise InvalidType(
            "sensitive_features must be names of columns of X for such a table, "
            f"got {type(sensitive).__name__}"
        )
    asked = {"y": (y,), "privacy_ids": () if ids is None else (ids,), "sensitive_features": tuple(given)}
    for what, wanted in asked.items():
        absent = [name for name in wanted if name not in names]
        if absent:
            raise InvalidInput(f"{what} is {absent[0]!r}, which is no column of X")
    missing = sorted(set(needed or ()) - set(given))
    if missing:
        raise InvalidInput(f"constraints read the column {missing[0]!r}; name it in sensitive_features")
    features = tuple(name for name in names if name not in (y, ids))
    if not features:
        raise InvalidInput("0 feature(s) (X has no columns but y) while a minimum of 1 is required.")
    return Layout(features, y, tuple(name for name in given if needed is None or name in needed), ids)


def refuse_other_columns(expected: Collection[str], found: Collection[str], where: str) -> None:
    """Raise if a partition lacks a column. Types may differ: one row can change how its partition is stored."""
    absent = [name for name in expected if name not in found]
    if absent:
        raise InvalidInput(
            f"{where} lacks the column {absent[0]!r}; all partitions must have the same columns"
        )


def refuse_change(expected: int, found: int, where: str) -> None:
    """Raise if a partition has another number of rows than when it was counted."""
    if found != expected:
        raise InvalidInput(
            f"the table changed while it was read: {where} no longer has the number of rows it was counted with. "
            "Use a table that nobody writes to; releases so far are in the ledger"
        )
