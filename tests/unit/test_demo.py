"""The demo: what its table says is what its models do."""

import math

import pytest

from ratewise import demo

N_ROWS = 40_000
# A gap on other people differs from the one on the training rows by chance. Three standard deviations:
RATES_CHANCE = 0.012  # differences of rates near 0.15 in groups of 16,000 and 24,000, twice as many others
ODDS_CHANCE = 0.045  # the rate near 0.6 of 1,850 women of high income, and the noise on their count


@pytest.fixture(scope="module")
def rows():
    return list(demo.compare(N_ROWS))


def named(rows, name):
    return next(row for row in rows if row.name == name)


def test_all_combinations_are_shown(rows):
    shown = [(math.isfinite(row.epsilon), row.rates_asked, row.odds_asked) for row in rows]
    assert shown == [
        (False, None, None),
        (True, None, None),
        (False, demo.MAX_GAP, None),
        (True, demo.MAX_GAP, None),
        (True, None, demo.MAX_GAP),
    ]


def test_limits_hold_on_other_people_and_would_not_without_being_asked(rows):
    for row in rows:
        if row.rates_asked is not None:
            assert row.rates_gap <= row.rates_asked + RATES_CHANCE
        else:
            assert row.rates_gap > 0.1
        if row.odds_asked is not None:
            assert row.odds_gap <= row.odds_asked + ODDS_CHANCE
    assert named(rows, "plain").odds_gap > named(rows, "private, equal odds").odds_gap


def test_limits_and_privacy_cost_little_accuracy(rows):
    plain = named(rows, "plain").accuracy
    assert plain > 0.84
    assert all(row.accuracy > plain - 0.03 for row in rows)


def test_epsilon_is_what_the_ledger_and_the_statement_say(rows):
    for row in rows:
        assert row.epsilon == row.model.ledger_.total(demo.DELTA)
        assert row.epsilon == pytest.approx(row.model.privacy_.epsilon, abs=1e-12)
        assert row.epsilon == math.inf or 0.999 * demo.EPSILON <= row.epsilon <= demo.EPSILON


def test_the_output_fits_the_screen_and_shows_every_row(rows, monkeypatch, capsys):
    monkeypatch.setattr(demo, "compare", lambda: iter(rows))
    demo.main()
    shown = capsys.readouterr().out
    assert all(str(row) in shown for row in rows)
    assert str(rows[-1].model.privacy_) in shown
    assert max(map(len, shown.splitlines())) <= 90


def test_a_row_reads_as_one_line(rows):
    assert str(named(rows, "plain")).endswith("none")
    assert "(of 0.05)" in str(named(rows, "private, equal rates"))
    # rounded upwards: a table never claims more privacy than there is
    assert float(str(named(rows, "private")).split()[-1]) >= named(rows, "private").epsilon
