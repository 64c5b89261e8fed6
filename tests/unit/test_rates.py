import pickle

import numpy as np
import pytest

from ratewise.constraints.rates import Constraints, everyone, group, label, rate, rows
from ratewise.exceptions import InvalidInput, InvalidType

women, men = group(sex="Female"), ~group(sex="Female")
gap = rate(1, where=women) - rate(1, where=men)


def test_arithmetic_is_linear():
    assert rate(1) + rate(1) == 2 * rate(1) == rate(1) * 2
    assert rate(1) - rate(1) + rate(0) == rate(0)
    assert rate(1) / 4 == 0.25 * rate(1)
    assert -(rate(1) - 0.5) == 0.5 - rate(1)
    assert sum([rate(0), rate(1)]) == rate(1) + rate(0)
    assert +gap == gap
    assert hash(rate(1) + rate(0)) == hash(rate(0) + rate(1))
    assert rate(1) != rate(1) + 0.5
    assert np.float64(2) * rate(1) == 2 * rate(1)


def test_rows_outside_the_denominator_never_count():
    assert rate(1, where=label(1), out_of=women) == rate(1, where=label(1) & women, out_of=women)
    assert rate(1, where=label(1), out_of=rows(women)) == rate(1, where=label(1) & women, out_of=rows(women))


def test_all_rows_of_the_subset_itself_is_the_plain_share():
    assert rate(1, where=women, out_of=rows(women)) == rate(1, where=women)
    assert rate(1, where=everyone, out_of=rows(women)) == rate(1, where=women)
    assert rate(1, where=women, out_of=women) != rate(1, where=women)


def test_comparisons():
    upper = gap <= 0.05
    assert (upper.sense, upper.bound, upper.expression) == ("<=", 0.05, gap)
    assert (rate(1) >= 0.2) == (rate(1) >= 0.2) == (-rate(1) <= -0.2)
    assert (np.float64(0.2) <= rate(1)) == (rate(1) >= 0.2)
    assert (np.float32(0.25) >= rate(1)) == (rate(1) <= 0.25)
    assert (rate(1, where=women) <= rate(1, where=men) + 0.05) == upper
    assert (rate(1) + 0.5 <= 0.75) == (rate(1) <= 0.25)
    assert (rate(1) <= 0.2) != (rate(1) <= 0.3)
    assert len({rate(1) >= 0.2, -rate(1) <= -0.2}) == 1


def test_two_sided():
    assert rate(1).between(0.1, 0.2) == Constraints((rate(1) >= 0.1, rate(1) <= 0.2))
    assert (abs(gap) <= 0.05) == Constraints((gap <= 0.05, gap >= -0.05))
    assert (abs(gap) <= 0.05)[:1] == Constraints((gap <= 0.05,))
    assert eval(repr(abs(gap) <= 0.05)) == (abs(gap) <= 0.05)


def test_the_chained_form_is_refused_with_the_way_out():
    with pytest.raises(InvalidType, match=r"between\(a, b\)"):
        0.1 <= rate(1) <= 0.2  # noqa: B015
    with pytest.raises(InvalidType, match="list"):
        (rate(1) <= 0.2) and (rate(0) <= 0.2)


@pytest.mark.parametrize(
    ("constraint", "code", "name"),
    [
        (
            gap <= 0.05,
            "rate(1, where=group(sex='Female')) - rate(1, where=~group(sex='Female')) <= 0.05",
            "P(1 | sex=Female) - P(1 | sex!=Female) <= 0.05",
        ),
        (rate(1) >= 0.2, "rate(1) >= 0.2", "P(1) >= 0.2"),
        (1 - rate("yes", where=label("yes")) <= 0.2, None, "1 - P(yes | label=yes) <= 0.2"),
        (-rate(1) - 0.5 <= 0, "-rate(1) - 0.5 <= 0", "-P(1) - 0.5 <= 0"),
        (0.5 * rate(1) - 0.25 * rate(0) + 1 >= 0, None, "0.5 * P(1) - 0.25 * P(0) + 1 >= 0"),
        (
            rate(1, where=label(1), out_of=everyone) >= 0.8,
            "rate(1, where=label(1), out_of=everyone) >= 0.8",
            "P(label=1 | predicted 1) >= 0.8",
        ),
        (
            rate(1, where=label(1), out_of=women) >= 0.8,
            "rate(1, where=label(1), out_of=group(sex='Female')) >= 0.8",
            "P(label=1 | predicted 1, sex=Female) >= 0.8",
        ),
        (
            rate(0, where=label(1), out_of=rows(women)) <= 0.1,
            "rate(0, where=label(1), out_of=rows(group(sex='Female'))) <= 0.1",
            "P(0, label=1 | sex=Female) <= 0.1",
        ),
        (
            rate(0, where=label(1), out_of=rows(everyone)) <= 0.1,
            "rate(0, where=label(1), out_of=rows(everyone)) <= 0.1",
            "P(0, label=1) <= 0.1",
        ),
        ((rate(1) <= 0.2).named("few"), "(rate(1) <= 0.2).named('few')", "few"),
    ],
)
def test_text(constraint, code, name):
    assert code is None or repr(constraint) == code
    assert constraint.name == str(constraint) == name
    again = eval(repr(constraint))
    assert again == constraint
    assert again.name == name


def test_names():
    assert (rate(1) <= 0.2).named("few") == (rate(1) <= 0.2)
    assert [c.name for c in rate(1).between(0.1, 0.2).named("share")] == ["share (at least)", "share (at most)"]
    with pytest.raises(InvalidType):
        (rate(1) <= 0.2).named("")


@pytest.mark.parametrize(
    ("misuse", "kind"),
    [
        (lambda: rate(1) <= float("nan") * 1, InvalidInput),
        (lambda: rate(1) <= float("inf"), InvalidInput),
        (lambda: rate(1) <= "0.2", InvalidType),
        (lambda: rate(1) <= True, InvalidType),
        (lambda: rate(1) < 0.2, InvalidType),
        (lambda: rate(1) > 0.2, InvalidType),
        (lambda: rate(1) - rate(1) <= 0.2, InvalidInput),
        (lambda: rate(1) * rate(0), InvalidType),
        (lambda: rate(1) / rate(0), InvalidType),
        (lambda: rate(1) / 0, InvalidInput),
        (lambda: rate(1) * float("nan"), InvalidInput),
        (lambda: (rate(1) * 1e308) * 10, InvalidInput),
        (lambda: rate(1) + "a", TypeError),
        (lambda: rate(1).between(0.3, 0.2), InvalidInput),
        (lambda: abs(gap) <= -0.1, InvalidInput),
        (lambda: abs(gap) >= 0.1, InvalidType),
        (lambda: rate(1, where="Female"), InvalidType),
        (lambda: rate(1, where=women, out_of="x"), InvalidType),
        (lambda: rate(label(1)), InvalidType),
        (lambda: rate(None), InvalidInput),
        (lambda: rows("x"), InvalidType),
        (lambda: bool(rate(1)), InvalidType),
    ],
)
def test_bad_input(misuse, kind):
    with pytest.raises(kind):
        misuse()


def test_immutable():
    for thing in (rate(1), rate(1) <= 0.2, rows(women), rate(1).terms[0][0]):
        with pytest.raises(AttributeError):
            thing.bound = 3


def test_pickles_are_equal():
    for thing in (gap, (gap <= 0.05).named("x"), abs(gap) <= 0.1, rows(women)):
        again = pickle.loads(pickle.dumps(thing))
        assert again == thing
        assert repr(again) == repr(thing)
