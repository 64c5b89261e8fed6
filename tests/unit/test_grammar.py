import pickle

import pytest

from ratewise import (
    Domain,
    Numeric,
    at_least,
    below,
    between,
    demographic_parity,
    equal_opportunity,
    everyone,
    false_negative_rate,
    false_positive_rate,
    group,
    label,
    nobody,
    paper_false_negative_rate,
    positive_rate,
    precision,
    predictive_equality,
    rate,
    rows,
    true_positive_rate,
)
from ratewise.constraints.text import MAX_NESTING, MAX_TEXT, GrammarError, format_constraint, parse_constraint
from ratewise.exceptions import InvalidInput, InvalidType

F, M = group(sex="Female"), group(sex="Male")
YOUNG = group(age=below(3))
ODD = ~(group(a=1) & group(b=2)) & ~group(**{"hours per week": True})

SAID = [
    ("demographic_parity(sex) <= 0.05", demographic_parity("sex", max_gap=0.05)),
    ("demographic_parity('sex', max_gap=0.05)", demographic_parity("sex", max_gap=0.05)),
    ("0.05 >= demographic_parity(sex, race)", demographic_parity("sex", "race", max_gap=0.05)),
    ("demographic_parity() <= 1e-2", demographic_parity(max_gap=0.01)),
    ("demographic_parity(sex=*, race=*) <= .5", demographic_parity("sex", "race", max_gap=0.5)),
    (
        "predictive_equality('hours-per-week', positive='yes', versus=pairwise) <= 0.1",
        predictive_equality("hours-per-week", max_gap=0.1, positive="yes", versus="pairwise"),
    ),
    ("equal_opportunity(sex, label=2) <= 0.1", equal_opportunity("sex", max_gap=0.1, positive=2)),
    ("fnr(label=1, race=*) <= 0.2", false_negative_rate(0.2, by="race")),
    ("fnr(label=yes, race=*, sex=*) <= 0.2", false_negative_rate(0.2, "yes", by=("race", "sex"))),
    ("false_negative_rate(0.2, by='race')", false_negative_rate(0.2, by="race")),
    ("false_positive_rate(0.2, 'yes', ('sex', 'race'))", false_positive_rate(0.2, "yes", ("sex", "race"))),
    ("fpr() <= 1/5", false_positive_rate(0.2)),
    ("demographic_parity('_', 'class', 'ﬁ') <= 0.1", demographic_parity("_", "class", "ﬁ", max_gap=0.1)),
    ("tpr(by=['_', 'ﬁ']) >= 0.1", true_positive_rate(0.1, by=("_", "ﬁ"))),
    ("tpr(by=['hours per week']) >= 0.7", true_positive_rate(0.7, by="hours per week")),
    ("precision(positive=3) >= 0.7", precision(0.7, 3)),
    ("paper_false_negative_rate(sex=*) <= 0.1", paper_false_negative_rate(0.1, by="sex")),
    ("positive_rate(min_rate=0.1, max_rate=0.2)", positive_rate(0.1, 0.2)),
    ("0.1 <= positive_rate(by=sex) <= 0.2", positive_rate(0.1, 0.2, by="sex")),
    ("0.2 >= positive_rate(by=sex) >= 0.1", positive_rate(0.1, 0.2, by="sex")),
    ("positive_rate(sex=*).between(0.1, 0.2)", positive_rate(0.1, 0.2, by="sex")),
    ("positive_rate() >= 0.1", positive_rate(0.1)),
    ("fnr(sex=Female) <= 0.2", 1 - rate(1, where=label(1) & F) <= 0.2),
    ("tpr(sex=Female) >= 0.8 * tpr(sex=Male)", rate(1, where=label(1) & F) >= 0.8 * rate(1, where=label(1) & M)),
    (
        'rate(1, where=group(sex="Female")) >= 0.8 * rate(1, where=group(sex="Male"))',
        rate(1, where=F) >= 0.8 * rate(1, where=M),
    ),
    ("0.2 <= rate(1)", rate(1) >= 0.2),
    ("-rate(1) / 2 - +rate(0) + 1 <= 0.2 - 0.1", -rate(1) / 2 - rate(0) + 1 <= 0.2 - 0.1),
    ("abs(rate(1, group(sex=Female)) - rate(1)) <= 0.1", abs(rate(1, F) - rate(1)) <= 0.1),
    ("0.1 >= abs(rate(1) - rate(0))", abs(rate(1) - rate(0)) <= 0.1),
    ("rate(1).between(0.1, 0.2)", rate(1).between(0.1, 0.2)),
    ("(rate(1) - rate(0)).between(-0.1, 0.2)", (rate(1) - rate(0)).between(-0.1, 0.2)),
    (
        "rate(1, where=label(1) & group(age=below(25)) | ~group(race={'A', 'B'})) <= 0.3",
        rate(1, where=label(1) & group(age=below(25)) | ~group(race={"A", "B"})) <= 0.3,
    ),
    (
        "rate(1, where=group(age=[between(1, 2), at_least(5)], sex=Female), out_of=rows(everyone)) <= 0.3",
        rate(1, where=group(age=[between(1, 2), at_least(5)], sex="Female"), out_of=rows(everyone)) <= 0.3,
    ),
    ("rate(k=1, out_of=label(0, 1), where=label(1)) >= 0.3", rate(1, label(1), label(0, 1)) >= 0.3),
    ("rate(1, where=group(**{'hours-per-week': 40})) <= 1", rate(1, group(**{"hours-per-week": 40})) <= 1),
    ("rate(1, where=~~~nobody) <= 1", rate(1, where=~nobody) <= 1),
    ("rate(True) <= 1", rate(True) <= 1),
    (r"rate('it\'s\n\x41\u00e9\U0001F600') <= 1", rate("it's\nAé😀") <= 1),
]


@pytest.mark.parametrize(("text", "meant"), SAID, ids=[text for text, _ in SAID])
def test_text_means_what_python_means(text, meant):
    assert parse_constraint(text) == meant
    written = format_constraint(meant)
    assert parse_constraint(written) == meant
    assert format_constraint(parse_constraint(written)) == written


def test_names_of_families_are_texts_that_read_back():
    for family in (demographic_parity("sex", "race", max_gap=0.1, versus="everyone"), positive_rate(0.1, 0.3)):
        assert parse_constraint(family.name) == family


def test_equal_values_of_two_types_have_one_name():
    """Python holds False and 0 equal, so a rate may be given one of them twice, in two ways."""
    one = rate(1, where=label(False) | F, out_of=rows(label(0) | F)) <= 0.5
    again = parse_constraint(format_constraint(one))
    assert again == one
    assert again.name == one.name


def test_names_given_to_constraints_survive():
    one = (rate(1) <= 0.2).named("few")
    several = (abs(rate(1) - rate(0)) <= 0.1).named("close")
    assert parse_constraint(format_constraint(one)).name == "few"
    again = parse_constraint(format_constraint(several))
    assert [c.name for c in again] == ["close (at most)", "close (at least)"]
    assert again == several
    assert parse_constraint("[rate(1) <= 0.5, abs(rate(0)) <= 0.1]") == (
        rate(1) <= 0.5,
        rate(0) <= 0.1,
        rate(0) >= -0.1,
    )


# text, the character that the caret stands under, words of the message
WRONG = [
    ("", 0, "expected a constraint"),
    ("rate(1)", 7, "expected <= or >= and a bound"),
    ("fnr(race=*)", 11, "expected <= or >= and a bound"),
    ("group(sex=Female)", 0, "expected a constraint, this is a set of rows"),
    ("rate(1) <=", 10, "invalid syntax"),
    ("rate(1) <= 0.2 0.3", 15, "invalid syntax"),
    ("rate(1) < 0.2", 10, "rates are bounded with <= or >="),
    ("rate(1) == 0.2", 11, "rates are bounded with <= or >="),
    ("rate(1) = 0.2", 8, "expected <= or >="),
    ("0.1 <= rate(1) <= 0.2", 18, "Python keeps only one half of a chained comparison: write ra"),
    ("0.1 <= 0.2", 7, "a constraint compares a rate with a number"),
    ("rate(1 <= 0.2", 4, "'(' was never closed"),
    ("rate(1, <= 0.2", 8, "invalid syntax"),
    ("rate(1 0) <= 0.2", 5, "invalid syntax. Perhaps you forgot a comma?"),
    ("rate(1, sex=2) <= 0.2", 0, "rate() got an unexpected keyword argument 'sex'"),
    ("rate(1, 2, 3, 4) <= 0.2", 0, "rate() takes from 1 to 3 positional arguments but 4 were giv"),
    ("rate(1, k=2) <= 0.2", 0, "rate() got multiple values for argument 'k'"),
    ("rate() <= 0.2", 0, "rate() missing 1 required positional argument: 'k'"),
    ("rte(1) <= 0.2", 0, "did you mean rate"),
    ("__import__('os') <= 0.2", 0, "no function"),
    ("rate(1).__class__ <= 1", 0, "expected a rate, a number or a name"),
    ("rate(1) and rate(2) <= 1", 0, "write & for and"),
    ("rate(1, where=not everyone) <= 1", 14, "write ~ for not"),
    ("rate(1, where=None) <= 1", 14, "missing value"),
    ("rate(1) * rate(2) <= 1", 10, "a product of two rates is not linear"),
    ("1 / rate(2) <= 1", 4, "are for rates and numbers, not for a number and a rate"),
    ("rate(2) / 0 <= 1", 10, "divisor must not be 0, got 0"),
    ("rate(1) + everyone <= 1", 10, "a set of rows"),
    ("rate(1) + sex <= 1", 10, "the name 'sex'"),
    ("rate(1, where=everyone & 1) <= 1", 25, "a number"),
    ("rate(1, where=~1) <= 1", 14, "where must be a predicate such as group(sex='Female') or lab"),
    ("rate(1) - rate(1) <= 1", 21, "a constraint must read at least one rate"),
    ("rate(1, where=sex) <= 1", 14, "where must be a predicate"),
    ("rate(1, where=group()) <= 1", 14, "at least one column"),
    ("rate(1, where=group(1)) <= 1", 14, "group() takes 0 positional arguments but 1 was given"),
    ("rate(1, where=group(sex=*)) <= 1", 24, "of a family"),
    ("rate(1, where=group(sex=1, sex=2)) <= 1", 31, "'sex' is given twice"),
    ("rate(1, where=group(sex=1, 2)) <= 1", 28, "positional argument follows keyword argument"),
    ("rate(1, where=group(**{sex: 2})) <= 1", 22, 'expected columns in quotes with values: **{"a name": value}'),
    ("rate(1, where=group(sex={})) <= 1", 24, "expected a rate, a number or a name"),
    ("rate(1, where=group(sex={1, below(2)})) <= 1", 24, "mixes intervals"),
    ("rate(1, where=group(age=between(2, 1))) <= 1", 24, "low < high"),
    ("fnr(label=1, race=*) >= 0.2", 24, "false_negative_rate is bounded from above only: write <="),
    ("tpr(race=*) <= 0.2", 15, "true_positive_rate is bounded from below only: write >="),
    ("demographic_parity(sex) >= 0.2", 27, "demographic_parity is bounded from above only: write <="),
    ("demographic_parity(sex) <= -1", 27, "max_gap must be between 0 and 1, got -1"),
    ("demographic_parity(sex, sex) <= 1", 24, "each column once"),
    ("demographic_parity(0.1) <= 1", 19, "name of a column"),
    ("demographic_parity(sex=Female) <= 1", 23, "compares groups"),
    ("fnr(race=*, sex=Female) <= 1", 16, "every column"),
    ("fnr(race=*) + fnr(sex=*) <= 1", 0, "several rates"),
    ("fnr(label=1, positive=1) <= 0.2", 22, "two words for one thing"),
    ("fnr(race=*) <= 1.5", 15, "max_rate must be between 0 and 1, got 1.5"),
    ("rate('a) <= 1", 5, "no closing '"),
    ("rate('a\nb') <= 1", 5, "no closing"),
    (r"rate('\q') <= 1", 6, "unknown escape"),
    (r"rate('\Uffffffff') <= 1", 17, "(unicode error) 'unicodeescape' codec can't decode bytes in "),
    ("rate(1) <= 0.2%", 15, "invalid syntax"),
    ("rate(1) <= 1e999", 11, "too large"),
    ("rate(1) <= 0.8rate(2)", 13, "invalid decimal literal"),
    ("rate(1) <= 1__0", 12, "invalid decimal literal"),
    ("rate(1) <= 012", 11, "leading zeros in decimal integer literals are not permitted"),
    (f"rate(1) <= {'9' * 401}", 11, "the number is too large"),
    (f"rate(1) <= {'9' * 350}", 11, "too large"),
    (f"rate(1) * {'9' * 350} <= 1", 10, "too large"),
    ("rate(1) * 1e200 * 1e200 <= 1", 18, "a coefficient of the expression overflows: inf"),
    ("rate(1).named('x') <= 1", 0, "expected .between(low, high) behind a rate, or .named(text) "),
    ("(rate(1) <= 1).named('')", 21, "not empty"),
    ("everyone.between(1, 2)", 0, "expected .between(low, high) behind a rate, or .named(text) "),
    ("rate(1).between(a, 2)", 16, "must be a number"),
    ("abs(1) <= 2", 10, "a constraint compares a rate with a number"),
    ("abs(rate(1)) >= 2", 16, "abs(expression) can only be bounded from above: a gap that m"),
    ("error(sex=F) - error(sex=M) <= 0.1", 0, "write error_rate_parity(sex)"),
    ("rate(1) <= banana", 11, "expected a rate or a number, this is the name 'banana'"),
    ("demographic_parity(sex) <= banana", 27, "the name 'banana'"),
    ("banana >= fnr(race=*)", 0, "the name 'banana'"),
    ("0.1 <= positive_rate(sex=*) <= banana", 31, "the name 'banana'"),
    ("0.9 <= positive_rate(sex=*) <= 1.5", 31, "max_rate must be between 0 and 1, got 1.5"),
    ("rate(1) <= 'banana'", 11, "a text"),
    ("rate(1) <= everyone", 11, "a set of rows"),
    ("fnr(label=1, race=* <= 0.2", 18, "invalid syntax"),
    ("demographic_parity(sex <= 0.05", 18, "'(' was never closed"),
    ("rate(1, where=group(sex=Female) <= 0.2", 4, "'(' was never closed"),
    ("rate(1, where=group(sex=Female <= 0.2", 19, "'(' was never closed"),
    ("abs(rate(1) - rate(0) <= 0.1", 3, "'(' was never closed"),
    ("(rate(1) - rate(0) <= 0.1", 0, "'(' was never closed"),
    ("[rate(1) <= 0.1, rate(0) <= 0.2", 0, "'[' was never closed"),
    ("rate(1, where=group(sex == Female)) <= 0.2", 27, "rates are bounded with <= or >="),
    ("fnr(by=[sex, race, sex]) <= 0.2", 19, "name each column once"),
    ("demographic_parity(sex, race, sex=*) <= 1", 19, "each column once"),
]


@pytest.mark.parametrize(("text", "at", "words"), WRONG, ids=[repr(text)[:40] for text, _, _ in WRONG])
def test_errors_point_at_the_character(text, at, words):
    with pytest.raises(GrammarError) as caught:
        parse_constraint(text)
    error = caught.value
    assert error.position == at
    assert words in error.reason
    assert f"character {at + 1}: " in str(error)
    line, caret = str(error).split("\n")[-2:]
    if len(text) <= 100:
        assert caret.index("^") == at + 4
        assert line[4:] == text.replace("\n", " ")


PEOPLE = Domain(
    classes=("no", "yes"), columns={"sex": ("Female", "Male"), "race": ("A", "B", "it's"), "age": Numeric()}
)
# well formed, but about columns, values and classes that PEOPLE does not have; the word, words of the message
UNKNOWN = [
    ("demographic_parity(sxe) <= 0.1", "sxe", "did you mean 'sex'?"),
    ("demographic_parity(sex, religion) <= 0.1", "religion", "not among the groups: 'sex', 'race', 'age'"),
    ("demographic_parity(sex, religion=*) <= 0.1", "religion", "not among the groups"),
    ("demographic_parity(age) <= 0.1", "age", "is a number and has no list of values"),
    ("fnr(label=yes, age=*) <= 0.2", "age", "group(age=below(25))"),
    ("fnr(label=7, race=*) <= 0.2", "7", "7 is not among the classes: 'no', 'yes'"),
    ("fnr(label=Yes, race=*) <= 0.2", "Yes", "did you mean 'yes'?"),
    ("fnr(race=*) <= 0.2", "fnr", "write label=..., as in fnr(label='yes')"),
    ("equal_opportunity(sex, positive=1) <= 0.2", "1)", "not among the classes"),
    ("equal_opportunity(sex) <= 0.2", "equal_opportunity", "label=..."),
    ("false_negative_rate(0.2, 1, 'race')", "1,", "not among the classes"),
    ("false_negative_rate(0.2, 'yes', ('race', 'faith'))", "'faith'", "not among the groups"),
    ("fnr(label=yes, sex=Femal) <= 0.2", "Femal", "did you mean 'Female'?"),
    ("fnr(label=yes, faith=X) <= 0.2", "faith", "not among the groups"),
    ("rate(yes, where=group(sex=female)) <= 0.2", "female", "not among the values of column 'sex'"),
    ("rate(yes, where=group(race={A, B, Z})) <= 0.2", "Z", "column 'race': 'A', 'B', \"it's\""),
    ("rate(yes, where=group(race=[A, 'Z', B])) <= 0.2", "'Z'", "not among the values"),
    ("rate(yes, where=group(**{'r ace': A})) <= 0.2", "'r ace'", "not among the groups"),
    ("rate(yes, where=group(age=25)) <= 0.2", "25", "is a number and has no list"),
    ("rate(yes, where=label(no) & label(maybe)) <= 0.2", "maybe", "not among the classes"),
    ("rate(maybe) - rate(yes) <= 0.2", "maybe", "not among the classes"),
    ("rate(k=maybe, where=everyone) <= 0.2", "maybe", "not among the classes"),
    ("rate(yes, where=group(race=-1)) <= 0.2", "-1", "-1 is not among the values"),
    ("(rate(yes) - rate(yes, where=group(sx=Male)) <= 1).named('maybe')", "sx", "not among the groups"),
]


@pytest.mark.parametrize(("text", "word", "words"), UNKNOWN, ids=[text for text, *_ in UNKNOWN])
def test_words_that_nobody_declared_are_pointed_at(text, word, words):
    parse_constraint(text)
    with pytest.raises(GrammarError) as caught:
        parse_constraint(text, PEOPLE)
    assert caught.value.position == text.index(word)
    assert words in caught.value.reason
    assert str(caught.value).splitlines()[-1] == " " * (4 + text.index(word)) + "^"


def test_words_that_were_declared_are_read():
    for text in (
        "demographic_parity(sex, race) <= 0.1",
        "demographic_parity(sex=*) <= 0.1",
        'fnr(label=yes, race="it\'s") <= 0.2',
        "rate(yes, where=group(race={A, B}, age=[below(3), at_least(65)]) & ~label(no)) <= 0.2",
        "demographic_parity() <= 0.1",
        "paper_false_negative_rate(sex=*) <= 0.1",
    ):
        assert parse_constraint(text, PEOPLE) == parse_constraint(text)
    numbers = Domain(classes=("0", "1"))
    with pytest.raises(GrammarError, match="did you mean '1'"):
        parse_constraint("rate(1) <= 0.2", numbers)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("rate('é') <= banana", 13),
        ("rate('女') <= banana", 14),  # twice as wide as a letter
        ("rate('e\u0301') <= banana", 13),  # an accent by itself takes no room
        ("rate(\t'a') <= banana", 14),
    ],
)
def test_the_caret_stands_under_the_word_in_a_terminal(text, columns):
    with pytest.raises(GrammarError) as caught:
        parse_constraint(text)
    assert caught.value.position == text.index("banana")
    assert str(caught.value).splitlines()[-1] == " " * (4 + columns) + "^"


def test_long_texts_are_shown_around_the_place():
    text = "rate(1) + " * 50 + "? <= 1"
    with pytest.raises(GrammarError) as caught:
        parse_constraint(text)
    line, caret = str(caught.value).split("\n")[-2:]
    assert line[caret.index("^")] == "?"
    assert len(line) < 120
    assert pickle.loads(pickle.dumps(caught.value)).position == 500


@pytest.mark.parametrize("opening", ["(", "[", "{", "rate(", "group(a=", "~(", "-(", "abs("])
@pytest.mark.parametrize("closed", [False, True])
def test_deep_nesting_is_refused_not_a_crash(opening, closed):
    text = opening * 2000 + "1" + ")" * 2000 * closed
    with pytest.raises(GrammarError):
        parse_constraint(text[:MAX_TEXT])


def test_nesting_up_to_the_limit_is_read():
    depth = MAX_NESTING - 1
    assert parse_constraint("(" * depth + "rate(1)" + ")" * depth + " <= 1") == (rate(1) <= 1)
    with pytest.raises(GrammarError, match="brackets"):
        parse_constraint("(" * (depth + 2) + "rate(1)" + ")" * (depth + 2) + " <= 1")
    assert parse_constraint("-" * 20 + "rate(1) <= 1") == (rate(1) <= 1)
    assert parse_constraint(f"rate(1, where={'~' * 21}everyone) <= 1") == (rate(1, where=nobody) <= 1)
    with pytest.raises(GrammarError, match="too long a chain"):
        parse_constraint(f"rate(1, where={'~' * 2001}everyone) <= 1")


def test_texts_beyond_the_limit_are_refused():
    with pytest.raises(GrammarError, match="20,000 characters"):
        parse_constraint("rate(1) + " * 2001 + "rate(1) <= 1")
    with pytest.raises(GrammarError, match="more than 100 sets of rows are joined"):
        parse_constraint(f"rate(1, where={' & '.join(['everyone'] * 201)}) <= 1")
    with pytest.raises(InvalidType, match="must be text"):
        parse_constraint(3)
    for chain in ("-" * 19_000 + "rate(1)", "rate(1)" + " * 2" * 4000, "a." * 9000 + "b"):
        with pytest.raises(GrammarError, match=r"this is not a constraint: .+"):
            parse_constraint(f"{chain} <= 1")
    # long sums are fine, and quick
    long = " + ".join(f"rate({k})" for k in range(1500))
    assert len(parse_constraint(f"{long} <= 1").expression.terms) == 1500


@pytest.mark.parametrize("value", [b"x", 1j, float("inf"), frozenset, 10**301, "x" * MAX_TEXT])
def test_values_that_text_cannot_say_are_refused_in_writing(value):
    with pytest.raises(InvalidInput, match="text"):
        format_constraint(rate(1, where=group(a=value)) <= 1)


def test_only_constraints_can_be_written():
    with pytest.raises(InvalidType, match="expected a constraint"):
        format_constraint(rate(1))
