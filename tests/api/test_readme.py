"""The README and the guides: examples run, quoted numbers are those of the tables, links and commands exist."""

import importlib
import importlib.util
import math
import re
import runpy
import statistics
import sys
import tomllib
from pathlib import Path

import pytest

from ratewise import demo

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import certificate, persons  # noqa: E402
from benchmarks import page as results_page  # noqa: E402
from benchmarks.__main__ import NAMES  # noqa: E402

PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "README.md"]
# test_report_of_classifier.py runs report.md; pytorch.md shows excerpts that need images, a module or several processes
ELSEWHERE = {"report.md", "pytorch.md"}
SLOW = {"plot_2_trade_off", "plot_5_epsilon", "plot_8_network", "plot_7_ledger", "plot_9_persons"}
SCRIPTS = [
    script
    for folder in ("examples", "attacks")
    for script in sorted((ROOT / "docs" / folder).glob("plot_*.py"))
    if script.stem not in SLOW
]
RUN = [page for page in PAGES if page.name not in ELSEWHERE and "```python" in page.read_text()]


def blocks(page):
    """Return the plain Python of a page; doctests are run elsewhere."""
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [block for block in found if ">>>" not in block]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_examples_run_as_written(page, tmp_path, monkeypatch, capsys):
    """All blocks of a page run one after the other, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example", "batches": range(200)}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)
    check = CHECKS.get(page.name)
    if check is not None:
        check(names, capsys.readouterr().out)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scripts_of_the_galleries_run(script, tmp_path, monkeypatch):
    """`make docs` runs all of them; here are those that need little time. Attacks assert that they succeed and are defended."""
    monkeypatch.chdir(tmp_path)
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    try:
        runpy.run_path(str(script), run_name="example")
    finally:
        pyplot.close("all")


def check_readme(names, printed):
    assert "differentially private with epsilon = " in printed
    assert 0.999 <= names["model"].privacy_.epsilon <= 1.0
    assert "Largest gap: requested .05" in printed


def check_quickstart(names, printed):
    assert names["model"].privacy_.epsilon <= 1.0
    assert names["report"].max_violation < 0.05  # chance of 10,000 rows and noise
    assert "cap" in printed  # the third fit was refused
    assert names["by_person"].privacy_.unit != names["model"].privacy_.unit


def check_ledger(names, printed):
    assert names["ledger"].total() <= 1.0
    assert Path("privacy.json").exists()


CHECKS = {"README.md": check_readme, "quickstart.md": check_quickstart, "ledger.md": check_ledger}


def test_readme_starts_with_the_two_commands():
    commands = [line.strip() for line in (ROOT / "README.md").read_text().splitlines() if line.strip()][1:3]
    assert commands[0].startswith("make demo")
    assert commands[1].startswith("make test")


def test_numbers_of_readme_and_benchmarks_are_those_of_the_tables():
    """`python -m benchmarks page` writes both."""
    assert results_page.benchmarks_page() == (ROOT / "docs" / "benchmarks.md").read_text()
    assert results_page.readme_with_table() == (ROOT / "README.md").read_text()


def test_numbers_of_the_certificate_page_are_those_of_its_fits():
    page = (ROOT / "docs" / "certificate.md").read_text()
    fits = certificate.read(certificate.RESULTS)
    for line in certificate.summary(fits):
        for count, total in re.findall(r"(\d+) of (\d+)", line):
            assert f"| {count} of {total} |" in page
    held, missed, unsure = (
        sum(one.verdict == word for one in fits) for word in ("held", "missed", "cannot tell")
    )
    assert (
        f"Of the {len(fits)}, {held} were held, {missed} missed, and of {unsure} the certificate cannot tell"
        in page
    )
    edges = {
        "below 2,000": 0,
        "below 5,000": 2_000,
        "below 10,000": 5_000,
        "to 40,000": 10_000,
        "250,000": 40_001,
    }
    for (name, low), high in zip(edges.items(), [*[*edges.values()][1:], math.inf], strict=True):
        for place, epsilon in enumerate((0.3, 1.0, 3.0)):
            widths = [
                (one.high - one.low) / 2 for one in fits if low <= one.n < high and one.epsilon == epsilon
            ]
            quoted = re.search(rf"^\| {name} \| (.*) \|$", page, re.MULTILINE)[1].split(" | ")[place]
            assert float(quoted) == pytest.approx(statistics.median(widths), abs=6 * 10 ** -len(quoted))


def test_numbers_of_the_persons_page_are_those_of_its_fits():
    page = (ROOT / "docs" / "persons.md").read_text()
    quoted = re.findall(r"^\| (\w+) \| (\d+) \| .*$", page, re.MULTILINE)
    assert {table for table, _ in quoted} == set(persons.BOUNDS)
    for table, rows in quoted:
        assert persons.markdown(persons.RESULTS, table, (int(rows),)) in page
    guesses = [
        float(one["error"])
        for one in persons.read()
        if (one["table"], one["method"]) == ("parkinsons", "constant")
    ]
    assert f"has error {statistics.fmean(guesses):.3f}".replace("0.", ".") in page


def test_figure_of_the_readme_shows_the_tables():
    """`python docs/figures/readme.py` draws it."""
    figure = load_script(ROOT / "docs" / "figures" / "readme.py")
    drawn = figure.FIGURE.read_text()
    lines = figure.lines()
    assert lines
    for line in lines:
        assert line.label in drawn
        assert all(text in drawn for text in line.texts)


def load_script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version


def test_results_are_compact():
    assert sum(path.stat().st_size for path in (ROOT / "benchmarks" / "results").iterdir()) <= 2_000_000


def test_quickstart_shows_what_the_demo_prints():
    """Up to what other processors round: an old table, of models that differ, is off by more than 0.0005."""
    page = (ROOT / "docs" / "quickstart.md").read_text()
    for row in demo.compare():
        (shown,) = re.findall(rf"^    {re.escape(row.name)}  +(.*)$", page, flags=re.MULTILINE)
        accuracy, *gaps = re.findall(r"(?<!of )(?<![\d.])0\.\d{4}", shown)[:3]
        assert float(accuracy) == pytest.approx(row.accuracy, abs=3e-4)
        assert [float(gap) for gap in gaps] == pytest.approx([row.rates_gap, row.odds_gap], abs=2e-3)


GENERATED = {"scoreboard.md", "benchmarks.md"}  # their tables are results


def test_documentation_is_short():
    """Pages and prose of the galleries have at most 25,000 words; code and numbers count, bars and operators do not."""
    pages = [page for page in PAGES if page.parent != ROOT / "benchmarks"]
    texts = [
        re.sub(r"^\|.*$", "", p.read_text(), flags=re.M) if p.name in GENERATED else p.read_text()
        for p in pages
    ]
    for folder in ("examples", "attacks"):
        texts += [header.read_text() for header in (ROOT / "docs" / folder).glob("*.rst")]
        for script in (ROOT / "docs" / folder).glob("*.py"):
            texts += re.findall(r'\A"""(.*?)"""', script.read_text(), re.DOTALL)
            texts += re.findall(r"^# (?!%%)(.*)$", script.read_text(), re.MULTILINE)
    words = [token for text in texts for token in text.split() if re.search("[A-Za-z0-9]", token)]
    assert len(words) <= 25_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_tests_and_modules_exist(page):
    """Paths of tests and dotted names of the package in prose lead somewhere."""
    text = page.read_text()
    for path in re.findall(r"`((?:tests|benchmarks)/[\w/]+\.(?:py|csv|jsonl?))`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(
        r"`(?:ratewise/)?((?:training|data|accounting|constraints|models)/\w+\.py)`", text
    ):
        assert (ROOT / "src" / "ratewise" / path).exists(), path
    for name in re.findall(r"`(ratewise(?:\.\w+)+)[`(]", text):
        if "torch" not in name:
            assert resolves(name), name


def resolves(name):
    """Return whether a dotted name is a module, or an attribute of one."""
    found = importlib.import_module("ratewise")
    for depth, part in enumerate(name.split(".")[1:], 2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(name.split(".")[:depth]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([\w./-]+\.\w+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / source_of(target)).exists(), target


def source_of(target):
    """Return the file that a link leads to, or from which `make docs` generates the page of a gallery."""
    generated = re.fullmatch(r"auto_(\w+)/(\w+)\.rst", target)
    if generated is None:
        return target
    folder, name = generated.groups()
    return f"{folder}/GALLERY_HEADER.rst" if name == "index" else f"{folder}/{name}.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_benchmarks_that_exist(page):
    text = page.read_text()
    for script in re.findall(r"python (benchmarks/[\w/]+\.py)", text):
        assert (ROOT / script).exists(), script
    for name in re.findall(r"python -m benchmarks (\w+)", text):
        assert name in NAMES, name
