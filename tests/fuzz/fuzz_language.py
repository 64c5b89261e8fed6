"""What is asked: predicates, rates, families, domains, constraint text, and reports on what was reached."""

from __future__ import annotations

from fuzz_inputs import both_classes, damaged_text, edges, mostly, names, odd, things, values
from hypothesis import strategies as st

import ratewise as rw
from ratewise.constraints.compiled import compile_constraints
from ratewise.constraints.text import format_constraint, parse_constraint
from ratewise.metrics import group_rates, rate_report

PARITIES = [
    rw.demographic_parity,
    rw.equal_opportunity,
    rw.equalized_odds,
    rw.error_rate_parity,
    rw.predictive_equality,
]
LIMITS = [
    rw.false_discovery_rate,
    rw.false_negative_rate,
    rw.false_positive_rate,
    rw.paper_false_negative_rate,
    rw.positive_rate,
    rw.precision,
    rw.true_negative_rate,
    rw.true_positive_rate,
]
ROWS = {"g": ["a", "b", "a"], "age": [1.0, 50.0, 80.0]}


def predicate(draw):
    """Draw who is meant."""
    found = draw(
        st.sampled_from(
            [
                lambda: rw.everyone,
                lambda: rw.nobody,
                lambda: rw.group(**{draw(names): draw(mostly(values))}),
                lambda: rw.group(age=rw.at_least(draw(mostly(st.floats(-5, 99))))),
                lambda: rw.group(age=rw.below(draw(mostly(st.floats(-5, 99))))),
                lambda: rw.group(age=rw.between(draw(mostly(st.floats(-5, 99))), draw(edges))),
                lambda: rw.label(*draw(st.lists(mostly(st.integers(0, 1)), max_size=2))),
            ]
        )
    )()
    other = draw(st.sampled_from([None, ~found, rw.group(g="a"), rw.label(1), rw.everyone]))
    if other is None:
        return found
    return found & other if draw(st.booleans()) else found | other


def fuzz_rates(draw):
    """The language of constraints in Python, and its answer on three rows."""
    out_of = draw(st.sampled_from([None, rw.everyone, "rows", "odd"]))
    if out_of in ("rows", "odd"):
        out_of = rw.rows(predicate(draw)) if out_of == "rows" else draw(odd)
    term = rw.rate(draw(mostly(st.integers(0, 1))), where=predicate(draw), out_of=out_of)
    if draw(st.booleans()):
        term = draw(mostly(st.floats(-3, 3), 4, edges)) * term - rw.rate(0)
    bound = draw(mostly(st.floats(0, 1), 4, edges))
    constraint = term <= bound if draw(st.booleans()) else term >= bound
    rate_report([constraint], [0, 1, 1], [1, 1, 0], sensitive_features=ROWS)


def fuzz_families(draw):
    """Every family with any arguments, compiled for a small domain, written and read back."""
    by = draw(mostly(st.lists(names, max_size=2)))
    if draw(st.booleans()):
        columns = by if isinstance(by, list) else [by]
        options = {"max_gap": draw(mostly(st.floats(0, 1)))}
        if draw(st.integers(0, 3)) == 0:
            options["versus"] = draw(mostly(st.sampled_from(["rest", "all", "pairs"]), 8))
        family = draw(st.sampled_from(PARITIES))(*columns, **options)
    else:
        family = draw(st.sampled_from(LIMITS))(draw(mostly(st.floats(0, 1))), by=by)
    domain = rw.Domain(classes=(0, 1), columns={"g": ["a", "b"], "age": rw.Numeric()})
    compile_constraints([family], domain)
    assert format_constraint(parse_constraint(format_constraint(family))) == format_constraint(family)


def fuzz_domain(draw):
    """Declared classes and values of any kind."""
    sound = st.sampled_from(["a", "b", "c", 1, 2, 1.5, "Ω"])
    listed = st.lists(mostly(sound, 1, values), min_size=2, max_size=4, unique_by=repr)
    listed = mostly(listed, 4, st.lists(mostly(values), max_size=4))
    columns = st.dictionaries(mostly(names, 2, edges), mostly(st.one_of(listed, st.just(rw.Numeric())), 4), max_size=2)
    domain = rw.Domain(draw(mostly(listed)), draw(mostly(columns)))
    compile_constraints([rw.rate(domain.classes[0]) <= 0.5], domain)


WORDS = [
    *("rate", "fnr", "demographic_parity", "where", "group", "label", "everyone", "max_gap", "sex", "race"),
    *("(", ")", "=", "<=", ">=", "-", "+", ",", "&", "~", "|", "*", ".", "'F'", "1", "0", "0.1", " "),
    *("\\", '"', "\n", "__import__"),
]
SOUND = [
    "fnr(label=1, race=*) <= 0.2",
    "demographic_parity(sex, race) <= 0.05",
    "rate(1, where=group(sex='F') & label(1)) - 0.5 * rate(0) >= -0.1",
    "rate(1, where=group(age=[18, 65))) <= 0.3",
]


def fuzz_constraint_text(draw):
    """Text that might be a constraint."""
    words = st.sampled_from(WORDS)
    sound = draw(st.sampled_from(SOUND))
    place = draw(st.integers(0, len(sound)))
    text = draw(
        st.one_of(
            st.text(max_size=40),
            st.lists(words, max_size=14).map("".join),
            words.map(lambda word: sound[:place] + word + sound[place:]),
            st.just(damaged_text(draw, sound)),
        )
    )
    constraint = parse_constraint(text)
    assert parse_constraint(format_constraint(constraint)) == constraint


def labels_and_groups(draw):
    """Draw labels, predictions and groups of a few rows."""
    n, times = draw(mostly(st.integers(2, 6), 4, st.integers(0, 6))), draw(st.sampled_from([1, 300]))
    column = st.lists(mostly(st.integers(0, 1), 1), min_size=n, max_size=n).map(lambda found: found * times)
    kind = values if draw(st.integers(0, 3)) == 1 else st.sampled_from("ab")
    groups = {"g": draw(st.lists(kind, min_size=n, max_size=n)) * times}
    return both_classes(draw, n) * times, draw(column), draw(mostly(st.just(groups), 2, things))


def fuzz_report(draw):
    """Rates on any labels and groups."""
    labels, predicted, groups = labels_and_groups(draw)
    parity = rw.demographic_parity("g", max_gap=0.1)
    rate_report(parity, labels, predicted, sensitive_features=groups, confidence=draw(mostly(st.floats(0.5, 0.99))))
    group_rates(labels, predicted, sensitive_features=groups, by=draw(mostly(st.just("g"))))
