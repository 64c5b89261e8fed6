"""The demo: what its table says is what its models do."""

import math
import subprocess
import sys

import pytest

from ratewise.cli import demo

pytestmark = pytest.mark.slow

N_ROWS = 30_000
# A gap on other people differs from the one on the training rows by chance. Three standard deviations:
RATES_CHANCE = 0.016  # differences of rates near 0.15 in groups of 12,000 and 18,000, and the noise of training
ODDS_CHANCE = 0.045  # the rate near 0.6 of 1,850 women of high income, and the noise on their count


@pytest.fixture(scope="module")
def rows():
    return list(demo.compare(N_ROWS))


def named(rows, name):
    return next(row for row in rows if row.name == name)


def test_all_combinations_are_shown(rows):
    rates, odds = demo._RATES, demo._ODDS
    shown = [(math.isfinite(row.epsilon), row.model.constraints) for row in rows]
    assert shown == [(False, None), (True, None), (False, rates), (True, odds), (True, rates)]


def test_constraints_hold_on_other_people_and_would_not_without_being_requested(rows):
    for row in rows:
        if row.model.constraints is demo._RATES:
            assert row.rates_gap <= demo.MAX_GAP + RATES_CHANCE
        else:
            assert row.rates_gap > 0.1
        if row.model.constraints is demo._ODDS:
            assert row.odds_gap <= demo.MAX_GAP + ODDS_CHANCE
    assert named(rows, "plain").odds_gap > named(rows, "private, equal odds").odds_gap


def test_constraints_and_privacy_cost_little_accuracy(rows):
    plain = named(rows, "plain").accuracy
    assert plain > 0.84
    assert all(row.accuracy > plain - 0.03 for row in rows)


def test_epsilon_is_what_the_ledger_and_the_statement_say(rows):
    for row in rows:
        assert row.epsilon == pytest.approx(row.model.ledger_.total(demo.DELTA), abs=1e-12)
        assert row.epsilon == math.inf or 0.999 * demo.EPSILON <= row.epsilon <= demo.EPSILON


def test_the_output_fits_the_screen_and_shows_every_row(rows, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "compare", lambda: iter(rows))
    demo.main()
    shown = capsys.readouterr().out
    assert all(str(row) in shown for row in rows)
    assert str(rows[-1].model.privacy_) in shown
    assert rows[-1].model.certificate_.summary in shown
    path = str(tmp_path / demo.PAGE)
    assert max(len(line) for line in shown.splitlines() if line != path) <= 90
    assert f"\n{path}\n" in shown
    assert [path.name for path in tmp_path.iterdir()] == [demo.PAGE]


def test_the_page_is_about_the_last_model_beside_the_others(rows):
    content = demo.report_of(rows, 2 * N_ROWS).content
    assert {model.name for model in content.models} == {row.name for row in rows}
    assert content.models[0].name == "private, equal rates"
    for model in content.models:
        row = named(rows, model.name)
        assert model.accuracy.value == pytest.approx(row.accuracy)
        assert model.reached == pytest.approx((row.rates_gap,))
    assert [grouping.by for grouping in content.groupings] == [("sex",), ("region",)]
    assert {shape.feature for shape in content.shapes} <= set(demo.raw_columns(demo.census_like(10)))
    assert {shape.feature for shape in content.shapes} >= {"education_years", "occupation", "age"}


def test_nothing_is_declared_and_no_frame_library_is_needed(tmp_path):
    """The base install has neither pandas nor matplotlib."""
    code = """
import sys
for name in ("pandas", "matplotlib", "polars", "pyarrow", "click"):
    sys.modules[name] = None
from ratewise.cli import demo
rows = [row for row, _ in zip(demo.compare(3000), range(5))]
assert all(row.model.classes is None and row.model.feature_bounds is None for row in rows)
demo.report_of(rows[-1:], 2000).to_html("page.html")
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=240)
    assert "shape" in (tmp_path / "page.html").read_text()


def test_a_row_reads_as_one_line(rows):
    assert str(named(rows, "plain")).endswith("none")
    assert "(of 0.05)" in str(named(rows, "private, equal rates"))
    # rounded upwards: a table never claims more privacy than there is
    assert float(str(named(rows, "private")).split()[-1]) >= named(rows, "private").epsilon
