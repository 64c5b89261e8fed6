"""Figures for papers: matplotlib axes that show the numbers of the report, and files that hold them."""

import sys

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.datasets import census_like
from ratewise.exceptions import InvalidInput
from ratewise.report import Report

pytest.importorskip("matplotlib")

NAMES = {"constraints", "rates", "error", "tradeoff", "calibration", "training", "ledger", "shapes"}


@pytest.fixture(scope="module")
def report():
    rows = census_like(3000, random_state=0)
    public = {"classes": rows.classes, "group_values": rows.group_values, "random_state": 0, "delta": 1e-5}
    model = RateConstrainedClassifier(demographic_parity("sex", max_gap=0.2), **public)
    model.fit(rows.X / 50, rows.y, sensitive_features=rows.sensitive)
    plain = RateConstrainedClassifier(epsilon=None, **public).fit(rows.X / 50, rows.y)
    return Report.from_model(model, rows.X / 50, rows.y, rows.sensitive, baseline=plain, by=["sex", "region"])


def test_every_figure_is_an_axes_with_something_in_it(report):
    found = report.figures()
    assert set(found) == NAMES
    for ax in found.values():
        assert isinstance(ax, pytest.importorskip("matplotlib.axes").Axes)
        assert ax.lines or ax.patches or ax.containers
        assert ax.get_xlabel() or ax.get_title(loc="left")


def test_dots_are_the_gaps_of_the_constraints(report):
    ax = report.plot("constraints")
    dots = sorted(float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o")
    assert dots == pytest.approx(sorted(constraint.excess for constraint in report.content.constraints))


def test_dots_are_the_rates_of_the_groups(report):
    ax = report.plot("rates", rate="true_positive_rate", by="region")
    grouping = next(g for g in report.content.groupings if g.by == ("region",))
    dots = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o"]
    assert dots == [group.rates["1"]["true_positive_rate"].value for group in grouping.groups]
    assert [label.get_text() for label in ax.get_yticklabels()] == [group.name for group in grouping.groups]


def test_bars_of_the_ledger_end_at_epsilon(report):
    ax = report.plot("ledger")
    dots = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o"]
    assert dots == pytest.approx([entry.after for entry in report.content.spending.entries])


def test_curves_are_those_of_the_training(report):
    ax = report.plot("training")
    front = next(line for line in ax.lines if line.get_label() == report.content.training.curves[0].name)
    drawn = np.asarray(front.get_ydata(), dtype=float)
    assert np.allclose(drawn, np.array(report.content.training.curves[0].excess, dtype=float), equal_nan=True)


def test_a_given_axes_is_drawn_on(report):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    left, right = figure.subplots(1, 2)
    assert report.plot("calibration", left) is left
    assert report.plot("error", right, by="sex") is right
    assert report.plot("tradeoff", left) is left


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_files(report, tmp_path, kind, start):
    paths = report.save_figures(tmp_path / "figures", format=kind)
    assert sorted(paths) == sorted(str(path) for path in (tmp_path / "figures").iterdir())
    assert len(paths) == len(NAMES)
    for path in (tmp_path / "figures").iterdir():
        assert path.read_bytes().startswith(start)


def test_what_cannot_be_drawn_is_said(report):
    bare = Report.from_predictions([0, 1, 1], [0, 1, 0])
    assert bare.figures() == {}
    for name in NAMES:
        with pytest.raises(InvalidInput, match="there is no figure"):
            bare.plot(name)
    with pytest.raises(InvalidInput, match="format"):
        report.save_figures("anywhere", format="bmp")
    with pytest.raises(InvalidInput, match="rate"):
        report.plot("rates", rate="luck")
    with pytest.raises(InvalidInput, match="by must be one of"):
        report.plot("rates", by="age")


def test_a_dollar_in_a_group_is_no_formula(tmp_path):
    truth, guess, pay = [0, 1] * 20, [0, 1, 1, 0] * 10, ["$5_a", "$9^{"] * 20
    report = Report.from_predictions(truth, guess, {"pay": pay}, demographic_parity("pay", max_gap=0.5))
    assert report.save_figures(tmp_path)


def test_without_matplotlib_the_way_out_is_named(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"ratewise\[report\]"):
        report.plot("constraints")
