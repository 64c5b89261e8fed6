"""The guides to preparation, evaluation and selection run as written."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def run(page):
    code = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    names = {"__name__": "example"}
    assert code
    for block in code:
        exec(compile(block, page, "exec"), names)
    return names


def test_preprocessing_runs_as_written(capsys):
    names = run("preprocessing.md")
    assert 0.99 <= names["model"].privacy_.epsilon <= 1.0
    assert set(names["model"].bounds_) == {"hours_per_week"}
    assert names["model"].bounds_["hours_per_week"][0] == 0
    assert names["model"].privacy_.private
    assert not names["draft"].signed
    assert "differentially private" in capsys.readouterr().out


def test_evaluation_runs_as_written(capsys):
    names = run("evaluation.md")
    report, book = names["report"], names["book"]
    assert 1.0 < book.total_epsilon <= 1.5
    assert book.total(data="hold-out rows") == pytest.approx(0.3, rel=0.01)
    assert report.accuracy.interval[0] < report.accuracy.value < report.accuracy.interval[1]
    assert "95% interval" in capsys.readouterr().out


def test_selection_runs_as_written():
    search = run("selection.md")["search"]
    assert 0.99 <= search.privacy_.epsilon <= 1.0
    assert set(search.best_params_) == {"learning_rate", "momentum"}
