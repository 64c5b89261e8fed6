"""Whatever the predictions and however odd the texts: the report adds up, survives JSON, and stays a page."""

import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratewise import demographic_parity, positive_rate, rate
from ratewise.exceptions import InvalidInput
from ratewise.report import Report

NAMES = st.one_of(
    st.text(min_size=1, max_size=12).filter(str.strip),
    st.integers(-5, 5),
    st.sampled_from(["<script>", "</script>", "&amp;", '"', "'", "a|b", "`x`", "$1", "{}", "%s", "\u202e"]),
)


class Balance(HTMLParser):
    """Counts opened and closed elements."""

    VOID = frozenset({"meta", "input", "br", "hr", "wbr"})

    def __init__(self, page):
        super().__init__()
        self.stack = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


@st.composite
def reports(draw):
    n = draw(st.integers(2, 60))
    values = draw(st.lists(NAMES, min_size=2, max_size=4, unique_by=str))
    kinds = draw(st.sampled_from([("no", "yes"), (0, 1), ("<b>", "&", "c")]))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    truth = [kinds[i] for i in rng.integers(0, len(kinds), n)]
    guess = [kinds[i] for i in rng.integers(0, len(kinds), n)]
    groups = [values[i] for i in rng.integers(0, len(values), n)]
    column = draw(st.text(min_size=1, max_size=8).filter(str.strip))
    constraints = [
        demographic_parity(column, max_gap=draw(st.floats(0, 1))),
        positive_rate(max_rate=draw(st.floats(0, 1)), by=column) if 1 in kinds else rate(kinds[0]) <= 0.5,
    ]
    scores = rng.dirichlet(np.ones(len(kinds)), n) if draw(st.booleans()) else None
    return Report.from_predictions(
        truth, guess, {column: groups}, constraints, scores=scores, classes=kinds, group_values={column: values}
    )


@settings(max_examples=40, deadline=None)
@given(reports())
def test_groups_add_up_and_states_follow_from_values(report):
    content = report.content
    for grouping in content.groupings:
        assert sum(group.rows for group in grouping.groups) == content.rows
        for k in content.classes:
            hits = sum((group.rates[k]["selection_rate"].value or 0.0) * group.rows for group in grouping.groups)
            assert hits == pytest.approx(content.everyone.rates[k]["selection_rate"].value * content.rows)
    for constraint in content.constraints:
        if constraint.excess_interval is None:
            assert constraint.state == "cannot tell"
            continue
        better, worse = constraint.excess_interval
        assert better - 1e-9 <= constraint.excess <= worse + 1e-9
        assert constraint.state == ("held" if constraint.excess <= content.tolerance + 1e-9 else "missed")
    assert sum(content.counts.values()) == len(content.constraints)


@settings(max_examples=40, deadline=None)
@given(reports())
def test_page_is_whole_and_says_what_the_data_say(report):
    page = report.to_html()
    assert Balance(page).stack == []
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(data) == json.loads(report.to_json())
    assert Report.from_json(report.to_json()).content == report.content
    shown = re.findall(r'data-constraint="(.*?)"', page, re.DOTALL)
    assert [html.unescape(name) for name in shown] == [constraint.name for constraint in report.content.by_worst()]
    assert report.model_card().startswith("# ")


def test_half_a_surrogate_pair_does_not_stop_the_page(tmp_path):
    groups = ["\ud800", "b"] * 10
    report = Report.from_predictions([0, 1] * 10, [1, 1, 0, 0] * 5, {"g": groups}, demographic_parity("g", max_gap=0.1))
    report.to_html(tmp_path / "page.html")
    report.to_json(tmp_path / "report.json")
    report.model_card(tmp_path / "card.md")
    assert Report.from_json((tmp_path / "report.json").read_text()).content == report.content


def test_classes_whose_texts_are_the_same_are_refused():
    with pytest.raises(InvalidInput, match="cells cannot tell it from True"):
        Report.from_predictions([True, "True"] * 5, ["True", True] * 5, classes=[True, "True"])
