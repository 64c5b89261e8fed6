"""Loaders on small made-up files: where files are looked for, what is refused, what schemas promise."""

import errno
import hashlib
import http.client
import io
import urllib.error
import zipfile

import numpy as np
import pandas as pd
import pytest

from ratewise.data.schema import Category, Number, Schema
from ratewise.datasets import DataCorrupt, DataNotFound, files, load_adult, load_celeba, load_utkface, tables
from ratewise.datasets.files import KnownFile, locate
from ratewise.datasets.tables import encode, feature_names, published, table
from ratewise.exceptions import InvalidInput, InvalidType

TEXT = b"some rows\n"
ADDRESS = "https://example.org/archive.zip"
KNOWN = KnownFile("set/rows.data", hashlib.sha256(TEXT).hexdigest(), ADDRESS)


def archive(name="folder/rows.data", content=TEXT, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as opened:
        opened.writestr(name, content)
    return buffer.getvalue()


class Answer(io.BytesIO):
    @property
    def headers(self):
        return {"Content-Length": "1"}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(files.VARIABLE, raising=False)
    return tmp_path / "cache" / "ratewise"


@pytest.fixture
def network(monkeypatch):
    """Answer every request with the bytes in the list, or fail with the exception in it."""
    answers, asked = [], []

    def urlopen(address, timeout):
        asked.append(address)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return Answer(answers[0])

    monkeypatch.setattr(files.urllib.request, "urlopen", urlopen)
    return answers, asked


def put(folder, content=TEXT):
    path = folder / "set" / "rows.data"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_the_given_folder_comes_before_the_variable_and_the_cache(tmp_path, cache, monkeypatch, network):
    given, named = put(tmp_path / "given"), put(tmp_path / "named")
    cached = put(cache)
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "named"))
    assert locate([KNOWN], "home", tmp_path / "given") == given
    assert locate([KNOWN], "home") == named
    monkeypatch.delenv(files.VARIABLE)
    assert locate([KNOWN], "home") == cached
    assert network[1] == []


def test_a_missing_file_is_fetched_once_and_checked(cache, network):
    answers, asked = network
    answers.append(archive())
    path = locate([KNOWN], "home")
    assert path == cache / "set" / "rows.data"
    assert path.read_bytes() == TEXT
    assert locate([KNOWN], "home") == path
    assert asked == [ADDRESS]


@pytest.mark.parametrize("content", [archive(content=b"other rows\n"), archive("other.data"), b"no zip"])
def test_a_wrong_download_leaves_nothing_behind(cache, network, content):
    network[0].append(content)
    with pytest.raises(DataCorrupt):
        locate([KNOWN], "home")
    assert list((cache / "set").iterdir()) == []


def test_whatever_byte_of_a_download_is_damaged_nothing_wrong_is_kept(cache, network):
    """Each value damages in another way: 14 names another compression, 255 breaks lengths and streams."""
    whole = archive(content=TEXT, compression=zipfile.ZIP_DEFLATED)
    refused = 0
    for place in range(len(whole)):
        for value in {1, 14, 255, whole[place] ^ 1}:
            network[0][:] = [whole[:place] + bytes([value]) + whole[place + 1 :]]
            try:
                kept = locate([KNOWN], "home")
            except DataCorrupt:
                refused += 1
            else:
                assert kept.read_bytes() == TEXT
                kept.unlink()
            assert list((cache / "set").iterdir()) == []
    assert refused > len(whole)


def test_a_damaged_stream_is_named_as_such(cache, network):
    whole = archive(content=TEXT, compression=zipfile.ZIP_DEFLATED)
    begin = whole.index(b"rows.data") + len(b"rows.data")
    network[0].append(whole[:begin] + b"\xff\xff\xff" + whole[begin + 3 :])
    with pytest.raises(DataCorrupt, match=r"example.org/archive.zip came damaged.*rows.data.*home"):
        locate([KNOWN], "home")


@pytest.mark.parametrize("blocked", ["cache", "cache/ratewise", "cache/ratewise/set"])
def test_a_cache_that_is_no_folder_says_what_to_do(tmp_path, cache, network, blocked):
    network[0].append(archive())
    path = tmp_path / blocked
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file")
    with pytest.raises(DataNotFound, match=r"cannot keep set/rows.data in the cache folder .*XDG_CACHE_HOME"):
        locate([KNOWN], "home")
    assert path.read_text() == "a file"
    assert network[1] == []


def test_a_full_disk_leaves_nothing_behind(cache, network, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    network[0].append(archive())
    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(DataNotFound, match=r"cannot keep .*No space left"):
        locate([KNOWN], "home")
    assert list((cache / "set").iterdir()) == []


def test_a_connection_that_breaks_off_says_what_to_do(cache, network):
    network[0].append(http.client.IncompleteRead(b"some"))
    with pytest.raises(DataNotFound, match="cannot fetch"):
        locate([KNOWN], "home")


def test_no_network_says_what_to_do(cache, network):
    network[0].append(urllib.error.URLError("no route"))
    with pytest.raises(DataNotFound, match=r"cannot fetch https://example.org.*no route.*rows.data.*data_home"):
        locate([KNOWN], "home")


def test_a_damaged_file_is_refused_and_kept(tmp_path, cache):
    path = put(tmp_path, b"some ro")
    with pytest.raises(DataCorrupt, match="cut off or another version"):
        locate([KNOWN], "home", tmp_path)
    assert path.read_bytes() == b"some ro"


def test_what_cannot_be_fetched_names_its_home(tmp_path, cache):
    with pytest.raises(DataNotFound, match=r"set/rows.data is in none of .*get it from its home"):
        locate([KnownFile("set/rows.data", "0")], "its home", tmp_path)


def test_bad_folders(tmp_path):
    with pytest.raises(InvalidInput, match="existing folder"):
        load_adult(tmp_path / "nowhere")
    with pytest.raises(InvalidType, match="data_home must be a path"):
        load_adult(3)


SMALL = Schema(
    {"age": Number(0, 10), "job": Category(["a", "b"])},
    label="label",
    classes=(0, 1),
    groups={"sex": Category(["F", "M"])},
)


def test_encoding_follows_the_schema_alone():
    frame = pd.DataFrame({"age": [5, 99, -3], "job": ["b", "b", "a"], "label": [0, 1, 1]})
    assert feature_names(SMALL) == ("age", "job=a", "job=b")
    assert encode(frame, SMALL).tolist() == [[5, 0, 1], [10, 0, 1], [0, 1, 0]]
    assert encode(frame.iloc[:1], SMALL).tolist() == [[5, 0, 1]]
    found = table(frame, frame["label"], {"sex": ["F", "M", "M"]}, SMALL)
    assert found.feature_bounds.tolist() == [[0, 0, 0], [10, 1, 1]]
    assert found.data.columns.tolist() == ["age", "job"]
    assert found.target.tolist() == [0, 1, 1]
    assert "3 rows, 3 features" in repr(found)


@pytest.mark.parametrize(("column", "label", "sex"), [("c", 0, "F"), ("a", 2, "F"), ("a", 0, "X"), (None, 0, "F")])
def test_unknown_values_are_refused_without_showing_them(column, label, sex):
    frame = pd.DataFrame({"age": [5], "job": [column], "label": [label]})
    with pytest.raises(InvalidInput, match=r"1 rows of column .* hold none of its 2 known values"):
        table(frame, frame["label"], {"sex": [sex]}, SMALL)


ROW = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, {sex}, 2174, 0"
ROW += ", 40, {country}, {label}\n"


def write_adult(folder, monkeypatch):
    (folder / "adult").mkdir()
    train = ROW.format(sex="Male", country="United-States", label="<=50K")
    train += ROW.format(sex="Male", country="?", label="<=50K")
    test = "|1x3 Cross validator\n" + ROW.format(sex="Female", country="Cuba", label=">50K.")
    adult, known = published("adult"), []
    for file, text in zip(adult.files, (train, test), strict=True):
        (folder / file.path).write_text(text)
        known.append(KnownFile(file.path, hashlib.sha256(text.encode()).hexdigest()))
    monkeypatch.setattr(tables, "published", lambda _: adult._replace(files=tuple(known)))


def test_adult_holds_each_complete_row_of_both_files_once(tmp_path, monkeypatch):
    write_adult(tmp_path, monkeypatch)
    once = load_adult(tmp_path)
    assert once.y.tolist() == [0, 1]
    assert once.sensitive["sex"].tolist() == ["Male", "Female"]
    assert "sex" not in once.schema.columns


def picture(colour):
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (20, 20), colour).save(buffer, "JPEG")
    return buffer.getvalue()


def test_utkface_reads_names_and_pictures(tmp_path):
    folder = tmp_path / "faces" / "UTKFace"
    folder.mkdir(parents=True)
    (folder / "26_1_2_2017.jpg.chip.jpg").write_bytes(picture((255, 0, 0)))
    (folder / "85_0_0_2018.jpg.chip.jpg").write_bytes(picture((0, 0, 255)))
    (folder / "61_3_2019.jpg.chip.jpg").write_bytes(picture((0, 0, 0)))  # lacks a field
    faces = load_utkface(tmp_path)
    assert faces.y.tolist() == ["female", "male"]
    assert faces.sensitive["race"].tolist() == ["Asian", "White"]
    assert load_utkface(tmp_path, label="age").y.tolist() == ["20-29", "80+"]
    pixels = faces.images([1, 0], size=8)
    assert pixels.shape == (2, 3, 8, 8)
    assert pixels.dtype == np.uint8
    assert pixels[0, 2].min() > 240 > 20 > pixels[0, 0].max()
    assert pixels[1, 0].min() > 240 > 20 > pixels[1, 2].max()


def test_celeba_reads_the_authors_lists(tmp_path):
    folder = tmp_path / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    lines = ["2", "Male Smiling", "000001.jpg -1  1", "000002.jpg  1 -1"]
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    (folder / "list_eval_partition.txt").write_text("000001.jpg 0\n000002.jpg 2\n")
    (folder / "img_align_celeba" / "000002.jpg").write_bytes(picture((0, 255, 0)))
    faces = load_celeba(tmp_path)
    assert faces.y.tolist() == [1, 0]
    assert faces.sensitive["gender"].tolist() == ["female", "male"]
    assert faces.frame["partition"].tolist() == [0, 2]
    assert faces.images([1], size=4)[0, 1].min() > 200
    with pytest.raises(InvalidInput, match="label must be one of"):
        load_celeba(tmp_path, label="Happy")
