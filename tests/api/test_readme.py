"""The README and the guides: examples run, claims hold, links and commands lead somewhere."""

import re
import warnings
from pathlib import Path

import pytest
import sklearn

import ratewise
from ratewise import demo

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    """Return the plain Python of a page; doctests are run elsewhere."""
    found = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    return [block for block in found if ">>>" not in block]


def run(page, folder, monkeypatch, **given):
    """Run all blocks of a page, one after the other, and return the names that they leave."""
    monkeypatch.chdir(folder)
    names = {"__name__": "example", **given}
    code = blocks(page)
    assert code, f"{page} has no example"
    for block in code:
        exec(compile(block, page, "exec"), names)
    return names


def test_readme_example_keeps_its_promises(tmp_path, monkeypatch, capsys):
    model = run("README.md", tmp_path, monkeypatch)["model"]
    assert "differentially private with epsilon = " in capsys.readouterr().out
    assert 0.999 <= model.privacy_.epsilon <= 1.0
    assert not model.privacy_.leaks


def test_readme_shows_what_the_demo_prints():
    """Up to what other processors round: an old table, of models that differ, is off by more than 0.0005."""
    readme = (ROOT / "README.md").read_text()
    for row in demo.compare():
        (shown,) = re.findall(rf"^    {re.escape(row.name)}  +(.*)$", readme, flags=re.MULTILINE)
        accuracy, *gaps = re.findall(r"(?<!of )(?<![\d.])0\.\d{4}", shown)[:3]
        assert float(accuracy) == pytest.approx(row.accuracy, abs=3e-4)
        assert [float(gap) for gap in gaps] == pytest.approx([row.rates_gap, row.odds_gap], abs=2e-3)


def test_readme_table_of_declarations_is_python():
    table = (ROOT / "README.md").read_text().split("| limit | write |")[1].split("\n\n")[0]
    written = [code.replace("\\|", "|") for code in re.findall(r"`([^`]+)`", table)]
    calls = [code for code in written if "(" in code and "..." not in code]
    assert len(calls) >= 6
    for code in calls:
        eval(code, vars(ratewise).copy())
    for name in re.findall(r"\b([a-z_]+)\b(?=\(|`)", table):
        assert hasattr(ratewise, name) or name in {"where", "by"}, name


def test_quickstart_runs_as_written(tmp_path, monkeypatch, capsys):
    with sklearn.config_context():  # an example sets the configuration of the whole process
        names = run("docs/quickstart.md", tmp_path, monkeypatch)
    assert names["model"].privacy_.epsilon <= 1.0
    assert names["report"].max_violation < 0.04  # five deviations of chance and noise, 20,000 rows each
    assert 0.6 < names["book"].total_epsilon < 1.0
    assert "cap" in capsys.readouterr().out  # the third fit was refused
    assert names["noise"].epsilon <= 1.0


def test_sharp_edges_run_as_written(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the example is about one, and its data are few
        names = run("docs/sharp-edges.md", tmp_path, monkeypatch)
    assert any("classes" in leak for leak in names["model"].privacy_.leaks)


def test_ledger_guide_runs_as_written(tmp_path, monkeypatch):
    ledger = run("docs/ledger.md", tmp_path, monkeypatch, batches=range(200))["ledger"]
    assert ledger.total_epsilon <= 1.0
    assert (tmp_path / "privacy.json").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([\w./-]+\.\w+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_scripts_that_exist(page):
    for script in re.findall(r"python (benchmarks/[\w/]+\.py)", page.read_text()):
        assert (ROOT / script).exists(), script
