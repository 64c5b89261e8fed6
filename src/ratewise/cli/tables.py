"""Tables in files: CSV, CSV with gzip, Parquet."""

from __future__ import annotations

import os
from typing import Any

from ratewise.exceptions import InvalidInput
from ratewise.whole_files import write_whole

_KINDS = "CSV (.csv, .csv.gz) or Parquet (.parquet)"


def read_table(path: str, missing: tuple[str, ...] = ()) -> Any:
    """Return a table as a data frame.

    Only empty cells of a CSV file are missing, and what `missing` lists: a country code NA is a value.
    Messages never show what is in a cell.
    """
    if not os.path.isfile(path):
        raise InvalidInput(f"there is no file {path!r}")
    kind = _kind(path)
    try:
        if kind == "CSV":
            _check_header(path)
        frame = _parquet(path) if kind == "parquet" else _csv(path, missing)
    except (MemoryError, InvalidInput):
        raise
    except Exception as problem:  # readers raise what they like
        raise InvalidInput(f"cannot read {path!r} as {kind}: {_reason(problem)}") from None
    if not len(frame.columns) or not len(frame):
        raise InvalidInput(f"{path!r} holds no rows")
    return frame


def _check_header(path: str) -> None:
    """Refuse names that pandas would quietly make up or change: none, the same twice, another separator."""
    import pandas as pd

    first = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, skipinitialspace=True)
    names = [str(name) for name in first.iloc[0]]
    if len(names) == 1:
        for mark, said in ((";", "semicolons"), ("\t", "tabs")):
            if mark in names[0]:
                raise InvalidInput(f"{path!r} seems to be separated by {said}; write it with commas")
    for place, name in enumerate(names, start=1):
        if not name.strip():
            raise InvalidInput(
                f"column {place} of {path!r} has no name; name it, or write the file without row numbers"
            )
        if name in names[: place - 1]:
            raise InvalidInput(f"{path!r} has the column {name!r} twice; name each column once")


def _kind(path: str) -> str:
    name = path.lower()
    if name.endswith((".parquet", ".pq")):
        return "parquet"
    if name.endswith((".csv", ".csv.gz", ".txt")):
        return "CSV"
    raise InvalidInput(f"{path!r} is neither {_KINDS}, by its name")


def _csv(path: str, missing: tuple[str, ...]) -> Any:
    import pandas as pd

    return pd.read_csv(
        path, keep_default_na=False, na_values=["", *missing], skipinitialspace=True, low_memory=False
    )


def _parquet(path: str) -> Any:
    import pandas as pd

    return pd.read_parquet(path)


def _reason(problem: Exception) -> str:
    """Return what is wrong without quoting the file: parsers like to show the cell they stumbled over."""
    known = {
        "ParserError": "its lines do not all have the same number of fields, or quotes are not closed",
        "EmptyDataError": "it is empty",
        "UnicodeDecodeError": "it is not UTF-8 text",
        "BadGzipFile": "it is no gzip file",
        "EOFError": "it ends too early",
        "ArrowInvalid": "it is damaged or no Parquet file",
        "ImportError": "pyarrow is missing: pip install 'ratewise[cli]'",
        "PermissionError": "permission denied",
    }
    return known.get(type(problem).__name__, type(problem).__name__)


def write_table(frame: Any, path: str) -> None:
    """Write a data frame to a CSV file, in one step."""
    write_whole(path, frame.to_csv(index=False).encode("utf-8"))
