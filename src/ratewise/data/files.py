"""Tables in files: CSV and other text tables, Excel, Parquet, Arrow and JSON, read as they come.

`read_table` detects how a file is written, converts its cells, and reports every decision as a `Finding`. It
looks at the file for its owner; detection is outside any privacy guarantee. What becomes of a single cell is
decided by `ratewise.data.cells` and the detected `CellFormat`: a stray word in a column of numbers does not
change how the other cells are read. Messages never show the content of a cell.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import datetime
import difflib
import gzip
import io
import itertools
import json
import lzma
import os
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, TextIO, cast

import numpy as np

from ratewise._files import write_whole
from ratewise.constraints.domain import list_values
from ratewise.data.cells import CellFormat, CellKind, cell_kinds, parse_number, parse_text
from ratewise.data.table import Finding
from ratewise.exceptions import InvalidInput, InvalidType

# ------------------------------------------------------------------------------------------- text tables


SEPARATORS = ("\t", ";", "|", ",", " ")
SEPARATOR_NAMES = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas", " ": "spaces"}
_SURPLUS = "\x00surplus"  # the column of fields beyond the names; no file can name a column so

_SAMPLE_LINES = 300
_SAMPLE_CHARACTERS = 1 << 20
_ROW_NAMES = ("", "__index_level_0__")  # the latter is how Arrow names an index of pandas
_COMMENT_MARKS = ("#", "%", "//")
_MARKS = (  # first bytes of files with a byte order mark
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with a byte order mark"),
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
_PLAIN_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u2009\u202f", " "))
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})(?![\d./-])", re.ASCII)


@dataclass(frozen=True)
class Dialect:
    """How a text table is written; what is None is detected.

    Parameters
    ----------
    sep : str or None
    decimal : {".", ","} or None
    encoding : str or None
    header : bool or None
        Whether the first line of the table holds the names of the columns.
    missing : tuple of str
        Cells that are missing, besides empty ones.
    date_order : {"dmy", "mdy"} or None
    """

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    header: bool | None = None
    missing: tuple[str, ...] = ()
    date_order: str | None = None


# ------------------------------------------------------------------------------------ bytes and text


def open_bytes(path: str) -> BinaryIO:
    """Open a file for reading; gzip, bzip2, xz and a zip archive of one file are unpacked on the way."""
    with open(path, "rb") as file:
        start = file.read(8)
    for mark, unpack in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open)):
        if start.startswith(mark):
            return cast(BinaryIO, unpack(path, "rb"))
    if start.startswith(b"PK\x03\x04"):
        archive = zipfile.ZipFile(path)
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if len(names) != 1:
            raise InvalidInput(
                f"{path!r} is an archive of {len(names)} files; unpack it and name one of them"
            )
        return cast(BinaryIO, archive.open(names[0]))
    return open(path, "rb")


def detect_encoding(path: str) -> tuple[str, str | None]:
    """Return the encoding of a text file, and its name for a message unless it is plain UTF-8."""
    with open_bytes(path) as file:
        start = file.read(1 << 20)
    for mark, encoding, name in _MARKS:
        if start.startswith(mark):
            return encoding, name
    if len(start) > 1 and start.count(b"\x00") * 4 > len(start):
        little = start[1::2].count(b"\x00") > start[::2].count(b"\x00")
        return ("utf-16-le" if little else "utf-16-be"), "UTF-16"
    damaged, sound = _damage(path, "utf-8")
    if not damaged:
        return "utf-8", None
    if damaged < sound:
        return "utf-8", f"UTF-8, except {damaged:,} damaged characters"
    try:
        with _open_text(path, "cp1252") as text:
            while text.read(1 << 20):
                pass
    except UnicodeDecodeError:
        return "latin-1", "Latin-1"
    return "cp1252", "Windows-1252 (Western European)"


def _damage(path: str, encoding: str) -> tuple[int, int]:
    """Return how many characters of UTF-8 text cannot be read, and how many others are not ASCII."""
    damaged = sound = 0
    with _open_text(path, encoding) as text:
        while part := text.read(1 << 20):
            broken = part.count("\ufffd")
            damaged, sound = damaged + broken, sound + len(_NOT_ASCII.findall(part)) - broken
    return damaged, sound


def _open_text(path: str, encoding: str) -> TextIO:
    """Open text; in UTF-8 a damaged character is replaced, since `_sample` has counted them."""
    errors = "replace" if codecs.lookup(encoding).name.startswith("utf-8") else "strict"
    return io.TextIOWrapper(open_bytes(path), encoding=encoding, newline="", errors=errors)


# --------------------------------------------------------------------------------- shape of the table


def split(lines: Sequence[str], sep: str) -> list[list[str]]:
    """Return the records of some lines, without blank ones."""
    if sep == " ":
        reader = csv.reader((line.strip() for line in lines), delimiter=" ", skipinitialspace=True)
    else:
        reader = csv.reader(lines, delimiter=sep, skipinitialspace=True)
    return [record for record in reader if any(field.strip() for field in record)]


def detect_separator(lines: Sequence[str]) -> str:
    """Return the separator that splits most lines into the same number of fields, two or more."""
    best, found = 0.0, ","
    for sep in SEPARATORS:
        try:
            widths = Counter(map(len, split(lines, sep)))
        except csv.Error:
            continue
        width, count = _most_common(widths)
        share = count / max(1, widths.total())
        if sep == " ":
            share *= 0.5  # text has spaces, too
        if width > 1 and share > best + (0.05 if best else 0.0):
            best, found = share, sep
    return found


def _fields(line: str, sep: str) -> int:
    records = split([line], sep)
    return len(records[0]) if records else 0


def _comment(line: str, sep: str, width: int) -> bool:
    """Return whether a line is a comment: it begins with a comment mark and has not the fields of a row."""
    return line.lstrip().startswith(_COMMENT_MARKS) and (width == 1 or _fields(line, sep) != width)


def looks_like_names(first: Sequence[Any], rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether the first record holds names rather than values, judged by the records below it."""
    for_names = against = 0
    for place, cell in enumerate(first):
        below = [row[place] for row in rows if place < len(row)]
        kinds = cell_kinds([cell, *below])
        counts = np.bincount(kinds[1:], minlength=len(CellKind))
        values = counts[[CellKind.NUMBER, CellKind.DATE, CellKind.DURATION]].sum() > counts[CellKind.TEXT]
        if kinds[0] == CellKind.TEXT:
            repeated = str(cell).strip() in {str(other).strip() for other in below}
            for_names += values and not repeated
            against += repeated
        elif _year(cell) and not any(map(_year, below)):
            for_names += 1
        elif kinds[0] != CellKind.MISSING:
            against += values or kinds[0] == CellKind.WORD
    return bool(for_names > against or not against)


def _year(cell: Any) -> bool:
    return re.fullmatch(r"(19|20)\d\d", str(cell).strip()) is not None


def detect_format(rows: Sequence[Sequence[str]], sep: str, dialect: Dialect) -> CellFormat:
    """Return how numbers and dates are written, judged by a sample of cells."""
    cells = [cell.strip().strip("$\u20ac\u00a3\u00a5%").strip() for row in rows for cell in row if cell]
    order = dialect.date_order or _date_order(cells, sep)
    cells = [cell.translate(_PLAIN_SPACES) for cell in cells if not _DATE.match(cell)]
    numeric = [cell for cell in cells if re.fullmatch(r"[+-]?\d[\d.,' ]*", cell)]
    commas = [cell for cell in numeric if "," in cell]
    decimal = dialect.decimal
    if decimal is None:
        groups = {cell for cell in commas if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", cell)}
        fractions = {cell for cell in commas if re.fullmatch(r"[+-]?\d[\d.' ]*,\d+", cell)}
        either = sep == ";" and bool(fractions & groups)  # 1,234 is a fraction where fields end in semicolons
        decimal = "," if len(fractions - groups) + either > len(groups - fractions) else "."
    thousands = None
    for mark in ("," if decimal == "." else ".", "'", " "):
        pattern = re.compile(rf"[+-]?\d{{1,3}}({re.escape(mark)}\d{{3}})+({re.escape(decimal)}\d*)?")
        marked = [cell for cell in numeric if mark in cell]
        if marked and sum(pattern.fullmatch(cell) is not None for cell in marked) >= 0.9 * len(marked):
            thousands = mark
            break
    return CellFormat(decimal=decimal, thousands=thousands, date_order=order, missing=dialect.missing)


def _date_order(cells: Sequence[str], sep: str) -> str | None:
    found = [match for cell in cells if (match := _DATE.match(cell)) is not None]
    if not found:
        return None
    first, second = (max(int(match[place]) for match in found) for place in (1, 3))
    if first > 12 or second > 12:
        return "dmy" if first > 12 else "mdy"
    return "mdy" if found[0][2] == "/" and sep == "," else "dmy"


# ------------------------------------------------------------------------------------------- reading


def _text(path: str, given: Dialect) -> FileTable:
    """Read a text table; cells that are empty, or listed as missing, are missing."""
    import pandas as pd

    findings: list[Finding] = []
    dialect, lines, wrapped = _sample(path, given, findings)
    sep = str(dialect.sep)
    width = _width(lines, sep)
    skipped = _preamble(lines, sep, width)
    comments = any(_comment(line, sep, width) for line in lines[skipped:])
    _report_preamble(skipped, "line", findings)
    if comments:
        findings.append(Finding("comments", "Lines that begin with a comment mark are left out."))
    records = split([line for line in lines[skipped:] if not _comment(line, sep, width)], sep)
    header = header_of(records, dialect.header, findings)
    heading, named = heading_rows(records, findings) if header else (0, 0)
    cell_format = detect_format(records[heading:], sep, dialect)

    def read(columns: list[Any], **more: Any) -> tuple[list[str] | None, Any]:
        with _open_text(path, str(dialect.encoding)) as file, warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # fields are left out
            for _ in range(skipped):
                file.readline()
            source: TextIO = file
            if wrapped or comments:
                plain = map(_unwrapped, file) if wrapped else file
                source = io.StringIO("".join(line for line in plain if not _comment(line, sep, width)))
            above = [_names(source, sep) for _ in range(heading)]
            names = above[named] if header else None
            return names, pd.read_csv(
                source,
                sep=r"\s+" if sep == " " else sep,
                header=None,
                names=columns,
                index_col=False,
                decimal=cell_format.decimal,
                keep_default_na=False,
                na_values=["", *dialect.missing],
                skipinitialspace=True,
                low_memory=False,
                **more,
            )

    try:
        names, frame = read([*range(width)])
    except (pd.errors.ParserError, pd.errors.ParserWarning):  # some line has more fields
        names, frame = read([*range(width), _SURPLUS], usecols=range(width + 1))
        surplus = int(frame.pop(_SURPLUS).notna().sum())
        said = (
            f"{surplus} {'line has' if surplus == 1 else 'lines have'} more fields than there are columns; "
        )
        said += "what is beyond the last column is left out. Put fields that hold the separator in quotes."
        findings += [Finding("ragged", said, "sep")] if surplus else []
    if names is not None and len(names) == width - 1:
        # lines end in a separator; or the first column holds names of rows, as R writes them
        names = [*names, ""] if frame[width - 1].isna().all() else ["", *names]
    _report_codes(records[heading:], names, findings)
    if cell_format.decimal == "," and given.decimal is None:
        findings.append(Finding("decimal", "Numbers are written with a decimal comma.", "decimal"))
    if cell_format.thousands is not None:
        mark = {" ": "a space", "'": "an apostrophe", ",": "a comma", ".": "a point"}
        said = f"Thousands are separated by {mark[cell_format.thousands]}."
        findings.append(Finding("thousands", said, "decimal"))
    options = {"sep": sep, "decimal": cell_format.decimal, "encoding": dialect.encoding, "header": header}
    options |= {} if cell_format.date_order is None else {"date_order": cell_format.date_order}
    return _finished(frame, dialect, findings, names, cell_format, options)


def _report_preamble(count: int, what: str, findings: list[Finding]) -> None:
    if count:
        said = f"{what} before the table was" if count == 1 else f"{what}s before the table were"
        findings.append(Finding("preamble", f"{count} {said} left out."))


def _report_codes(rows: Sequence[Sequence[str]], names: list[str] | None, findings: list[Finding]) -> None:
    """Report columns of digits with leading zeros: postcodes and case numbers are read as numbers."""
    coded = []
    for place in range(max(map(len, rows), default=0)):
        cells = [row[place].strip() for row in rows if place < len(row) and row[place].strip()]
        if all(cell.isdigit() for cell in cells) and any(re.match(r"0\d", cell) for cell in cells):
            coded.append(names[place] if names and place < len(names) else f"column_{place + 1}")
    if coded:
        said = f"Numbers with leading zeros look like codes: {list_values(coded)}. They are read as numbers; if they "
        findings.append(
            Finding("codes", said + "are codes, leave the column out or declare it as a category.")
        )


def _sample(path: str, dialect: Dialect, findings: list[Finding]) -> tuple[Dialect, list[str], bool]:
    """Return the dialect with encoding and separator, the first lines, and whether each line is in quotes as a whole."""
    dialect = replace(dialect, encoding=_encoding(path, dialect.encoding, findings))
    with _open_text(path, str(dialect.encoding)) as file:
        lines = list(itertools.islice(_limited(file), _SAMPLE_LINES))
    if not any(line.strip() for line in lines):
        raise InvalidInput(f"{path!r} is empty; give a file with a table in it")
    detected = detect_separator([line for line in lines if not line.lstrip().startswith(_COMMENT_MARKS)])
    wrapped = False
    if _width(lines, detected) == 1:
        inner = [_unwrapped(line) for line in lines]
        within = detect_separator(inner)
        wrapped = _width(inner, within) > 1
        if wrapped:
            lines, detected = inner, within
            findings.append(Finding("quotes", "Every line is in quotes as a whole, which are left out."))
    if dialect.sep is None:
        if detected != ",":
            findings.append(
                Finding("separator", f"Fields are separated by {SEPARATOR_NAMES[detected]}.", "sep")
            )
        return replace(dialect, sep=detected), lines, wrapped
    if _width(lines, dialect.sep) == 1 and _width(lines, detected) > 1:
        raise InvalidInput(
            f"sep is {dialect.sep!r}, but the lines of {path!r} have one field each; leave sep out to have it "
            "detected"
        )
    return dialect, lines, wrapped


def _encoding(path: str, given: str | None, findings: list[Finding]) -> str:
    if given is None:
        encoding, name = detect_encoding(path)
        if name is not None:
            findings.append(Finding("encoding", f"The file is encoded in {name}.", "encoding"))
        return encoding
    if codecs.lookup(given).name.startswith("utf-8"):
        damaged, sound = _damage(path, given)
        if damaged > sound:
            raise UnicodeError
    return given


def _unwrapped(line: str) -> str:
    """Return the content of a line that is one quoted field; any other line as it is."""
    fields = next(csv.reader([line]), [])
    return f"{fields[0]}\n" if len(fields) == 1 else line


def header_of(records: Sequence[Sequence[Any]], declared: bool | None, findings: list[Finding]) -> bool:
    """Return whether the first record holds the names of the columns; reported if it was detected not to."""
    if declared is not None:
        return declared
    found = looks_like_names(records[0], records[1:_SAMPLE_LINES])
    if not found:
        said = (
            f"The first line holds values, not names: columns are named column_1 to column_{len(records[0])}."
        )
        findings.append(Finding("header", said, "header"))
    return found


def heading_rows(records: Sequence[Sequence[Any]], findings: list[Finding]) -> tuple[int, int]:
    """Return how many rows are above the values, and which of them (from 0) holds the names of the columns.

    A row below the names that has text, or nothing, in every column of numbers and dates holds names, too, or units.
    """
    count, named = 1, 0
    while len(records) > count + 2 and _above_values(records[count], records[count + 1 : _SAMPLE_LINES]):
        texts = ["" if cell is None else str(cell).strip() for cell in records[count]]
        if (
            all(texts)
            and len(set(texts)) == len(texts)
            and sum(" " in text for text in texts) * 2 <= len(texts)
        ):
            named = count
        count += 1
    if count > 1:
        said = f"{count} rows are above the values; row {named + 1} of them holds the names, and the rest is left out."
        findings.append(Finding("header", said))
    return count, named


def _above_values(row: Sequence[Any], rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether a row has text or nothing where the rows below have values, in two columns or more."""
    columns = texts = 0
    for place, cell in enumerate(row):
        kinds = cell_kinds([cell, *(other[place] for other in rows if place < len(other))])
        counts = np.bincount(kinds[1:], minlength=len(CellKind))
        if counts[[CellKind.NUMBER, CellKind.DATE, CellKind.DURATION]].sum() > counts[CellKind.TEXT]:
            if kinds[0] not in (CellKind.TEXT, CellKind.MISSING):
                return False
            columns, texts = columns + 1, texts + (kinds[0] == CellKind.TEXT)
    return columns > 1 and texts > 1


def _limited(file: TextIO) -> Iterator[str]:
    """Yield lines up to a number of characters: the file may be one line of gigabytes."""
    left = _SAMPLE_CHARACTERS
    while left > 0 and (line := file.readline(left)):
        left -= len(line)
        if line.endswith(("\n", "\r")) or left > 0:
            yield line
    # a line that was cut off is not looked at, unless it is the only one


def _width(lines: Sequence[str], sep: str) -> int:
    """Return the number of fields of most records."""
    return _most_common(Counter(map(len, split(lines, sep))))[0]


def _most_common(widths: Counter[int]) -> tuple[int, int]:
    """Return the most common width and its count; of several, the largest."""
    return max(widths.items(), key=lambda item: (item[1], item[0]), default=(1, 0))


def _preamble(lines: Sequence[str], sep: str, width: int) -> int:
    """Return the number of lines before the table: blank ones, comments, and ones with too few fields."""
    for place, line in enumerate(lines):
        title = (
            width > 2 and sum(bool(part.strip()) for part in line.split(sep)) < 2
        )  # padded with separators
        if title or not line.strip() or _comment(line, sep, width):
            continue
        # a header may lack the name of the first column, or have a name of two lines
        if _fields(line, sep) >= min(width, max(2, width - 1)) or line.count('"') % 2:
            return place
    return 0


def _names(source: Any, sep: str) -> list[str]:
    """Read the header record off the source, which is left at the line after it."""
    for record in csv.reader(iter(source.readline, ""), delimiter=sep, skipinitialspace=True):
        fields = [field for field in record if field] if sep == " " else record
        if any(field.strip() for field in fields):
            return fields
    return []


# ---------------------------------------------------------------------------------------------- any file


_KNOWN = "a text table (.csv, .tsv, .txt, also .gz), Excel (.xlsx), Parquet (file or folder), JSON lines"
_OTHER_FORMATS = {
    ".xls": "an old Excel workbook; save it as .xlsx or .csv",
    ".xlsb": "a binary Excel workbook; save it as .xlsx or .csv",
    ".ods": "an OpenDocument spreadsheet; save it as .xlsx or .csv",
    ".sav": "an SPSS file; export it as .csv or .parquet",
    ".dta": "a Stata file; export it as .csv or .parquet",
    ".sas7bdat": "a SAS file; export it as .csv or .parquet",
    **dict.fromkeys((".rds", ".rdata"), "an R file; export it as .csv or .parquet"),
    **dict.fromkeys((".pkl", ".pickle"), "a pickle, which can run code; export it as .csv or .parquet"),
    ".pdf": "a PDF; export the table as .csv",
    ".arff": "an ARFF file; export it as .csv",
}


@dataclass(frozen=True, eq=False)
class FileTable:
    """A table read from a file.

    Attributes
    ----------
    frame : pandas data frame
        Columns with distinct names; numbers, dates and text.
    findings : tuple of Finding
        What was detected or changed, in the order of reading.
    options : dict
        The arguments of `read_table` that read a further file in the same way.
    """

    frame: Any
    findings: tuple[Finding, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def read_table(
    path: Any,
    *,
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    sheet: str | int | None = None,
    missing: Sequence[str] = (),
    date_order: str | None = None,
) -> FileTable:
    """Read a table and report what was detected.

    Parameters
    ----------
    path : str or path
        A text table, also compressed; an Excel workbook; a Parquet file or a folder of them; Arrow; JSON lines.
    sep : str, optional
        Separator of fields of a text table, one character.
    decimal : {".", ","}, optional
        Decimal mark of numbers in text.
    encoding : str, optional
        Encoding of a text table, such as "cp1252".
    header : bool, optional
        Whether the first row holds the names of the columns.
    sheet : str or int, optional
        Sheet of a workbook, by name or by number from 1.
    missing : sequence of str
        Texts that mean a missing value, besides empty cells. In columns of numbers also "n/a", "?" and such.
    date_order : {"dmy", "mdy"}, optional
        How a date such as 03/04/2020 is read.

    Raises
    ------
    InvalidInput
        The file cannot be read, or holds no rows; the message says what to do.
    """
    place = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(place, str):
        raise InvalidType(f"path must be the path of a file, got {type(path).__name__}")
    dialect = _checked(Dialect(sep, decimal, encoding, header, tuple(missing), date_order))
    if not os.path.exists(place):
        folder, name = os.path.split(place)
        near = (
            difflib.get_close_matches(name, os.listdir(folder or "."), n=1)
            if os.path.isdir(folder or ".")
            else []
        )
        hint = f"; did you mean {os.path.join(folder, near[0])!r}?" if near else "; check its name and folder"
        raise InvalidInput(f"there is no file {place!r}{hint}")
    kind = "a table"
    try:
        kind = _kind(place)
        if sheet is not None and kind != "Excel":
            raise InvalidInput(f"sheet is {sheet!r}, but {place!r} is no Excel workbook; leave it out")
        if kind == "a text table":
            table = _text(place, dialect)
        elif kind == "Excel":
            table = _excel(place, dialect, sheet)
        else:
            table = _finished(_json(place) if kind == "JSON" else _arrow(place, kind), dialect, [], None)
    except (MemoryError, InvalidInput):
        raise
    except Exception as problem:  # readers raise what they like
        raise InvalidInput(f"cannot read {place!r} as {kind}: {_reason(problem, encoding)}") from None
    if not len(table.frame.columns) or not len(table.frame):
        raise InvalidInput(f"{place!r} holds no rows; give a file with a header and at least one row")
    return table


def write_table(frame: Any, path: str) -> None:
    """Write a data frame to a CSV file, in one step."""
    write_whole(path, frame.to_csv(index=False).encode("utf-8"))


def _checked(dialect: Dialect) -> Dialect:
    if dialect.sep is not None and (not isinstance(dialect.sep, str) or len(dialect.sep) != 1):
        named = {
            "tab": "\t",
            "\\t": "\t",
            "comma": ",",
            "semicolon": ";",
            "space": " ",
            "bar": "|",
            "pipe": "|",
        }
        if dialect.sep not in named:
            raise InvalidInput(f"sep must be one character or one of {', '.join(named)}; got {dialect.sep!r}")
        dialect = replace(dialect, sep=named[dialect.sep])
    if dialect.encoding is not None:
        try:
            codecs.lookup(dialect.encoding)
        except (LookupError, TypeError):
            raise InvalidInput(
                f"encoding must be the name of a text encoding such as 'utf-8' or 'cp1252', got "
                f"{dialect.encoding!r}"
            ) from None
    if dialect.header is not None and not isinstance(dialect.header, bool):
        raise InvalidType(f"header must be True, False or None, got {dialect.header!r}")
    CellFormat(decimal=dialect.decimal or ".", date_order=dialect.date_order, missing=dialect.missing)
    return dialect


def _kind(path: str) -> str:
    """Return the kind of a file by its first bytes; the name decides between kinds of text only."""
    if os.path.isdir(path):
        return "a folder of Parquet files"
    with open(path, "rb") as file:
        start = file.read(8)
    suffix = os.path.splitext(path.lower())[1]
    if start.startswith(b"PAR1"):
        return "Parquet"
    if start.startswith((b"ARROW1", b"FEA1")):
        return "Arrow"
    if start.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(path) as archive:
            if "xl/workbook.xml" in archive.namelist():
                return "Excel"
    if start.startswith(b"\xd0\xcf\x11\xe0"):
        suffix = ".xls"
    if suffix in _OTHER_FORMATS:
        raise InvalidInput(f"{path!r} is {_OTHER_FORMATS[suffix]}")
    if suffix in (".parquet", ".pq", ".xlsx"):
        raise InvalidInput(
            f"{path!r} is no {'Excel workbook' if suffix == '.xlsx' else 'Parquet file'}, or is damaged; it "
            "does not begin like one. Write it again"
        )
    if suffix in (".jsonl", ".ndjson", ".json"):
        return "JSON"
    return "a text table"


# --------------------------------------------------------------------------------------- kinds of files


def _excel(path: str, dialect: Dialect, sheet: str | int | None) -> FileTable:
    import pandas as pd
    from openpyxl import load_workbook

    book = load_workbook(path, read_only=True, data_only=True)
    try:
        sheets = {each.title: each for each in book.worksheets}
        name, findings = _sheet(path, sheets, sheet)
        rows = [
            row for row in sheets[name].iter_rows(values_only=True) if any(cell is not None for cell in row)
        ]
    finally:
        book.close()
    if not rows:
        raise InvalidInput(f"sheet {name!r} of {path!r} is empty; name another one with sheet=")
    width = max(map(len, rows))
    filled = [sum(cell is not None for cell in row) for row in rows[:100]]
    usual = int(np.median(filled))
    start = next(place for place, count in enumerate(filled) if count >= usual * 0.7)
    _report_preamble(start, "row", findings)
    rows = [(*row, *[None] * (width - len(row))) for row in rows[start:]]
    header = header_of(rows, dialect.header, findings)
    heading, named = heading_rows(rows, findings) if header else (0, 0)
    names = ["" if cell is None else _cell_name(cell) for cell in rows[named]] if header else None
    columns = zip(*rows[heading:], strict=True)
    frame = pd.DataFrame({place: pd.Series(list(cells), dtype=object) for place, cells in enumerate(columns)})
    frame = frame.apply(lambda column: column.infer_objects())
    return _finished(frame, dialect, findings, names, options={"header": header, "sheet": name})


def _sheet(path: str, sheets: dict[str, Any], wanted: str | int | None) -> tuple[str, list[Finding]]:
    names = list(sheets)
    if wanted is None:
        if len(names) == 1:
            return names[0], []
        found = max(names, key=lambda name: (sheets[name].max_row or 0) * (sheets[name].max_column or 0))
        said = f"Of the sheets {list_values(names)}, the largest is read: {found!r}."
        return found, [Finding("sheet", said, "sheet")]
    if wanted in sheets:
        return str(wanted), []
    if str(wanted).isdigit() and 1 <= int(wanted) <= len(names):
        return names[int(wanted) - 1], []
    raise InvalidInput(
        f"sheet is {wanted!r}, but {path!r} has the sheets {list_values(names)}; name one of them"
    )


def _cell_name(cell: Any) -> str:
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, datetime.datetime) and cell.time() == datetime.time():
        return str(cell.date())
    return str(cell)


def _arrow(path: str, kind: str) -> Any:
    import pyarrow.dataset as ds

    if os.path.isdir(path):
        inside = [name for _, _, names in os.walk(path) for name in names if not name.startswith((".", "_"))]
        found = [name for name in inside if name.lower().endswith((".parquet", ".pq"))]
        if not found:
            said = f"{len(inside)} other files" if inside else "nothing"
            raise InvalidInput(f"the folder {path!r} holds {said}, no Parquet files; name a file in it")
        if len(found) < len(inside):
            raise InvalidInput(
                f"the folder {path!r} holds {len(inside) - len(found)} files besides {len(found)} Parquet files; "
                "move them away, or name one file"
            )
        return _pandas(ds.dataset(path, format="parquet", partitioning="hive").to_table())
    return _pandas(ds.dataset(path, format="parquet" if kind == "Parquet" else "feather").to_table())


def _pandas(table: Any) -> Any:
    """Return an Arrow table as a data frame with columns by position; names may repeat."""
    import pandas as pd

    plain = table.rename_columns([str(place) for place in range(table.num_columns)])
    try:
        frame = plain.to_pandas(ignore_metadata=True)
    except (
        Exception
    ):  # a cell that pandas cannot hold, such as a date beyond its calendar, concerns its row only
        frame = plain.to_pandas(ignore_metadata=True, types_mapper=pd.ArrowDtype)
    frame.columns = table.column_names
    return frame


def _json(path: str) -> Any:
    """Return the records of a file with one object per line, or of one list of objects."""
    import pandas as pd

    with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig") as file:
        start = file.read(1)
        while start.isspace():
            start = file.read(1)
        file.seek(0)
        records = json.load(file) if start == "[" else [json.loads(line) for line in file if line.strip()]
    if not all(isinstance(record, dict) for record in records):
        raise InvalidInput(f"{path!r} must hold objects with named fields, one per line or in one list")
    return pd.DataFrame(records)


# ------------------------------------------------------------------------------------ names and columns


def _finished(
    frame: Any,
    dialect: Dialect,
    findings: list[Finding],
    names: list[str] | None,
    cell_format: CellFormat | None = None,
    options: dict[str, Any] | None = None,
) -> FileTable:
    """Return the table with distinct names and converted columns."""
    if cell_format is None:
        if names is None and not all(isinstance(name, int) for name in frame.columns):
            names = [str(name) for name in frame.columns]
        decimal = dialect.decimal or "."
        cell_format = CellFormat(decimal=decimal, date_order=dialect.date_order, missing=dialect.missing)
    frame.columns = range(frame.shape[1])
    if names is not None:
        # a separator at the end of each line makes a last column without a name and without cells
        while len(names) < frame.shape[1] or (names and not names[-1].strip()):
            if not frame[frame.shape[1] - 1].isna().all():
                break
            frame = frame.drop(columns=frame.shape[1] - 1)
            names = names[: frame.shape[1]]
        if len(names) > 1 and names[0].strip() in _ROW_NAMES and all(name.strip() for name in names[1:]):
            frame = frame.drop(columns=0).set_axis(range(frame.shape[1] - 1), axis=1)
            names = names[1:]
            said = "The first column has no name, as row numbers have, and is left out; name it to use it."
            findings.append(Finding("unnamed", said))
    single = names is not None and all(re.fullmatch(r"'.+'", name.strip()) for name in names)
    if names is not None and single:
        names = [name.strip()[1:-1] for name in names]
        findings.append(Finding("quotes", "Names and texts are in single quotes, which are left out."))
    columns, notes = {}, _Notes()
    renamed = _distinct_names(names, frame.shape[1], findings)
    for place, name in enumerate(renamed):
        column = frame.pop(place)
        if single and _holds_text(column):
            column = column.str.replace(r"^'(.*)'$", r"\1", regex=True)
        columns[name] = _converted(column, name, cell_format, findings, notes)
    findings += notes.findings(cell_format)
    import pandas as pd

    made = pd.DataFrame(columns, index=frame.index, copy=False)
    return FileTable(made, tuple(findings), options or {})


def _distinct_names(names: list[str] | None, width: int, findings: list[Finding]) -> list[str]:
    """Return distinct, non-empty names, and report those that had to be changed."""
    if names is None:
        return [f"column_{place}" for place in range(1, width + 1)]
    found: list[str] = []
    taken = {" ".join(name.split()) for name in names}
    unnamed, repeated = [], []
    for place in range(width):
        name = " ".join(names[place].replace("\ufeff", "").split()) if place < len(names) else ""
        chosen = name or f"column_{place + 1}"
        number = 2
        while chosen in found or (chosen in taken and chosen != name):
            chosen, number = f"{name or f'column_{place + 1}'}_{number}", number + 1
        if not name:
            unnamed.append(chosen)
        elif chosen != name:
            repeated.append(f"{name!r} is now {chosen!r}")
        found.append(chosen)
    if unnamed:
        findings.append(
            Finding("unnamed", f"Columns without a name are named {list_values(unnamed)}.", "header")
        )
    if repeated:
        findings.append(
            Finding("duplicate", f"Names that occur more than once were changed: {'; '.join(repeated)}.")
        )
    return found


class _Notes:
    """What concerns several columns alike, to be said once."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.dates: list[str] = []

    def findings(self, cell_format: CellFormat) -> Iterator[Finding]:
        """Yield one finding for each matter."""
        if self.words:
            counts = ", ".join(f"{name} ({count:,})" for name, count in self.words.items())
            said = f"Cells that hold a word such as n/a instead of a value count as missing: {counts}."
            yield Finding("missing", said, "missing", next(iter(self.words)))
        if self.dates:
            order = "day, month, year" if cell_format.date_order == "dmy" else "month, day, year"
            said = f"Dates are read as {order}: {', '.join(self.dates)}."
            yield Finding("dates", said, "date_order", self.dates[0])


def _converted(
    column: Any, name: str, cell_format: CellFormat, findings: list[Finding], notes: _Notes
) -> Any:
    """Return a column as numbers or dates if all its cells are, else as text; each cell is read by itself."""
    import pandas as pd

    if not _holds_text(column):
        return column
    kinds = np.bincount(cell_kinds(column, cell_format), minlength=len(CellKind))
    known = kinds.sum() - kinds[CellKind.MISSING] - kinds[CellKind.WORD]
    if known and known in (kinds[CellKind.NUMBER], kinds[CellKind.DATE]) and kinds[CellKind.WORD]:
        notes.words[name] = int(kinds[CellKind.WORD])
    if known and known == kinds[CellKind.NUMBER]:
        return pd.Series(_whole(parse_number(column, cell_format).values), index=column.index)
    if known and known == kinds[CellKind.DATE]:
        if cell_format.date_order is not None and _not_iso(column, cell_format):
            notes.dates.append(name)
        days = parse_number(column, cell_format).values
        times = np.where(np.isnan(days), np.nan, np.round(np.nan_to_num(days) * 86_400_000_000))
        return pd.Series(times, index=column.index).astype("datetime64[us]")
    if kinds[CellKind.UNREADABLE]:
        said = f"Column {name!r} holds lists or other nested values, which are not read."
        findings.append(Finding("nested", said, column=name))
    if kinds[CellKind.NUMBER] + kinds[CellKind.DATE] and cell_format != CellFormat(
        missing=cell_format.missing
    ):
        # what a comma means is known here only: later readers get numbers and dates in plain form
        texts = parse_text(column, cell_format)
        texts[texts == ""] = None
        return pd.Series(texts, index=column.index).astype("str")
    try:
        return column.str.strip() if str(column.dtype) == "str" else column
    except Exception:  # some cell is no UTF-8; cells are stripped again when they are read
        return column


def _holds_text(column: Any) -> bool:
    return str(column.dtype) in ("object", "str", "string") or str(column.dtype).startswith("string")


def _whole(values: Any) -> Any:
    """Return numbers as integers where that loses nothing."""
    if len(values) and np.all(np.isfinite(values)) and np.all(values == np.round(values)):
        return values.astype(np.int64) if np.abs(values).max() < 2**53 else values
    return values


def _not_iso(column: Any, cell_format: CellFormat) -> bool:
    iso = CellFormat(missing=cell_format.missing)
    return bool(np.any(cell_kinds(column.dropna().head(1000), iso) == CellKind.TEXT))


def _reason(problem: Exception, encoding: str | None) -> str:
    """Return what is wrong without quoting the file: parsers show the cell at which they stopped."""
    coding = f"its text is not in {encoding or 'UTF-8'}; name its encoding, such as cp1252"
    damaged = (
        "BadGzipFile",
        "error",
        "LZMAError",
        "BadZipFile",
        "ValueError",
        "OSError",
    )  # "error" is that of zlib
    known = {
        **dict.fromkeys(damaged, "it is damaged; write it again, or copy it again"),
        **dict.fromkeys(("UnicodeDecodeError", "UnicodeError"), coding),
        **dict.fromkeys(
            ("ImportError", "ModuleNotFoundError"), "a package is missing: pip install 'ratewise[cli]'"
        ),
        "ParserError": "quotes are not closed; repair the file, or name its separator with sep",
        "EmptyDataError": "it holds no rows; give a file with a header and at least one row",
        "EOFError": "it ends too early; copy it again",
        "ArrowInvalid": "it is damaged, or its parts have different columns; write it again",
        "ArrowTypeError": "its parts have different types in one column; write it again",
        "PermissionError": "permission denied; ask its owner",
        "InvalidFileException": f"it is damaged; known are {_KNOWN}",
        "JSONDecodeError": "it is no JSON; write one object per line",
    }
    return known.get(type(problem).__name__, type(problem).__name__)
