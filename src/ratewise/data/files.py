"""Tables in files: CSV and other text tables, Excel, Parquet, Arrow, JSON and ARFF, read as they come.

`read_table` detects how a file is written, converts its cells, and reports every decision as a `Finding`. It
looks at the file for its owner; detection is outside any privacy guarantee. What becomes of a single cell is
decided by `ratewise.data.cells` and the detected `CellFormat`: a stray word in a column of numbers does not
change how the other cells are read. Messages never show the content of a cell.
"""

from __future__ import annotations

import codecs
import csv
import datetime
import difflib
import gzip
import io
import itertools
import json
import os
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TextIO, cast

import numpy as np

from ratewise.constraints.domain import list_values
from ratewise.data.cells import CellFormat, CellKind, cell_kinds, count_kinds, parse_number, parse_text, plain_texts
from ratewise.data.table import Finding
from ratewise.exceptions import InvalidInput, InvalidType

_SEPARATORS = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas", " ": "spaces"}
_SEPARATOR_WORDS = {"\\t": "\t", "tab": "\t", "comma": ",", "semicolon": ";", "space": " ", "bar": "|", "pipe": "|"}
_MARK_NAMES = {" ": "a space", "'": "an apostrophe", ",": "a comma", ".": "a point"}
_SURPLUS = "\x00surplus"  # the column of fields beyond the names; no file can name a column so
_SAMPLE_LINES = 300
_SAMPLE_CHARACTERS = 1 << 20
csv.field_size_limit(2**31 - 1)  # a long text of one row is no error
_ROW_NAMES = ("", "__index_level_0__")  # the latter is how Arrow names an index of pandas
_COMMENT_MARKS = ("#", "%", "//")
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with a byte order mark"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
_PLAIN_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2007\u2009\u202f", " "))
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_ARFF_CELL = re.compile(r"""\s*(?:'((?:\\.|[^'\\])*)'|"((?:\\.|[^"\\])*)"|([^,]*))\s*(,|\Z)""")
_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})(?![\d./-])", re.ASCII)
_TOTAL = re.compile(
    r"\W*(?:(?:grand|sub)[- ]?)?(?:totals?|sums?|averages?|means?|gesamt|summe|insgesamt)\b(?P<more>.*[^\W\d])?", re.I
)
_REMARK = re.compile(
    r"\W*(?:notes?|sources?|remarks?|comments?|generated|exported|printed|created|end of|copyright|\(c\)|(?:number|count) of"
    r"|\d+ (?:rows?|records?|lines?)|rows?|records?|quelle|hinweis|anmerkung)\b|[*\u00a9\u2020]",
    re.I,
)
_KNOWN = "a text table (.csv, .tsv, .txt, also .gz), Excel (.xlsx), Parquet (file or folder), JSON lines, ARFF"
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
    **dict.fromkeys((".zip", ".bz2", ".xz", ".7z", ".tar"), "an archive; unpack it, and name a file in it"),
    **dict.fromkeys((".html", ".htm"), "a web page; save the table in it as .csv or .xlsx"),
}


@dataclass(frozen=True, eq=False)
class FileTable:
    """A table read from a file: a pandas data frame with distinct names, what was found, and how to read the next."""

    frame: Any
    findings: tuple[Finding, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)  # arguments that read a further file in the same way


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
        A text table, also gzipped; an Excel workbook; a Parquet file or a folder of them; Arrow; JSON lines; ARFF.
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
    cell_format = CellFormat(decimal=decimal or ".", date_order=date_order, missing=tuple(missing))
    reading = _Reading(place, cell_format, sep, decimal, encoding, header)
    if not os.path.exists(place):
        folder, name = os.path.split(place)
        present = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
        near = difflib.get_close_matches(name, present, n=1)
        hint = f"; did you mean {os.path.join(folder, near[0])!r}?" if near else "; check its name and folder"
        raise InvalidInput(f"there is no file {place!r}{hint}")
    kind = "a table"
    try:
        kind = _kind(place)
        if sheet is not None and kind != "Excel":
            raise InvalidInput(f"sheet is {sheet!r}, but {place!r} is no Excel workbook; leave it out")
        with warnings.catch_warnings(action="ignore"):  # those of openpyxl quote cells
            if kind == "Excel":
                table = reading.workbook(sheet)
            else:
                readers = {"JSON": reading.json, "ARFF": reading.arff, "a text table": reading.text}
                table = readers.get(kind, reading.arrow)()
    except (MemoryError, InvalidInput):
        raise
    except Exception as problem:  # readers raise what they like
        raise InvalidInput(f"cannot read {place!r} as {kind}: {_reason(problem, encoding)}") from None
    if not len(table.frame.columns) or not len(table.frame):
        raise InvalidInput(f"{place!r} holds no rows; give a file with a header and at least one row")
    return table


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
        suffix = suffix if suffix in _OTHER_FORMATS or suffix == ".xlsx" else ".zip"
    if start.startswith(b"\xd0\xcf\x11\xe0"):
        suffix = ".xls"
    if suffix in _OTHER_FORMATS:
        raise InvalidInput(f"{path!r} is {_OTHER_FORMATS[suffix]}")
    if suffix in (".parquet", ".pq", ".xlsx"):
        what = "Excel workbook" if suffix == ".xlsx" else "Parquet file"
        raise InvalidInput(f"{path!r} is no {what}, or is damaged; it does not begin like one. Write it again")
    kinds = {".arff": "ARFF", **dict.fromkeys((".jsonl", ".ndjson", ".json"), "JSON")}
    return kinds.get(suffix, "a text table")


def _reason(problem: Exception, encoding: str | None) -> str:
    """Return what is wrong without quoting the file: parsers show the cell at which they stopped."""
    coding = f"its text is not in {encoding or 'UTF-8'}; name its encoding, such as cp1252"
    damaged = ("BadGzipFile", "error", "BadZipFile", "ValueError", "OSError")  # "error" is that of zlib
    package = "a package is missing: pip install 'ratewise[cli]'"
    known = {
        **dict.fromkeys(damaged, "it is damaged; write it again, or copy it again"),
        **dict.fromkeys(("UnicodeDecodeError", "UnicodeError"), coding),
        **dict.fromkeys(("ImportError", "ModuleNotFoundError"), package),
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


# ------------------------------------------------------------------------------------ bytes and text


def _open_bytes(path: str) -> BinaryIO:
    """Open a file for reading; gzip is unpacked on the way."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else open(path, "rb")


def _open_text(path: str, encoding: str, errors: str = "replace") -> TextIO:
    """Open text; by default a damaged character is replaced: it concerns its row only."""
    return io.TextIOWrapper(_open_bytes(path), encoding=encoding, newline="", errors=errors)


def _damage(path: str, encoding: str, errors: str = "replace") -> tuple[int, int]:
    """Return how many characters of a text cannot be read, and how many others are not ASCII."""
    damaged = sound = 0
    with _open_text(path, encoding, errors) as text:
        while part := text.read(1 << 20):
            broken = part.count("\ufffd")
            damaged, sound = damaged + broken, sound + len(_NOT_ASCII.findall(part)) - broken
    return damaged, sound


def _detect_encoding(path: str) -> tuple[str, str | None]:
    """Return the encoding of a text file, and its name for a message unless it is plain UTF-8."""
    with _open_bytes(path) as file:
        start = file.read(1 << 20)
    for mark, encoding, name in _BYTE_ORDER_MARKS:
        if start.startswith(mark):
            return encoding, name
    if len(start) > 1 and start.count(b"\x00") * 4 > len(start):
        little = start[1::2].count(b"\x00") > start[::2].count(b"\x00")
        return ("utf-16-le" if little else "utf-16-be"), "UTF-16"
    damaged, sound = _damage(path, "utf-8")
    if damaged < sound or not damaged:
        return "utf-8", "UTF-8, with damaged characters" if damaged else None
    try:
        _damage(path, "cp1252", "strict")
    except UnicodeDecodeError:
        return "latin-1", "Latin-1"
    return "cp1252", "Windows-1252 (Western European)"


# --------------------------------------------------------------------------------- shape of the table


def _split(lines: Sequence[str], sep: str) -> list[list[str]]:
    """Return the records of some lines, without blank ones."""
    plain = (line.strip() for line in lines) if sep == " " else lines
    records = csv.reader(plain, delimiter=sep, skipinitialspace=True)
    return [record for record in records if any(field.strip() for field in record)]


def _width(lines: Sequence[str], sep: str) -> tuple[int, float]:
    """Return the number of fields of most records (of several numbers the largest), and their share."""
    widths = Counter(map(len, _split(lines, sep)))
    width, count = max(widths.items(), key=lambda item: (item[1], item[0]), default=(1, 0))
    return width, count / max(1, widths.total())


def _detect_separator(lines: Sequence[str]) -> str:
    """Return the separator that splits most lines into the same number of fields, two or more."""
    best, found = 0.0, ","
    for sep in _SEPARATORS:
        try:
            width, share = _width(lines, sep)
        except csv.Error:
            continue
        share *= 0.5 if sep == " " else 1.0  # text has spaces, too
        if width > 1 and share > best + (0.05 if best else 0.0):
            best, found = share, sep
    return found


def _fields(line: str, sep: str) -> int:
    return max(map(len, _split([line], sep)), default=0)


def _is_comment(line: str, sep: str, width: int) -> bool:
    """Return whether a line is a comment: it begins with a comment mark and has not the fields of a row."""
    return line.lstrip().startswith(_COMMENT_MARKS) and (width == 1 or _fields(line, sep) != width)


def _preamble(lines: Sequence[str], sep: str, width: int) -> int:
    """Return the number of lines before the table: blank ones, comments, and ones with too few fields."""
    for place, line in enumerate(lines):
        if line.count('"') % 2:  # a header may have a name of two lines
            return place
        title = width > 2 and sum(bool(part.strip()) for part in line.split(sep)) < 2  # padded with separators
        title |= place == 0 and line.lower().startswith("sep=")  # as Excel writes it
        if title or not line.strip() or _is_comment(line, sep, width):
            continue
        # a header may lack the name of the first column
        if _fields(line, sep) >= min(width, max(2, width - 1)):
            return place
    return 0


def _unwrapped(line: str) -> str:
    """Return the content of a line that is one quoted field; any other line as it is."""
    fields = next(csv.reader([line]), [])
    return f"{fields[0]}\n" if len(fields) == 1 else line


def _limited(file: TextIO) -> Iterator[str]:
    """Yield lines up to a number of characters: the file may be one line of gigabytes."""
    left = _SAMPLE_CHARACTERS
    while left > 0 and (line := file.readline(left)):
        left -= len(line)
        if line.endswith(("\n", "\r")) or left > 0:  # a line that was cut off is not looked at
            yield line


def _arff_cells(line: str) -> list[str]:
    """Return the cells of a row, each by itself: with either mark of quotation, or without."""
    cells, place, more = [], 0, ","
    while more:
        found: Any = _ARFF_CELL.match(line, place)  # it matches at any place
        single, double, plain, more = found.groups()
        cells.append(plain.strip() if plain is not None else re.sub(r"\\(.)", r"\1", single or double or ""))
        place = found.end()
    return cells


def _names_of(source: Any, sep: str) -> list[str]:
    """Read the header record off the source, which is left at the line after it."""
    for record in csv.reader(iter(source.readline, ""), delimiter=sep, skipinitialspace=True):
        fields = [field for field in record if field] if sep == " " else record
        if any(field.strip() for field in fields):
            return fields
    return []


def _compared(row: Sequence[Any], rows: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, int, list[Any], bool]]:
    """Yield each cell of a row, its kind, the cells of its column in `rows`, and whether these are numbers or dates."""
    for place, cell in enumerate(row):
        others = [other[place] for other in rows if place < len(other)]
        kinds = cell_kinds([cell, *others])
        counts = np.bincount(kinds[1:], minlength=len(CellKind))
        typed = counts[[CellKind.NUMBER, CellKind.DATE, CellKind.DURATION]].sum() > counts[CellKind.TEXT]
        yield cell, int(kinds[0]), others, bool(typed)


def _looks_like_names(first: Sequence[Any], rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether the first record holds names rather than values, judged by the records below it."""
    for_names = against = 0
    for cell, kind, below, typed in _compared(first, rows):
        if kind == CellKind.TEXT:
            repeated = str(cell).strip() in {str(other).strip() for other in below}
            for_names += typed and not repeated
            against += repeated
        elif _is_year(cell) and not any(map(_is_year, below)):
            for_names += 1
        elif kind != CellKind.MISSING:
            against += typed or kind == CellKind.WORD
    return bool(for_names > against or not against)


def _is_year(cell: Any) -> bool:
    return re.fullmatch(r"(19|20)\d\d", str(cell).strip()) is not None


def _above_values(row: Sequence[Any], rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether a row has text or nothing where the rows below have values, in two columns or more."""
    kinds = [kind for _, kind, _, typed in _compared(row, rows) if typed]
    texts = kinds.count(CellKind.TEXT)
    return texts > 1 and texts + kinds.count(CellKind.MISSING) == len(kinds)


def _is_footer(row: Sequence[Any], rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether the last row is a total or a remark below the table, judged by the rows above it."""
    places = [place for place, cell in enumerate(row) if cell is not None]
    if not places:
        return True  # nothing but separators
    first = slice(places[0], places[0] + 1)
    ((cell, kind, above, typed),) = _compared(row[first], [other[first] for other in rows])
    text, others = str(cell).strip(), [str(other).strip() for other in above]
    if kind != CellKind.TEXT or text in others:
        return False
    total, remark = _TOTAL.match(text), _REMARK.match(text)
    if 2 * len(places) > np.median([sum(cell is not None for cell in other) for other in rows]):
        return (total is not None and total["more"] is None) or (typed and remark is not None)
    return bool(typed or total or remark or text.count(" ") > 3 + max(other.count(" ") for other in others))


def _detect_format(rows: Sequence[Sequence[str]], sep: str, decimal: str | None, declared: CellFormat) -> CellFormat:
    """Return how numbers and dates are written, judged by a sample of cells where it is not declared."""
    cells = [cell.strip().strip("$\u20ac\u00a3\u00a5%").strip() for row in rows for cell in row if cell]
    order = declared.date_order or _date_order(cells, sep)
    cells = [cell.translate(_PLAIN_SPACES) for cell in cells if not _DATE.match(cell)]
    numeric = [cell for cell in cells if re.fullmatch(r"[+-]?\d[\d.,' ]*", cell)]
    if decimal is None:
        commas = [cell for cell in numeric if "," in cell]
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
    return CellFormat(decimal=decimal, thousands=thousands, date_order=order, missing=declared.missing)


def _date_order(cells: Sequence[str], sep: str) -> str | None:
    found = [match for cell in cells if (match := _DATE.match(cell)) is not None]
    if not found:
        return None
    first, second = (max(int(match[place]) for match in found) for place in (1, 3))
    if first > 12 or second > 12:
        return "dmy" if first > 12 else "mdy"
    return "mdy" if found[0][2] == "/" and sep == "," else "dmy"


# ------------------------------------------------------------------------------------------- reading


@dataclass(eq=False)
class _Reading:
    """One file, how it is written, and what was found."""

    _path: str
    _format: CellFormat
    _sep: str | None
    _decimal: str | None
    _encoding: str | None
    _header: bool | None
    _findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        sep = self._sep = _SEPARATOR_WORDS.get(self._sep, self._sep) if isinstance(self._sep, str) else self._sep
        if sep is not None and (not isinstance(sep, str) or len(sep) != 1):
            raise InvalidInput(f"sep must be one character or one of {', '.join(_SEPARATOR_WORDS)}; got {sep!r}")
        try:
            codecs.lookup(self._encoding or "utf-8")
        except (LookupError, TypeError):
            said = "encoding must be the name of a text encoding such as 'utf-8' or 'cp1252'"
            raise InvalidInput(f"{said}, got {self._encoding!r}") from None
        if self._header is not None and not isinstance(self._header, bool):
            raise InvalidType(f"header must be True, False or None, got {self._header!r}")

    def _say(self, topic: str, message: str, option: str | None = None, column: str | None = None) -> None:
        self._findings.append(Finding(topic, message, option, column))

    def text(self) -> FileTable:
        """Read a text table; cells that are empty, or listed as missing, are missing."""
        import pandas as pd

        encoding = self._detected_encoding()
        sep, lines, wrapped = self._sample(encoding)
        width, _ = _width(lines, sep)
        skipped = _preamble(lines, sep, width)
        rows = [line for line in lines[skipped:] if not _is_comment(line, sep, width)]
        comments = len(rows) < len(lines) - skipped
        self._say_left_out("preamble", skipped, "line", "before")
        if comments:
            self._say("comments", "Lines that begin with a comment mark are left out.")
        records = _split(rows, sep)
        header, heading, named = self._heading(records)
        cell_format = self._format = _detect_format(records[heading:], sep, self._decimal, self._format)

        def read(surplus: list[str]) -> tuple[list[str] | None, Any]:
            with _open_text(self._path, encoding) as file, warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # fields are left out
                for _ in range(skipped):
                    file.readline()
                source: TextIO = file
                if wrapped or comments:
                    plain = map(_unwrapped, file) if wrapped else file
                    source = io.StringIO("".join(line for line in plain if not _is_comment(line, sep, width)))
                above = [_names_of(source, sep) for _ in range(heading)]
                return above[named] if header else None, pd.read_csv(
                    source,
                    sep=r"\s+" if sep == " " else sep,
                    header=None,
                    names=[*range(width), *surplus],
                    usecols=range(width + 1) if surplus else None,
                    index_col=False,
                    decimal=cell_format.decimal,
                    keep_default_na=False,
                    na_values=["", *cell_format.missing],
                    skipinitialspace=True,
                    low_memory=False,
                )

        try:
            names, frame = read([])
        except (pd.errors.ParserError, pd.errors.ParserWarning):
            names, frame = read([_SURPLUS])
            self._say_surplus(int(frame.pop(_SURPLUS).notna().sum()))
        if names is not None and len(names) == width - 1:
            # lines end in a separator; or the first column holds names of rows, as R writes them
            names = [*names, ""] if frame[width - 1].isna().all() else ["", *names]
        if cell_format.decimal == "," and self._decimal is None:
            self._say("decimal", "Numbers are written with a decimal comma.", "decimal")
        if cell_format.thousands is not None:
            said = f"Thousands are separated by {_MARK_NAMES[cell_format.thousands]}."
            self._say("thousands", said, "decimal")
        options = {"sep": sep, "decimal": cell_format.decimal, "encoding": encoding, "header": header}
        options["date_order"] = cell_format.date_order  # None if none was found, too
        return self._table(self._without_footer(frame, "line"), names, options)

    def _detected_encoding(self) -> str:
        if self._encoding is not None:
            return self._encoding
        found, name = _detect_encoding(self._path)
        if name is not None:
            self._say("encoding", f"The file is encoded in {name}.", "encoding")
        return found

    def _sample(self, encoding: str) -> tuple[str, list[str], bool]:
        """Return the separator, the first lines, and whether each line is in quotes as a whole."""
        with _open_text(self._path, encoding) as file:
            lines = list(itertools.islice(_limited(file), _SAMPLE_LINES))
        if not any(line.strip() for line in lines):
            raise InvalidInput(f"{self._path!r} is empty; give a file with a table in it")
        found = _detect_separator([line for line in lines if not line.lstrip().startswith(_COMMENT_MARKS)])
        inner = [_unwrapped(line) for line in lines] if _width(lines, found)[0] == 1 else lines
        within = _detect_separator(inner) if inner is not lines else found
        wrapped = inner is not lines and _width(inner, within)[0] > 1
        if wrapped:
            lines, found = inner, within
            self._say("quotes", "Every line is in quotes as a whole, which are left out.")
        given = self._sep
        if given is None:
            if found != ",":
                self._say("separator", f"Fields are separated by {_SEPARATORS[found]}.", "sep")
        elif _width(lines, given)[0] == 1 and _width(lines, found)[0] > 1:
            raise InvalidInput(
                f"sep is {given!r}, but the lines of {self._path!r} have one field each; leave sep out to have it "
                "detected"
            )
        return given or found, lines, wrapped

    def _heading(self, records: Sequence[Sequence[Any]]) -> tuple[bool, int, int]:
        """Return whether there are names, how many rows are above the values, and which of them holds the names.

        A row below the names that has text, or nothing, in every column of numbers and dates holds names, too, or units.
        """
        header = self._header
        if header is None:
            header = _looks_like_names(records[0], records[1:_SAMPLE_LINES])
            if not header:
                said = f"columns are named column_1 to column_{len(records[0])}."
                self._say("header", f"The first line holds values, not names: {said}", "header")
        if not header:
            return False, 0, 0
        count, named = 1, 0
        while len(records) > count + 2 and _above_values(records[count], records[count + 1 : _SAMPLE_LINES]):
            texts = ["" if cell is None else str(cell).strip() for cell in records[count]]
            short = sum(" " in text for text in texts) * 2 <= len(texts)
            if short and all(texts) and len(set(texts)) == len(texts):
                named = count
            count += 1
        if count > 1:
            said = (
                f"{count} rows are above the values; row {named + 1} of them holds the names, and the rest is left out."
            )
            self._say("header", said)
        return True, count, named

    def _without_footer(self, frame: Any, what: str) -> Any:
        """Return a frame without the totals and remarks that follow the table."""
        known = frame.tail(_SAMPLE_LINES).astype(object)
        rows = known.where(known.notna(), None).values.tolist()
        count = 0
        while len(rows) - count > 2 and frame.shape[1] > 1 and _is_footer(rows[-1 - count], rows[: -1 - count]):
            count += 1
        self._say_left_out("footer", count, what, "after")
        frame = frame.iloc[: len(frame) - count]
        # without the missing cells of the footer, numbers may be whole
        return frame.apply(lambda column: _whole(column) if column.dtype.kind == "f" else column) if count else frame

    def _say_surplus(self, count: int) -> None:
        if count:
            said = f"{count} {'line has' if count == 1 else 'lines have'} more fields than there are columns; what is "
            said += "beyond the last column is left out. Put fields that hold the separator in quotes."
            self._say("ragged", said, "sep")

    def _say_left_out(self, topic: str, count: int, what: str, where: str) -> None:
        if count:
            many = f"{what} {where} the table was" if count == 1 else f"{what}s {where} the table were"
            self._say(topic, f"{count} {many} left out.")

    # --- other kinds of files --------------------------------------------------------------------------

    def workbook(self, sheet: str | int | None) -> FileTable:
        """Read a sheet of an Excel workbook."""
        import pandas as pd
        from openpyxl import load_workbook

        book = load_workbook(self._path, read_only=True, data_only=True)
        try:
            sheets = {each.title: each for each in book.worksheets}
            name = self._sheet(sheets, sheet)
            read = sheets[name].iter_rows(values_only=True)
            rows = [row for row in read if any(cell is not None for cell in row)]
        finally:
            book.close()
        if not rows:
            raise InvalidInput(f"sheet {name!r} of {self._path!r} is empty; name another one with sheet=")
        width = max(map(len, rows))
        filled = [sum(cell is not None for cell in row) for row in rows[:100]]
        start = next(place for place, count in enumerate(filled) if count >= int(np.median(filled)) * 0.7)
        self._say_left_out("preamble", start, "row", "before")
        rows = [(*row, *[None] * (width - len(row))) for row in rows[start:]]
        header, heading, named = self._heading(rows)
        names = [_cell_name(cell) for cell in rows[named]] if header else None
        columns = enumerate(zip(*rows[heading:], strict=True))
        frame = pd.DataFrame({place: pd.Series(list(cells), dtype=object) for place, cells in columns})
        frame = self._without_footer(frame, "row").apply(_inferred)
        return self._table(frame, names, {"header": header, "sheet": name})

    def _sheet(self, sheets: dict[str, Any], wanted: str | int | None) -> str:
        names = list(sheets)
        if wanted is None:
            sizes = {name: (each.max_row or 0) * (each.max_column or 0) for name, each in sheets.items()}
            found = max(names, key=sizes.__getitem__)
            if len(names) > 1:
                said = f"Of the sheets {list_values(names)}, the largest is read: {found!r}."
                self._say("sheet", said, "sheet")
            return found
        if wanted in sheets:
            return str(wanted)
        if str(wanted).isdigit() and 1 <= int(wanted) <= len(names):
            return names[int(wanted) - 1]
        raise InvalidInput(
            f"sheet is {wanted!r}, but {self._path!r} has the sheets {list_values(names)}; name one of them"
        )

    def arrow(self) -> FileTable:
        """Read a Parquet file, a folder of them, or an Arrow file."""
        import pandas as pd
        import pyarrow.dataset as ds

        options: dict[str, str] = {"format": "feather" if _kind(self._path) == "Arrow" else "parquet"}
        if os.path.isdir(self._path):
            parts = [name for _, _, names in os.walk(self._path) for name in names]
            inside = [name for name in parts if not name.startswith((".", "_"))]
            found = [name for name in inside if name.lower().endswith((".parquet", ".pq"))]
            if not found:
                said = f"{len(inside)} other files" if inside else "nothing"
                raise InvalidInput(f"the folder {self._path!r} holds {said}, no Parquet files; name a file in it")
            if len(found) < len(inside):
                raise InvalidInput(
                    f"the folder {self._path!r} holds {len(inside) - len(found)} files besides {len(found)} Parquet "
                    "files; move them away, or name one file"
                )
            options["partitioning"] = "hive"
        table = ds.dataset(self._path, **options).to_table()
        plain = table.rename_columns([str(place) for place in range(table.num_columns)])  # names may repeat
        try:
            frame = plain.to_pandas(ignore_metadata=True)
        except Exception:  # a cell that pandas cannot hold, such as a date beyond its calendar, concerns its row only
            frame = plain.to_pandas(ignore_metadata=True, types_mapper=pd.ArrowDtype)
        return self._table(frame, table.column_names)

    def json(self) -> FileTable:
        """Read a file with one object per line, or one list of objects."""
        import pandas as pd

        with _open_text(self._path, "utf-8-sig") as file:
            start = next((mark for mark in iter(lambda: file.read(1), "") if not mark.isspace()), "")
            file.seek(0)
            text = [file.read()] if start == "[" else [line for line in file if line.strip()]
        read = [json.loads(part, parse_int=_number) for part in text]
        records = read[0] if start == "[" else read
        if not all(isinstance(record, dict) for record in records):
            raise InvalidInput(f"{self._path!r} must hold objects with named fields, one per line or in one list")
        frame = pd.DataFrame(records, dtype=object).apply(_inferred)
        return self._table(frame, [str(name) for name in frame.columns])

    def arff(self) -> FileTable:
        """Read an ARFF file: its attributes are the columns, and "?" is a missing value."""
        import pandas as pd

        with _open_text(self._path, self._detected_encoding()) as file:
            lines = [line.strip() for line in file if line.strip() and not line.lstrip().startswith("%")]
        start = next((place for place, line in enumerate(lines) if line.lower().startswith("@data")), None)
        if start is None:
            raise InvalidInput(f"{self._path!r} has no line @data, which an ARFF file needs; export it as .csv")
        declared = (re.match(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)", line, re.I) for line in lines[:start])
        names = [found[1].strip("'\"") for found in declared if found is not None]
        body = lines[start + 1 :]
        if any(line.startswith("{") for line in body):
            raise InvalidInput(f"{self._path!r} is a sparse ARFF file; export it as .csv")
        rows = [_arff_cells(line) for line in body]
        if any(len(row) != len(names) for row in rows):
            raise InvalidInput(f"{self._path!r} has rows of other lengths than its {len(names)} attributes; repair it")
        cells = [[None if cell.strip() == "?" else cell.strip(' "') for cell in row] for row in rows]
        return self._table(pd.DataFrame(cells, columns=range(len(names)), dtype=object), names)

    # --- names and columns -----------------------------------------------------------------------------

    def _table(self, frame: Any, names: list[str] | None, options: dict[str, Any] | None = None) -> FileTable:
        """Return the table with distinct names and converted columns."""
        import pandas as pd

        frame.columns = range(frame.shape[1])
        single = False
        if names is not None:
            frame, names = self._named_columns(frame, names)
            single = all(re.fullmatch(r"'.+'", name.strip()) for name in names)
        if names is not None and single:
            names = [name.strip()[1:-1] for name in names]
            self._say("quotes", "Names and texts are in single quotes, which are left out.")
        words: dict[str, int] = {}
        dates: list[str] = []
        columns = {}
        for place, name in enumerate(self._distinct_names(names, frame.shape[1])):
            column = frame.pop(place)
            if single and _holds_text(column):
                column = column.str.replace(r"^'(.*)'$", r"\1", regex=True)
            columns[name] = self._converted(column, name, words, dates)
        if words:
            counts = ", ".join(f"{name} ({count:,})" for name, count in words.items())
            said = f"Cells that hold a word such as n/a instead of a value count as missing: {counts}."
            self._say("missing", said, "missing", next(iter(words)))
        if dates:
            order = "day, month, year" if self._format.date_order == "dmy" else "month, day, year"
            self._say("dates", f"Dates are read as {order}: {', '.join(dates)}.", "date_order", dates[0])
        made = pd.DataFrame(columns, index=frame.index, copy=False)
        return FileTable(made, tuple(self._findings), options or {})

    def _named_columns(self, frame: Any, names: list[str]) -> tuple[Any, list[str]]:
        """Return the frame and the names without columns that are none: of row numbers, or after the last separator."""
        while len(names) < frame.shape[1] or (names and not names[-1].strip()):
            if not frame[frame.shape[1] - 1].isna().all():
                break
            frame = frame.drop(columns=frame.shape[1] - 1)
            names = names[: frame.shape[1]]
        if len(names) > 1 and names[0].strip() in _ROW_NAMES and all(name.strip() for name in names[1:]):
            frame = frame.drop(columns=0).set_axis(range(frame.shape[1] - 1), axis=1)
            names = names[1:]
            said = "The first column has no name, as row numbers have, and is left out; name it to use it."
            self._say("unnamed", said)
        return frame, names

    def _distinct_names(self, names: list[str] | None, width: int) -> list[str]:
        """Return distinct, non-empty names, and report those that had to be changed."""
        if names is None:
            return [f"column_{place}" for place in range(1, width + 1)]
        found: list[str] = []
        taken = {" ".join(name.split()) for name in names}
        unnamed, repeated = [], []
        for place in range(width):
            name = " ".join(names[place].replace("\ufeff", "").split()) if place < len(names) else ""
            base = chosen = name or f"column_{place + 1}"
            number = 2
            while chosen in found or (chosen in taken and chosen != name):
                chosen, number = f"{base}_{number}", number + 1
            if not name:
                unnamed.append(chosen)
            elif chosen != name:
                repeated.append(f"{name!r} is now {chosen!r}")
            found.append(chosen)
        if unnamed:
            self._say("unnamed", f"Columns without a name are named {list_values(unnamed)}.", "header")
        if repeated:
            self._say("duplicate", f"Names that occur more than once were changed: {'; '.join(repeated)}.")
        return found

    def _converted(self, column: Any, name: str, words: dict[str, int], dates: list[str]) -> Any:
        """Return a column as numbers or dates if that changes no cell, else as text; each cell is read by itself."""
        import pandas as pd

        cell_format = self._format
        if not _holds_text(column):
            return column
        kinds = count_kinds(column, cell_format)
        known = kinds.sum() - kinds[CellKind.MISSING] - kinds[CellKind.WORD]
        if known and known in (kinds[CellKind.NUMBER], kinds[CellKind.DATE]):
            if kinds[CellKind.WORD]:
                words[name] = int(kinds[CellKind.WORD])
            values = parse_number(column, cell_format).values
            if known == kinds[CellKind.NUMBER]:
                found = pd.Series(_whole(values), index=column.index)
            else:
                iso = cell_kinds(column.dropna().head(1000), CellFormat(missing=cell_format.missing))
                if cell_format.date_order is not None and np.any(iso == CellKind.TEXT):
                    dates.append(name)
                times = np.where(np.isnan(values), np.nan, np.round(np.nan_to_num(values) * 86_400_000_000))
                found = pd.Series(times, index=column.index).astype("datetime64[us]")
            # else one cell of another kind would change what words and percentages of other rows mean
            if np.array_equal(parse_text(found), parse_text(column, cell_format)):
                return found
        if kinds[CellKind.UNREADABLE]:
            said = f"Column {name!r} holds lists or other nested values, which are not read."
            self._say("nested", said, column=name)
        if cell_format != CellFormat():
            # what a comma means is known here only: later readers get numbers and dates in plain form
            texts = plain_texts(column, cell_format)
            texts[texts == ""] = None
            found = pd.Series(texts, index=column.index)
            return found.astype("str").where(found.notna(), None)  # pandas 2 makes the word "None" of None
        try:
            return column.str.strip() if str(column.dtype) == "str" else column
        except Exception:  # some cell is no UTF-8; cells are stripped again when they are read
            return column


def _cell_name(cell: Any) -> str:
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, datetime.datetime) and cell.time() == datetime.time():
        return str(cell.date())
    return "" if cell is None else str(cell)


def _number(digits: str) -> Any:
    """Return a whole number; Python makes no integer of thousands of digits."""
    return int(digits) if len(digits) < 400 else float(digits)


def _inferred(column: Any) -> Any:
    """Return a column of objects in the type that all of them have, as objects if a text is not in Unicode."""
    try:
        return column.infer_objects()
    except UnicodeError:
        return column


def _holds_text(column: Any) -> bool:
    return str(column.dtype) in ("object", "str", "string") or str(column.dtype).startswith("string")


def _whole(values: Any) -> Any:
    """Return numbers as integers where that loses nothing."""
    if len(values) and np.all(np.isfinite(values)) and np.all(values == np.round(values)):
        return values.astype(np.int64) if np.abs(values).max() < 2**53 else values
    return values
