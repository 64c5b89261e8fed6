"""The scoreboard: results are kept, not run twice, refused when damaged; the page chooses and compares as it says."""

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import page, paper, persons, scoreboard, speed
from benchmarks.__main__ import NAMES, main
from benchmarks.peers import METHODS, external


def result(split=0, error=0.15, verdict="held", system="ours", setting="", gap=0.04, epsilon=1.0):
    return scoreboard.Result(
        "adult",
        system,
        epsilon,
        "demographic_parity=0.05",
        setting,
        split,
        error,
        0.9,
        gap,
        verdict,
        0.9996,
        2.0,
        "abc",
    )


def test_results_come_back_as_written(tmp_path):
    path = tmp_path / "folder" / "scoreboard.csv"
    written = [result(split) for split in range(3)] + [result(system="xgboost", epsilon=math.inf)]
    for each in written:
        scoreboard.append(each, path)
    assert scoreboard.read(path) == written
    assert path.read_text().count("table,system") == 1


def test_what_is_there_is_not_run_again(tmp_path, monkeypatch, capsys):
    path, ran = tmp_path / "scoreboard.csv", []

    def fit(cell):
        ran.append(cell)
        return scoreboard.Result(*cell, 0.2, 0.9, 0.1, "", 1.0, 0.5, "abc")

    monkeypatch.setattr(scoreboard, "fit", fit)
    command = ["--tables", "adult", "--systems", "ours", "--epsilons", "1,3", "--constraints", "none"]
    scoreboard.main([*command, "--splits", "1", "--results", str(path)])
    assert len(ran) == 2
    scoreboard.main([*command, "--splits", "2", "--results", str(path)])
    assert [cell.split for cell in ran] == [0, 0, 1, 1]
    assert "2 fits to run" in capsys.readouterr().err


def test_a_system_that_is_missing_or_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    def fit(cell):
        if cell.system == "dp_ebm":
            raise external.Missing("ebm cannot be installed")
        if cell.system == "logistic":
            raise ValueError("singular")
        return scoreboard.Result(*cell, 0.2, 0.9, 0.1, "", 1.0, 0.5, "abc")

    monkeypatch.setattr(scoreboard, "fit", fit)
    cells = [scoreboard.Cell("adult", name, 1.0, "none", "", 0) for name in ("dp_ebm", "logistic", "ours")]
    (only,) = scoreboard.run(cells, tmp_path / "scoreboard.csv")
    assert only.system == "ours"
    said = capsys.readouterr().err
    assert "ebm cannot be installed" in said
    assert "failed: ValueError: singular" in said


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda text: text[:-20], "damaged in line 3"),
        (lambda text: text.replace("verdict", "judgement"), "other columns"),
        (lambda text: text.replace("0.15", "x"), "damaged in line 2"),
    ],
)
def test_damaged_results_are_refused(tmp_path, damage, problem):
    path = tmp_path / "scoreboard.csv"
    scoreboard.append(result(), path)
    scoreboard.append(result(1), path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(SystemExit, match=problem):
        scoreboard.read(path)


def test_settings_are_read_back_as_arguments():
    for system in METHODS.values():
        for setting in system.settings:
            assert scoreboard.parsed_setting(scoreboard.shown(setting)) == dict(setting)


def test_cells_leave_out_what_a_system_cannot_do():
    asked = argparse.Namespace(systems="", tables=",".join(scoreboard.TABLES), constraints="", epsilons="", splits=1)
    found = list(scoreboard.cells(asked, 0))
    for cell in found:
        system = METHODS[cell.system]
        family = cell.constraint.partition("=")[0]
        assert family in system.constraints
        assert cell.table != "nursery" or system.several_classes
        assert math.isinf(cell.epsilon) != system.private
    assert {cell.system for cell in found} == set(METHODS)


def test_means_and_paired_differences_are_over_common_splits():
    runs = [result(s, error) for s, error in enumerate((0.1, 0.2, 0.3))]
    runs += [result(s, error, "", "fairlearn", epsilon=math.inf) for s, error in enumerate((0.11, 0.23))]
    found = page.summaries(runs)
    mine = found["adult", "medium parity", 1.0, "ours"]
    assert (mine.splits, mine.held, mine.error) == (3, "3/3", pytest.approx(0.2))
    peer = found["adult", "medium parity", 1.0, "fairlearn"]
    assert peer.difference == pytest.approx(0.02)
    spread = 0.02 / math.sqrt(2)  # of .01 and .03
    assert peer.margin == pytest.approx(12.706 * spread * math.sqrt(1 / 2 + 1 / 3), rel=1e-3)


def test_a_system_that_is_stopped_is_shown_as_such():
    stopped = result(0, math.nan, "did not finish in 20 minutes", "aim", page.shown(METHODS["aim"].settings[0]))
    summary = page.summaries([result(), stopped])["adult", "medium parity", 1.0, "aim"]
    assert (
        page._cell(summary, METHODS["aim"], "medium parity", "adult", "aim") == "did not finish in 20 minutes (1 of 1)"
    )
    assert page._details(summary) == ""


def test_later_splits_run_the_setting_that_the_first_one_chose():
    asked = argparse.Namespace(
        systems="dp_ebm_rule", tables="adult", constraints="demographic_parity=0.05", epsilons="", splits=2
    )
    first = [cell.setting for cell in scoreboard.cells(asked, 0)]
    assert first == ["group_aware=True", "group_aware=False"]
    assert list(scoreboard.cells(asked, 1)) == []  # nothing is chosen yet
    runs = [result(0, error, "", "dp_ebm_rule", s) for s, error in zip(first, (0.16, 0.15), strict=True)]
    assert [cell.setting for cell in scoreboard.cells(asked, 1, runs)] == ["group_aware=False"]


def test_tuning_takes_the_least_error_that_reaches_the_bound():
    runs = [
        result(0, 0.14, "", "dp_ebm_rule", "group_aware=True", gap=0.09),
        result(0, 0.16, "", "dp_ebm_rule", "group_aware=False", gap=0.05),
    ]
    key = ("adult", "medium parity", 1.0, "dp_ebm_rule")
    assert page.summaries(runs)[key].setting == "group_aware=False"
    assert page.summaries(runs[:1])[key].setting == "group_aware=True"
    assert not page.summaries(runs[:1])[key].reaches


def test_a_system_without_results_is_named_as_missing():
    found = {key: cell for key, cell in page.summaries(scoreboard.read()).items() if key[3] != "dp_ebm"}
    assert "DP-EBM, default (Adult, Credit-Card, ACSEmployment, Heart, Parkinsons)" in page._missing(found)
    assert "DP-EBM, default" not in page._block(found, "none", 1.0)


def test_the_page_says_first_where_ours_loses():
    runs = [result(s) for s in range(3)]
    runs += [result(s, 0.15 - 0.01 - 0.0001 * s, "", "fairlearn", epsilon=math.inf) for s in range(3)]
    runs += [result(s, 0.14, "", "dp_ebm_rule", "group_aware=True", gap=0.09) for s in range(3)]  # over the bound
    said = page._losses(page.summaries(runs))
    assert "|Medium parity: Fairlearn, logistic regression|**.0101**|" in said
    assert "DP-EBM" not in said


def test_page_states_the_commits_of_each_group_of_systems():
    runs = [result(0), result(1)._replace(commit="bbb"), result(0, system="ours_network")._replace(commit="ccc")]
    runs += [result(0, 0.1, "", "fairlearn", epsilon=math.inf)._replace(commit="ddd")]
    own = runs[0].commit
    said = page._commits(runs)
    first, second = sorted((own, "bbb"))
    assert said == (
        f"ratewise, tables: `{first}`, `{second}`; ratewise, network: `ccc`; systems without privacy: `ddd`"
    )
    assert page._commits(scoreboard.read()) in page.scoreboard_page()


def test_runner_records_the_commit_of_the_sources(monkeypatch):
    answers = iter(["abc1234\n", " M src/ratewise/demo.py\n"])
    monkeypatch.setattr(scoreboard.subprocess, "run", lambda *_, **__: argparse.Namespace(stdout=next(answers)))
    scoreboard.commit.cache_clear()
    try:
        assert scoreboard.commit() == "abc1234+"  # the sources have changed since
    finally:
        scoreboard.commit.cache_clear()


def test_every_cell_of_the_page_is_in_the_file():
    results = scoreboard.read()
    found = page.summaries(results)
    text = page.scoreboard_page()
    assert found
    for (table, block, epsilon, system), summary in found.items():
        shown = epsilon == 1.0 or (block == "none" and METHODS[system].private)
        if shown and not math.isnan(summary.error):
            assert page._cell(summary, METHODS[system], block, table, system) in text


def test_measured_parts_replace_their_lines_only(tmp_path):
    path = tmp_path / "speed.csv"

    def line(part, seconds):
        return speed.Time(part, "ours", seconds, 1.0, "ours", "", "abc")

    speed.write([line("fit", 1.0), line("step", 2.0)], path)
    speed.write([line("fit", 3.0)], path)
    assert speed.read(path) == [line("step", 2.0), line("fit", 3.0)]


def test_ratios_of_times_are_taken_within_rounds():
    slow = iter([1.0, 10.0, 2.0])  # the second round is disturbed
    fast = iter([0.5, 5.0, 1.0])
    found = speed.rounds("fit", {"a": lambda: next(slow), "b": lambda: next(fast)}, "a", 3)
    assert [(time.variant, time.ratio) for time in found] == [("a", 1.0), ("b", 0.5)]
    assert found[0].seconds == 2.0


def test_every_experiment_names_known_systems_and_tables():
    for experiment in paper.EXPERIMENTS.values():
        for cell in experiment.cells():
            assert cell.table in scoreboard.TABLES
            assert cell.system in METHODS


def test_ids_of_the_comparison_of_persons():
    sizes = np.bincount(persons.artificial_ids(450))
    assert sizes.tolist() == [*range(1, 21), *range(1, 21), *range(1, 8), 2]
    relation = np.array([0, 1, 2, 0, 16, 17, 0, 13])  # reference persons and group quarters begin a household
    assert persons.households(relation).tolist() == [0, 0, 0, 1, 2, 3, 4, 4]


def test_every_benchmark_has_a_module_and_is_listed(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    for name in NAMES:
        assert name in listed
        assert name == "environments" or (Path(scoreboard.__file__).parent / f"{name}.py").exists()
    assert main(["nothing"]) == 2
