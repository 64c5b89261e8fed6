"""Curves, fronts, areas, figures and the page: from made-up result lines with known answers."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

pytest.importorskip("matplotlib")

from benchmarks.suite import config, duels, figures, page, store, summary
from benchmarks.suite.methods import METHODS
from benchmarks.suite.methods.base import ROW


def line(method, error, violation, *, knob=0.1, split=0, dataset="adult", epsilon=1.0, **others):
    return {
        "dataset": dataset,
        "epsilon": epsilon,
        "method": method,
        "variant": "",
        "knob": knob,
        "settings": {},
        "split": split,
        "error": error,
        "violation": violation,
        "seconds": 2.0,
        "spent": {"epsilon": epsilon},
        "share_of_ones": 0.25,
        **others,
    }


def curve(*points, method="ours", margin=0.0):
    made = [summary.Point(k, {}, e, v, margin, 0.0, 10, 1.0) for k, (v, e) in enumerate(points)]
    return summary.Curve("adult", 1.0, method, "", tuple(made), 1.0)


def test_means_and_intervals_over_splits():
    lines = [line("ours", e, 0.1, split=i) for i, e in enumerate([0.1, 0.2, 0.3])]
    (found,) = summary.curves([*lines, {**lines[0], "failed": "gave up"}])
    (point,) = found.points
    assert point.error == pytest.approx(0.2)
    assert point.error_margin == pytest.approx(4.302653 * 0.1 / np.sqrt(3), rel=1e-5)  # t with 2 degrees
    assert point.violation_margin == pytest.approx(0.0, abs=1e-12)
    assert point.splits == 3


def test_a_front_has_no_beaten_point():
    points = [(0.10, 0.20), (0.05, 0.30), (0.20, 0.25), (0.30, 0.10), (0.05, 0.35)]
    assert summary.front(points).tolist() == [[0.05, 0.30], [0.10, 0.20], [0.30, 0.10]]


def test_area_of_straight_lines():
    found = np.array([[0.1, 0.2]])
    # from (0, 0.4) down to (0.1, 0.2), then level: mean over [0, 0.2] is (0.3 + 0.2) / 2
    assert summary.area(found, 0.0, 0.2, 0.4, grid=4001) == pytest.approx(0.25, abs=1e-4)


def duelled(peer, own=((0.0, 0.3), (0.1, 0.2)), luck=0.05, splits=10):
    """Return the duel of one point of a peer, given by its error and violation on each split, with ours.

    Each split has luck that is the same for both sides.
    """
    chance = np.random.default_rng(1).normal(scale=luck, size=splits)
    lines = [
        line("ours", error + chance[i], violation, knob=knob, split=i)
        for i in range(splits)
        for knob, (violation, error) in enumerate(own)
    ]
    lines += [line("fermi", peer(i)[0] + chance[i], peer(i)[1], split=i) for i in range(splits)]
    (found,) = duels.duels(config.experiment("parity"), lines, ROW)
    return found


def test_a_duel_compares_errors_at_the_same_violation():
    won, lost = duelled(lambda _: (0.24, 0.05)), duelled(lambda _: (0.27, 0.05))
    assert won.lead == pytest.approx(-0.01)
    assert lost.lead == pytest.approx(0.02)
    assert won.reached
    assert (won.verdict, lost.verdict) == ("peer, beyond chance", "ours, beyond chance")


def test_luck_with_a_split_that_both_have_is_no_doubt():
    """The errors of both spread over splits by fifty times what they differ by, split by split."""
    found = duelled(lambda _: (0.249, 0.05))
    assert found.verdict == "peer, beyond chance"
    assert found.low == pytest.approx(found.high, abs=1e-9)


def test_luck_of_one_side_is_doubt():
    noisy = duelled(lambda i: (0.249 + 0.03 * (-1) ** i, 0.05))
    assert noisy.verdict == "peer, within chance"
    assert noisy.low < 0 < noisy.high
    unsure = duelled(
        lambda i: (0.245, 0.05 + 0.04 * (-1) ** i)
    )  # its violation may be one where we are better
    assert unsure.verdict == "peer, within chance"


def test_a_violation_that_we_never_reach_is_said():
    found = duelled(lambda _: (0.3, 0.01), own=((0.05, 0.25), (0.1, 0.2)))
    assert not found.reached


def test_few_splits_are_not_compared():
    with pytest.raises(ValueError, match="not enough values"):
        duelled(lambda _: (0.2, 0.05), splits=4)


def test_the_constant_classifier_that_violates_nothing():
    lines = [line("ours", 0.1, 0.1)]
    assert summary.trivial_error(lines, "adult", "demographic_parity") == 0.25
    assert summary.trivial_error(lines, "adult", "false_negative_rate") == 0.75


def test_every_method_has_a_look_of_its_own():
    assert set(figures.STYLE) == set(METHODS)
    assert len(set(figures.STYLE.values())) == len(METHODS)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Made-up results of every experiment, in which DP-FERMI wins one point."""
    for module in (store, figures, page):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setenv("RATEWISE_DATA", str(tmp_path))
    (tmp_path / "docs").mkdir()
    for name in config.names():
        found = config.experiment(name)
        kept = store.Store(store.results_path(name, "full"), name)
        for key, job in found.jobs("full").items():
            if job["split"] < 5:
                kept.add({"key": key, **job, **made_up(found, job)})
    return tmp_path


def made_up(found, job):
    if found.constraint == "timing":
        return {"step_seconds": dict.fromkeys(("sgd", "dp_sgd", "sgda", "ours", "fermi"), 1e-4)}
    knob = job["knob"] or 0.0
    best = (job["method"], job["dataset"], job["epsilon"], knob) == ("fermi", "adult", 1.0, 2.0)
    error = 0.05 if best else 0.3 - 0.5 * min(knob, 0.2) + (0.02 if job["method"] != "ours" else 0.0)
    shaken = error + 0.001 * job["split"]
    return {
        "error": shaken,
        "violation": knob,
        "seconds": 1.0,
        "spent": {"epsilon": job["epsilon"]},
        "share_of_ones": 0.4,
    }


def test_all_figures_are_drawn(results):
    drawn = list(figures.draw_all())
    assert {path.stem for path in drawn} == set(config.names())
    assert all(path.stat().st_size > 5_000 for path in drawn)


def test_the_page_says_first_where_a_peer_wins(results):
    text = page.write_page().read_text()
    first = text.index("## Where a peer beats us")
    assert first < text.index("## Area under the front") < text.index("## 1. ")
    said = text[first : text.index("## Area under the front")]
    assert "| parity | Adult | 1 | DP-FERMI, right form, full privacy | 0.0520 / 2.0000 |" in said
    for name in config.names():
        assert f"python -m benchmarks.suite run {name} --full" in text
        assert f"figures/{name}.png" in text
    assert "0.2520 / 0.1000" in text  # ours at 0.1: 0.3 - 0.5 * 0.1, and the mean shake


def test_orphans_are_left_out(results):
    found = config.experiment("clipping")
    before = len(summary.records(found))
    kept = store.Store(store.results_path("clipping", "full"), "clipping")
    kept.add({"key": "of another config", **line("ours", 0.0, 0.0)})
    assert len(summary.records(found)) == before
