"""Files in the forms in which people have them; every file here is made by the test that reads it."""

import datetime
import gzip
import json
import subprocess
import sys
import zipfile

import numpy as np
import openpyxl
import pandas as pd
import pytest

from ratewise.data.cells import parse_number, parse_text
from ratewise.data.files import read_table
from ratewise.exceptions import InvalidInput, InvalidType

ROWS = [
    ("Ana", 31, 1.5, "2020-01-31"),
    ("Bo", 45, -2.25, "2020-02-29"),
    ("Cem", 62, 1000.0, "2021-12-01"),
    ("Ana", 31, 0.125, "1999-01-01"),
]
NAMES = ("name", "age", "score", "day")


def text(sep=",", names=NAMES, rows=ROWS, write=str):
    lines = [sep.join(names)] if names else []
    return "\n".join([*lines, *(sep.join(write(cell) for cell in row) for row in rows)]) + "\n"


def expected(frame):
    """Check that the frame is the table above."""
    assert list(frame.columns) == list(NAMES)
    assert frame["name"].tolist() == [row[0] for row in ROWS]
    assert frame["age"].tolist() == [row[1] for row in ROWS]
    assert frame["age"].dtype == np.int64
    assert frame["score"].tolist() == [row[2] for row in ROWS]
    assert [str(day.date()) for day in frame["day"]] == [row[3] for row in ROWS]


@pytest.fixture
def put(tmp_path):
    def write(content, name="people.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return str(path)

    return write


def topics(table):
    return [finding.topic for finding in table.findings]


# ------------------------------------------------------------------------------------------ separators


@pytest.mark.parametrize(
    ("sep", "name"), [(",", None), ("\t", "tabs"), (";", "semicolons"), ("|", "bars"), (" ", "spaces")]
)
def test_separators_are_detected_and_reported(put, sep, name):
    table = read_table(put(text(sep)))
    expected(table.frame)
    if name is None:
        assert table.findings == ()
    else:
        (finding,) = table.findings
        assert finding.message == f"Fields are separated by {name}."
        assert finding.option == "sep"
        assert str(finding).endswith("(To change it: sep=.)")
        assert finding.for_command_line().endswith("(To change it: --sep.)")
    expected(read_table(put(text(sep)), sep=sep).frame)


@pytest.mark.parametrize("word", ["tab", "\\t", "semicolon"])
def test_separators_by_name(put, word):
    expected(read_table(put(text(";" if word == "semicolon" else "\t")), sep=word).frame)


def test_quoted_separators_quotes_and_line_breaks(put):
    frame = read_table(put('name,note,x\n"Doe, Jane","said ""no""",1\n"Roe, Max","two\nlines",2\n')).frame
    assert frame["name"].tolist() == ["Doe, Jane", "Roe, Max"]
    assert frame["note"].tolist() == ['said "no"', "two\nlines"]
    assert frame["x"].tolist() == [1, 2]


def test_commas_in_text_do_not_hide_semicolons(put):
    table = read_table(put("name;x\nDoe, Jane;1\nRoe, Max;2\nPoe, Ida, Ph.D.;3\n"))
    assert table.frame["name"].tolist() == ["Doe, Jane", "Roe, Max", "Poe, Ida, Ph.D."]


# ------------------------------------------------------------------------------- numbers and dates in text


def german(cell):
    return f"{cell:,.2f}".translate(str.maketrans(",.", ".,")) if isinstance(cell, float) else str(cell)


def test_semicolons_decimal_commas_and_points_between_thousands(put):
    table = read_table(put(text(";", write=german)))
    assert table.frame["score"].tolist() == [1.5, -2.25, 1000.0, 0.12]
    assert topics(table) == ["separator", "decimal", "thousands"]
    assert table.options["decimal"] == ","


def test_decimal_commas_in_quotes(put):
    table = read_table(put('x,y\n"1,5",a\n"12,25",b\n"0,125",a\n'))
    assert table.frame["x"].tolist() == [1.5, 12.25, 0.125]
    assert topics(table) == ["decimal"]


def test_the_decimal_mark_can_be_declared(put):
    path = put("x;y\n1,234;a\n5,678;b\n")
    assert read_table(path).frame["x"].tolist() == [1.234, 5.678]  # reported
    assert topics(read_table(path)) == ["separator", "decimal"]
    assert read_table(path, decimal=".").frame["x"].tolist() == [1234, 5678]
    assert read_table(path, decimal=",").frame["x"].tolist() == [1.234, 5.678]


@pytest.mark.parametrize("mark", [",", "'", " ", "\u00a0", "\u202f"])
def test_marks_between_thousands(put, mark):
    rows = [("a", f'"1{mark}234{mark}567.5"'), ("b", f'"12{mark}000"'), ("c", "7")]
    table = read_table(put(text(names=("name", "x"), rows=rows)))
    assert table.frame["x"].tolist() == [1234567.5, 12000.0, 7.0]
    assert "thousands" in topics(table)


def test_prices_and_percentages_are_numbers(put):
    frame = read_table(put('price,share\n"$1,200.50",5%\n$3,12.5 %\n')).frame
    assert parse_number(frame["price"]).values.tolist() == [1200.5, 3.0]
    assert parse_number(frame["share"]).values.tolist() == [5.0, 12.5]
    assert parse_text(frame["share"]).tolist() == ["5%", "12.5 %"]  # as in a column that has other texts too


@pytest.mark.parametrize("word", ["n/a", "N/A", "?", "-", "NULL", "unknown", "#N/A", " "])
def test_words_for_missing_in_columns_of_numbers(put, word):
    table = read_table(put(f"x,y\n1,a\n{word},b\n3.5,c\n"))
    assert parse_number(table.frame["x"]).values.tolist() == pytest.approx([1, np.nan, 3.5], nan_ok=True)
    assert table.frame["y"].tolist() == ["a", "b", "c"]
    assert topics(table) == ([] if word == " " else ["missing"])
    if word != " ":
        assert "count as missing: x (1)." in table.findings[0].message


def test_words_for_missing_are_values_elsewhere(put):
    frame = read_table(put("country,y\nNA,1\nDE,2\nunknown,3\nNone,4\n")).frame
    assert frame["country"].tolist() == ["NA", "DE", "unknown", "None"]
    frame = read_table(put("country,y\nNA,1\nDE,2\n"), missing=["NA"]).frame
    assert frame["country"].isna().tolist() == [True, False]


def test_a_stray_word_does_not_change_other_cells(put):
    table = read_table(put("x;y\n1,5;a\nabout 2;b\n1.234,5;c\n"))
    assert table.frame["x"].tolist() == ["1.5", "about 2", "1234.5"]


@pytest.mark.parametrize(
    ("cells", "order", "first"),
    [
        (["31.12.2020", "01.02.2021"], "day, month, year", "2020-12-31"),
        (["12/31/2020", "02/01/2021"], "month, day, year", "2020-12-31"),
        (["01/02/2020", "03/04/2021"], "month, day, year", "2020-01-02"),
        (["01.02.2020", "03.04.2021"], "day, month, year", "2020-02-01"),
        (["31-12-20 10:30", ""], "day, month, year", "2020-12-31"),
    ],
)
def test_dates_of_other_orders(put, cells, order, first):
    table = read_table(put("day,x\n" + "".join(f"{cell},1\n" for cell in cells)))
    assert str(table.frame["day"].dtype).startswith("datetime64")
    assert str(table.frame["day"][0].date()) == first
    (finding,) = table.findings
    assert order in finding.message
    assert finding.option == "date_order"


def test_the_order_of_dates_can_be_declared(put):
    frame = read_table(put("day,x\n01/02/2020,1\n03/04/2021,2\n"), date_order="dmy").frame
    assert frame["day"].tolist() == [pd.Timestamp("2020-02-01"), pd.Timestamp("2021-04-03")]


# ------------------------------------------------------------------------------------------- encodings

ACCENTS = "name,x\nJosé,1\nMüller,2\nŁódź,3\n"
WESTERN = "name,x\nJosé,1\nMüller €,2\n"


@pytest.mark.parametrize(
    ("encoding", "said"),
    [("utf-8", None), ("utf-8-sig", "byte order mark"), ("utf-16", "UTF-16"), ("utf-16-le", "UTF-16")],
)
def test_unicode(put, encoding, said):
    table = read_table(put(ACCENTS.encode(encoding)))
    assert list(table.frame.columns) == ["name", "x"]
    assert table.frame["name"].tolist() == ["José", "Müller", "Łódź"]
    assert [finding.topic for finding in table.findings] == ([] if said is None else ["encoding"])
    assert said is None or said in table.findings[0].message


def test_western_encodings(put):
    table = read_table(put(WESTERN.encode("cp1252")))
    assert table.frame["name"].tolist() == ["José", "Müller €"]
    assert "Windows-1252" in table.findings[0].message
    latin = read_table(put("name,x\nJosé\x81,1\n".encode("latin-1")))
    assert "Latin-1" in latin.findings[0].message


def test_a_letter_far_from_the_beginning_decides_the_encoding(put):
    content = b"name,x\n" + b"plain,1\n" * 300_000 + "José,2\n".encode("cp1252")
    table = read_table(put(content))
    assert table.frame["name"].iloc[-1] == "José"
    assert topics(table) == ["encoding"]


def test_the_encoding_can_be_declared(put):
    assert read_table(put("name,x\nŁ,1\nz,2\n".encode("cp1250")), encoding="cp1250").frame["name"][0] == "Ł"
    with pytest.raises(InvalidInput, match="encoding must be"):
        read_table(put(WESTERN), encoding="klingon")


# ---------------------------------------------------------------------------------- headers and names


@pytest.mark.parametrize("sep", [",", ";"])
def test_a_missing_header_is_detected_and_reported(put, sep):
    table = read_table(put(text(sep, names=None)))
    assert list(table.frame.columns) == ["column_1", "column_2", "column_3", "column_4"]
    assert len(table.frame) == 4
    assert "header" in topics(table)
    assert table.options["header"] is False


def test_text_without_a_header_is_told_by_repetition(put):
    rows = "usual,proper\nusual,less\npretentious,proper\ngreat,less\n" * 3
    assert topics(read_table(put(rows))) == ["header"]
    assert topics(read_table(put("parents,nurse\n" + rows))) == []


def test_headers_can_be_declared(put):
    assert len(read_table(put(text()), header=False).frame) == 5
    assert list(read_table(put(text(names=None)), header=True).frame.columns) == ["Ana", "31", "1.5", "2020-01-31"]


def test_years_are_names(put):
    frame = read_table(put("country,2019,2020\nDE,1.5,2\nFR,3,4\n")).frame
    assert list(frame.columns) == ["country", "2019", "2020"]


def test_names_are_trimmed_distinct_and_not_empty(put):
    table = read_table(put('" age ",,x,x,"x_2","two\nlines"\n1,a,3,4,5,6\n2,b,4,5,6,7\n'))
    assert list(table.frame.columns) == ["age", "column_2", "x", "x_3", "x_2", "two lines"]
    assert topics(table) == ["unnamed", "duplicate"]
    assert "'x' is now 'x_3'" in table.findings[1].message


def test_a_separator_at_the_end_of_each_line_makes_no_column(put):
    assert list(read_table(put("a,b,\n1,2,\n3,4,\n")).frame.columns) == ["a", "b"]
    assert list(read_table(put("a,b\n1,2,\n3,4,\n")).frame.columns) == ["a", "b"]


def test_row_names_of_r(put):
    table = read_table(put("age,job\n1,31,clerk\n2,45,sales\n3,20,clerk\n"))
    assert list(table.frame.columns) == ["age", "job"]
    assert table.frame["age"].tolist() == [31, 45, 20]
    assert topics(table) == ["unnamed"]


def test_lines_in_quotes_as_a_whole(put):
    table = read_table(put('"""age"";""job"""\n"31;""a, b"""\n"45;""c"""\n'))
    assert table.frame.to_dict("list") == {"age": [31, 45], "job": ["a, b", "c"]}
    assert topics(table) == ["quotes", "separator"]


def test_single_quotes(put):
    table = read_table(put("'age','job'\n'31','it''s'\n'45','clerk'\n"))
    assert table.frame.to_dict("list") == {"age": [31, 45], "job": ["it''s", "clerk"]}


@pytest.mark.parametrize(
    ("above", "names"),
    [
        ("Q1,Q2,Q3\nage,job,pay\n", ["age", "job", "pay"]),
        ("age,job,pay\nyears,,EUR\n", ["age", "job", "pay"]),
        ("Q1,Q2,Q3\nHow old are you?,What is your job?,And your pay?\n", ["Q1", "Q2", "Q3"]),
    ],
)
def test_two_rows_above_the_values(put, above, names):
    table = read_table(put(above + "31,a,1.5\n45,b,2\n20,c,3\n"))
    assert list(table.frame.columns) == names
    assert table.frame[names[0]].tolist() == [31, 45, 20]
    assert topics(table) == ["header"]


def test_few_damaged_characters_leave_utf_8_as_it_is(tmp_path):
    path = tmp_path / "towns.csv"
    content = "town,x\nKöln,1\nKöln,2\nMünchen,3\n".encode()
    path.write_bytes(content.replace("ü".encode(), b"\xfc"))
    for options in ({}, {"encoding": "utf-8"}):
        table = read_table(path, **options)
        assert table.frame["town"].tolist() == ["Köln", "Köln", "M\ufffdnchen"]
    path.write_bytes("town,x\nKöln,1\n".encode("cp1252"))
    assert read_table(path).frame["town"].tolist() == ["Köln"]
    assert read_table(path, encoding="utf-8").frame["town"].tolist() == ["K\ufffdln"]


# ---------------------------------------------------------------------------------- irregular lines


def test_lines_before_the_table_and_comments(put):
    content = "Export of 1 May\n# by hand\n\nname,x,y\na,1,2\n# a note\nb,3,4\n#1,5,6\n"
    table = read_table(put(content))
    assert table.frame["name"].tolist() == ["a", "b", "#1"]
    assert table.frame["x"].tolist() == [1, 3, 5]
    assert topics(table) == ["preamble", "comments"]
    assert table.findings[0].message.startswith("3 lines")


def test_short_and_long_lines(put):
    table = read_table(put("a,b,c\n1,2,3\n4,5\n6,7,8,9\n10,11,12\n13,14,15\n"))
    assert table.frame["a"].tolist() == [1, 4, 6, 10, 13]
    assert table.frame["c"].tolist() == pytest.approx([3, np.nan, 8, 12, 15], nan_ok=True)
    assert topics(table) == ["ragged"]
    assert "1 line has more fields" in table.findings[0].message


def test_a_long_first_line_of_values(put):
    table = read_table(put("a,b\n1,2,3\n3,4\n5,6\n7,8\n"))
    assert table.frame["a"].tolist() == [1, 3, 5, 7]
    assert topics(table) == ["ragged"]


def test_line_ends_of_windows_and_old_macs(put):
    for end in ("\r\n", "\r"):
        expected(read_table(put(text().replace("\n", end))).frame)


TABLE = text(
    names=("id", "name", "pay", "day"), rows=[(i, "Ana Bo"[i % 2 :], i * 1.5, f"2020-01-0{i}") for i in range(1, 9)]
)


@pytest.mark.parametrize(
    ("footer", "count"),
    [
        ("Total: 8 rows\n", 1),
        ("Total,,54,\n", 1),
        ("Total,8,54,2020-01-09\n", 1),
        ("\nSource: Ministry of Health, 2020\n* estimated\n", 2),
        ("------\n(8 rows affected)\n", 2),
        ('"Generated on 1 May, by a program"\n', 1),
        (",,,\n,,,\n", 2),
    ],
)
def test_totals_and_remarks_after_the_table_are_left_out(put, footer, count):
    table = read_table(put(TABLE + footer))
    assert table.frame.equals(read_table(put(TABLE)).frame)
    assert topics(table) == ["footer"]
    assert table.findings[0].message.startswith(f"{count} line")


@pytest.mark.parametrize(
    "last",
    ["9,,,\n", "9,Total,1.5,2020-01-09\n", "9,,,2020-01-09\n", "n/a,Ana,1.5,2020-01-09\n", "A9,Ana,1.5,2020-01-09\n"],
)
def test_incomplete_rows_at_the_end_are_rows(put, last):
    table = read_table(put(TABLE + last))
    assert len(table.frame) == 9
    assert "footer" not in topics(table)


def test_values_that_begin_like_totals_are_values(put):
    rows = [("Shell", 1), ("BP", 2), ("Repsol", 3), ("Total Energies", 4)]
    assert len(read_table(put(text(names=("company", "x"), rows=rows))).frame) == 4
    rows = [(kind, place) for place in range(4) for kind in ("men", "women", "Total")]
    assert len(read_table(put(text(names=("kind", "x"), rows=rows))).frame) == 12


def test_a_line_that_names_the_separator_and_names_of_two_lines(put):
    table = read_table(put("sep=;\nx;y\n1,5;a\n2,5;b\n"))
    assert table.frame.to_dict("list") == {"x": [1.5, 2.5], "y": ["a", "b"]}
    table = read_table(put('"first\nname",x,y\nAna,1,a\nBo,2,b\n'))
    assert list(table.frame.columns) == ["first name", "x", "y"]
    assert table.findings == ()


# ----------------------------------------------------------------------------------- compressed, others


@pytest.mark.parametrize("name", ["p.csv.gz", "p.csv"])
def test_gzipped_files(put, name):
    expected(read_table(put(gzip.compress(text().encode()), name)).frame)


@pytest.mark.parametrize("name", ["people.zip", "people.csv"])
def test_archives_are_to_be_unpacked(tmp_path, name):
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("people.csv", text())
    with pytest.raises(InvalidInput, match="is an archive; unpack it, and name a file in it"):
        read_table(tmp_path / name)


def workbook(path, sheets):
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


TYPED = [(*row[:3], datetime.datetime.fromisoformat(row[3])) for row in ROWS]


def test_workbooks(tmp_path):
    expected(read_table(workbook(tmp_path / "people.xlsx", {"Sheet1": [NAMES, *TYPED]})).frame)


def test_sheets_are_reported_and_can_be_chosen(tmp_path):
    sheets = {"Notes": [["Read me"]], "People": [NAMES, *TYPED], "More": [["a", "b"], [1, 2], [3, 4]]}
    path = workbook(tmp_path / "people.xlsx", sheets)
    table = read_table(path)
    expected(table.frame)
    assert topics(table) == ["sheet"]
    assert "'Notes', 'People', 'More'" in table.findings[0].message
    assert read_table(path, sheet="More").frame["a"].tolist() == [1, 3]
    assert read_table(path, sheet=3).frame["b"].tolist() == [2, 4]
    assert read_table(path, sheet="2").options["sheet"] == "People"
    with pytest.raises(InvalidInput, match=r"sheet is 'Less', but .* 'Notes', 'People', 'More'; name one"):
        read_table(path, sheet="Less")


def test_titles_gaps_errors_and_missing_headers_of_sheets(tmp_path):
    rows = [["People of May"], [], [*NAMES, None], [*TYPED[0], None], ["Bo", "#N/A", None, None], [*TYPED[2], None]]
    table = read_table(workbook(tmp_path / "people.xlsx", {"A": rows}))
    assert list(table.frame.columns) == list(NAMES)
    assert parse_number(table.frame["age"]).values.tolist() == pytest.approx([31, np.nan, 62], nan_ok=True)
    assert topics(table) == ["preamble", "missing"]
    bare = read_table(workbook(tmp_path / "bare.xlsx", {"A": TYPED}))
    assert topics(bare) == ["header"]
    assert len(bare.frame) == 4


def test_parquet_files_and_folders(tmp_path):
    frame = pd.DataFrame(TYPED, columns=NAMES)
    frame.to_parquet(tmp_path / "people.parquet")
    expected(read_table(tmp_path / "people.parquet").frame)
    for part, year in enumerate([2020, 2021]):
        folder = tmp_path / "parts" / f"year={year}"
        folder.mkdir(parents=True)
        frame[2 * part : 2 * part + 2].to_parquet(folder / "0.parquet")
    (tmp_path / "parts" / "_SUCCESS").touch()
    found = read_table(tmp_path / "parts").frame
    assert found["year"].tolist() == [2020, 2020, 2021, 2021]
    expected(found.drop(columns="year"))
    (tmp_path / "parts" / "notes.txt").touch()
    with pytest.raises(InvalidInput, match="1 files besides 2 Parquet files; move them away"):
        read_table(tmp_path / "parts")


def test_arrow_files(tmp_path):
    pd.DataFrame(TYPED, columns=NAMES).to_feather(tmp_path / "people.feather")
    expected(read_table(tmp_path / "people.feather").frame)


def test_json_lines_and_records(put):
    records = [dict(zip(NAMES, row, strict=True)) for row in ROWS]
    expected(read_table(put("\n".join(map(json.dumps, records)), "people.jsonl")).frame)
    expected(read_table(put(json.dumps(records), "people.json")).frame)
    nested = read_table(put('{"a": [1, 2], "b": 1}\n{"a": "x", "b": 2}\n', "people.jsonl"))
    assert topics(nested) == ["nested"]


def test_arff(put):
    content = """% weather
@relation 'the weather'
@attribute outlook {sunny, 'light rain'}
@ATTRIBUTE 'degrees C' numeric
@attribute day date "yyyy-MM-dd"
@attribute note string

@data
sunny,  85.5, "2020-01-01", 'it\\'s hot'
'light rain', ?, "2020-01-02", 'wet, cold'
% the end
sunny, 70, ?, ?
"""
    frame = read_table(put(content, "weather.arff")).frame
    assert list(frame.columns) == ["outlook", "degrees C", "day", "note"]
    assert frame["outlook"].tolist() == ["sunny", "light rain", "sunny"]
    assert frame["degrees C"].tolist() == pytest.approx([85.5, np.nan, 70], nan_ok=True)
    assert frame["day"].isna().tolist() == [False, False, True]
    assert str(frame["day"].dtype).startswith("datetime64")
    assert frame["note"].tolist() == ["it's hot", "wet, cold", None]


def test_footers_of_sheets(tmp_path):
    rows = [NAMES, *TYPED, [], ["Total", None, 999.4], ["Source: the registry"]]
    table = read_table(workbook(tmp_path / "people.xlsx", {"A": rows}))
    expected(table.frame)
    assert topics(table) == ["footer"]


def test_what_is_written_is_read_back(tmp_path, put):
    frame = read_table(put(text())).frame
    frame.to_csv(tmp_path / "again.csv", index=False)
    expected(read_table(tmp_path / "again.csv").frame)


# -------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"\n \n\n", "is empty"),
        ("a.csv", b"\xef\xbb\xbf", "is empty"),
        ("a.csv", gzip.compress(b"", mtime=0), "is empty"),
        ("a.csv", b"a,b\n", "holds no rows"),
        ("a.csv.gz", gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-20], "ends too early; copy it again"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old Excel workbook; save it as .xlsx"),
        ("a.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old Excel workbook; save it as .xlsx"),
        ("a.sav", b"$FL2", "SPSS file; export it"),
        ("a.pkl", b"\x80\x04", "pickle, which can run code"),
        ("a.parquet", b"hello", "no Parquet file, or is damaged"),
        ("a.parquet", b"PAR1hello", "as Parquet: .*write it again"),
        ("a.xlsx", b"PK\x03\x04xx", "damaged; write it again"),
        ("a.xlsx", b"hello", "no Excel workbook"),
        ("a.jsonl", b"{'a'", "as JSON: "),
        ("a.html", b"<table></table>", "web page; save the table"),
        ("a.arff", b"@relation a\n@attribute x numeric\n", "no line @data"),
        ("a.arff", b"@attribute x numeric\n@data\n{0 1}\n", "sparse ARFF"),
        ("a.arff", b"@attribute x numeric\n@data\n1,2\n", "rows of other lengths"),
    ],
)
def test_files_that_cannot_be_read(put, name, content, said):
    with pytest.raises(InvalidInput, match=said) as told:
        read_table(put(content, name))
    assert name in str(told.value)
    assert "\n" not in str(told.value)


def test_places_that_hold_no_table(tmp_path):
    with pytest.raises(InvalidInput, match="there is no file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InvalidInput, match="holds nothing, no Parquet files"):
        read_table(tmp_path)
    with pytest.raises(InvalidInput, match=r"sheet 'A' of .* is empty"):
        read_table(workbook(tmp_path / "empty.xlsx", {"A": []}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sep": ";;"}, "sep must be one character"),
        ({"sep": ";"}, "sep is ';', but the lines"),
        ({"decimal": ";"}, "decimal must be one of"),
        ({"sheet": "A"}, "no Excel workbook"),
        ({"date_order": "ymd"}, "date_order must be one of"),
    ],
)
def test_options_that_do_not_fit(put, options, said):
    with pytest.raises(InvalidInput, match=said):
        read_table(put(text()), **options)
    with pytest.raises(InvalidType, match="path must be"):
        read_table(3)
    with pytest.raises(InvalidType, match="header must be"):
        read_table(put(text()), header="yes")


@pytest.mark.parametrize("content", ['a,b\n"secret,1\nx,2\n', 'a,b\n1,2\n"secret', 'a,b\n1,2\n"secret"x"y,3\n'])
def test_messages_do_not_show_cells(put, content):
    said = []
    try:
        said += [finding.message for finding in read_table(put(content)).findings]
    except InvalidInput as problem:
        said.append(str(problem))
    assert not any("secret" in message for message in said)


def test_half_a_million_rows_need_little_memory(tmp_path):
    path = tmp_path / "large.csv"
    block = "".join(f"{i},{i % 97},{i / 7:.4f},{'abcdefg'[i % 7]}\n" for i in range(5000))
    path.write_text("id,x,y,z\n" + block * 100)
    program = (
        "import resource, sys; from ratewise.data.files import read_table; import pandas, pyarrow;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "n = len(read_table(sys.argv[1]).frame);"
        "print(n, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    rows, megabytes = map(int, done.stdout.split())
    assert rows == 500_000
    assert megabytes < 200
