"""`report` on the classifier, and what it shows in notebooks."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
import sklearn
from sklearn.base import clone

from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity, rate
from ratewise.report import Report
from ratewise.report.views import summary

EVIL = "<img src=x onerror=alert(1)>"


def rows(n=6000, seed=0):
    rng = np.random.default_rng(seed)
    sex = np.array(["F", "M"])[rng.integers(0, 2, n)]
    X = rng.normal(size=(n, 3))
    return X, (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int), {"sex": sex}


def fitted(**choices):
    X, y, sensitive = rows()
    settings = {
        "classes": [0, 1],
        "group_values": {"sex": ["F", "M"]},
        "config": TrainingConfig(steps=30),
        "random_state": 0,
    }
    constraints = choices.pop("constraints", demographic_parity("sex", max_gap=0.5))
    model = RateConstrainedClassifier(constraints, **(settings | choices))
    return model.fit(X, y, sensitive_features=sensitive)


@pytest.fixture(scope="module")
def model():
    return fitted()


def test_it_gives_the_report(model, tmp_path):
    X, y, sensitive = rows(seed=1)
    report = model.report(X, y, sensitive_features=sensitive, baseline=fitted(epsilon=None, constraints=None))
    assert isinstance(report, Report)
    assert report.content.rows == len(y)
    assert len(report.content.constraints) == len(model.constraints_.items) == 1
    assert report.content.statement == model.privacy_.to_dict()
    assert [each.name for each in report.content.models] == ["RateConstrainedClassifier", "without constraints"]
    report.to_html(tmp_path / "report.html")
    report.to_json(tmp_path / "report.json")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == report.to_html()
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["rows"] == len(y)


def test_a_report_spends_nothing(model):
    X, y, sensitive = rows(seed=1)
    before = model.ledger_.to_json()
    model.report(X, y, sensitive_features=sensitive).to_html()
    assert model.ledger_.to_json() == before


def test_not_fitted_is_said():
    with pytest.raises(sklearn.exceptions.NotFittedError):
        RateConstrainedClassifier().report(*rows()[:2])


def test_missing_groups_are_said(model):
    X, y, _ = rows()
    with pytest.raises(ValueError, match="sex"):
        model.report(X, y)


def test_the_guide_runs(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    guide = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", guide, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks:
        exec(compile(block, "docs/report.md", "exec"), names)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"report.html", "report.json", "card.md", "figures"}


class TestHtml:
    def test_before_fit_it_says_what_is_asked(self):
        shown = clone(fitted())._repr_html_()
        assert "Not fitted yet" in shown
        assert "demographic_parity(sex) &lt;= 0.5" in shown

    def test_after_fit_it_says_what_was_spent(self, model):
        shown = model._repr_mimebundle_()
        assert shown["text/plain"] == repr(model)
        assert summary(model) in model._repr_html_()
        assert summary(model) in shown["text/html"]
        assert "Privacy: </b>epsilon " in shown["text/html"]
        assert "(2 constraints)" in shown["text/html"]
        assert "sk-container" in shown["text/html"]  # scikit-learn's diagram is still there

    def test_certificate_and_lack_of_privacy_are_shown(self, model):
        assert html.escape(model.certificate_.summary) in model._repr_html_()
        assert "no guarantee" in fitted(epsilon=None)._repr_html_()

    def test_texts_are_escaped(self):
        named = RateConstrainedClassifier((rate(1) <= 0.5).named(EVIL))
        assert EVIL not in named._repr_html_()

    def test_display_as_text_is_respected(self, model):
        with sklearn.config_context(display="text"):
            assert "text/html" not in model._repr_mimebundle_()
            assert not hasattr(model, "_repr_html_")


def test_constraints_mean_on_new_rows_what_they_meant_in_training():
    """A group that no new row is in keeps its constraint, which then cannot be told."""
    model = fitted(group_values=None, epsilon=None)
    X, y, _ = rows(seed=1)
    report = model.report(X, y, sensitive_features={"sex": np.full(len(y), "F")})
    assert [constraint.name for constraint in report.content.constraints] == [
        item.name for item in model.constraints_.items
    ]
    assert {constraint.state for constraint in report.content.constraints} == {"cannot tell"}
