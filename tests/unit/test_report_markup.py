"""The page and the card as text: escaped, self-contained, complete, and readable with a thousand constraints."""

import base64
import functools
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from ratewise import demographic_parity, equalized_odds, group, rate
from ratewise.accounting import PrivacyStatement, PrivacyUnit, UnprotectedEvent
from ratewise.report import Report, views
from ratewise.report.page import safe
from ratewise.report.plots import Axis, Html, el, join
from ratewise.report.views import OPEN_CONSTRAINTS

EVIL = "<script>window.broken=1</script>\"'&</title></script><!-- ]]>"


def evil_report():
    """Return a report in which every text that a user can give is hostile."""
    n = 200
    truth = np.array([EVIL, "b"])[np.arange(n) % 2]
    guess = np.array([EVIL, "b"])[np.arange(n) // 3 % 2]
    groups = np.array([EVIL, "x | y\n# z"])[np.arange(n) // 5 % 2]
    statement = PrivacyStatement(
        epsilon=float("inf"),
        delta=1e-5,
        events=[UnprotectedEvent(EVIL)],
        unit=PrivacyUnit("id", column=EVIL),
        public=[EVIL],
        found=[EVIL],
        outside=[EVIL],
        terms=EVIL,
    )
    return Report.from_predictions(
        truth,
        guess,
        {EVIL: groups},
        [demographic_parity(EVIL, max_gap=0.2), (rate("b") <= 0.5).named(EVIL)],
        baseline={EVIL: guess[::-1]},
        name=EVIL,
        title=EVIL,
        statement=statement,
        notes=[EVIL],
    )


@functools.cache
def many_constraints(count):
    """Return a report on so many constraints, each about a group of its own, about half of them missed."""
    rng = np.random.default_rng(0)
    n = max(3000, 5 * count)
    truth, guess, place = rng.integers(0, 2, n), rng.integers(0, 2, n), np.arange(n) % count
    bounds = np.linspace(0.1, 0.9, count).round(6)
    constraints = [rate(1, where=group(place=i)) <= float(bounds[i]) for i in range(count)]
    return Report.from_predictions(truth, guess, {"place": place}, constraints, classes=[0, 1])


class Elements(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.scripts = [], [], []
        self._script = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag == "script":
            self._script = [dict(attributes), ""]

    def handle_data(self, data):
        if self._script is not None:
            self._script[1] += data

    def handle_endtag(self, tag):
        if tag == "script":
            self.scripts.append(tuple(self._script))
            self._script = None


def test_children_are_escaped_unless_they_are_markup():
    assert el("p", "<b>") == "<p>&lt;b&gt;</p>"
    assert el("p", el("b", "&")) == "<p><b>&amp;</b></p>"
    assert el("p", title='"<') == '<p title="&quot;&lt;"></p>'
    assert el("p", [None, ["a", Html("<i>")]], hidden=True, id=None) == "<p hidden>a<i></p>"
    assert isinstance(join(["<"]), Html)


def test_no_text_of_a_user_becomes_markup():
    page = Elements(evil_report().to_html())
    assert len(page.scripts) == 2  # the data and our own
    assert not any("window.broken=1" in text for kind, text in page.scripts if kind.get("type") is None)
    plain = Elements(many_constraints(20).to_html())
    assert set(page.tags) - set(plain.tags) <= {
        "section",
        "h3",
        "code",
        "pre",
        "i",
        "ul",
        "figure",
        "details",
        "summary",
    }
    assert not any(name.startswith("on") for _, name, _ in page.attributes)


def test_hostile_data_survive_as_data():
    report = evil_report()
    page = Elements(report.to_html())
    (data,) = [text for kind, text in page.scripts if kind.get("type") == "application/json"]
    assert json.loads(data) == json.loads(report.to_json())
    assert EVIL in json.loads(data)["constraints"][-1]["name"]


def test_a_frame_in_a_notebook_holds_the_whole_page():
    report = evil_report()
    frame = Elements(report._repr_html_())
    assert frame.tags == ["iframe"]
    attributes = {name: value for _, name, value in frame.attributes}
    assert attributes["srcdoc"] == report.to_html()
    assert "allow-same-origin" not in attributes["sandbox"]


def test_nothing_is_asked_of_any_server():
    page = Elements(many_constraints(20).to_html())
    for tag, name, value in page.attributes:
        if name in ("src", "href", "srcset", "action", "data", "poster"):
            assert value.startswith("#"), (tag, name, value)
    assert "link" not in page.tags
    assert "img" not in page.tags
    style = re.search(r"<style>(.*?)</style>", many_constraints(2).to_html(), re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_only_our_script_may_run():
    page = Elements(many_constraints(2).to_html())
    (script,) = [text for kind, text in page.scripts if kind.get("type") is None]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and "default-src" in (value or ""))
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_every_constraint_is_on_the_page_worst_first():
    report = many_constraints(1000)
    page = report.to_html()
    shown = re.findall(r'data-constraint="(.*?)"', page)
    assert [html.unescape(name) for name in shown] == [constraint.name for constraint in report.content.by_worst()]
    before_fold = page[: page.index("more constraints, going on")]
    assert before_fold.count("data-constraint=") == OPEN_CONSTRAINTS
    assert len(page) < 4_000_000


def test_beyond_some_thousands_the_page_says_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr(views, "MOST_CONSTRAINTS", 13)
    report = many_constraints(20)
    page = report.to_html()
    assert page.count("data-constraint=") == 13
    assert "7 more are in the data of this page only" in page
    assert len(report.content.constraints) == 20


@pytest.mark.parametrize("count", [1, 18])
def test_few_constraints_have_their_numbers_as_text(count):
    report = many_constraints(count)
    page = report.to_html()
    for constraint in report.content.constraints:
        row = re.search(rf'<tr [^>]*data-constraint="{re.escape(html.escape(constraint.name))}".*?</tr>', page)[0]
        assert f">{constraint.reached:.4f}</td>" in row
        assert f">{constraint.low:.4f} to {constraint.high:.4f}</td>" in row
        assert f'data-state="{constraint.state}"' in row


def test_axis_ticks_are_round_and_on_the_axis():
    for low, high in ((0.0, 1.0), (-0.0132, 0.0071), (0.82, 0.86), (0.0, 20000.0), (-3e-7, 9e-7)):
        ticks = Axis(low, high).ticks()
        assert 2 <= len(ticks) <= 8, (low, high)
        assert low - 1e-9 <= ticks[0] < ticks[-1] <= high + 1e-9
        assert np.allclose(np.diff(ticks), ticks[1] - ticks[0])


def test_values_off_the_axis_are_drawn_at_its_edge():
    axis = Axis(0.0, 1.0)
    assert (axis.percent(-1.0), axis.percent(2.0)) == ("0.000%", "100.000%")
    assert not axis.holds(2.0)


class TestCard:
    def test_it_says_what_the_page_says(self):
        report = many_constraints(18)
        card = report.model_card()
        assert card.startswith("# Report on model\n")
        for constraint in report.content.constraints:
            assert f"| {safe(constraint.name)} |" in card
        assert "## Limitations and warnings" in card

    def test_hostile_texts_stay_texts(self):
        card = evil_report().model_card()
        outside = re.sub(r"```text.*?```", "", card, flags=re.DOTALL)
        assert "<script" not in outside.replace("\\<", "")
        assert "\n# z" not in card
        for line in outside.splitlines():
            if line.startswith("|"):
                assert len(re.findall(r"(?<!\\)\|", line)) == len(re.findall(r"(?<!\\)\|", _head(outside, line)))

    def test_many_constraints_are_counted(self):
        assert "970 more constraints, none of them worse than these" in many_constraints(1000).model_card()

    def test_it_is_written_to_a_file(self, tmp_path):
        path = tmp_path / "card.md"
        assert many_constraints(2).model_card(path) == path.read_text(encoding="utf-8")


def _head(card, line):
    """Return the head of the table that a line belongs to."""
    lines = card.splitlines()
    place = lines.index(line)
    while lines[place - 1].startswith("|"):
        place -= 1
    return lines[place]


def test_families_are_explained_in_words():
    n = 300
    truth, guess = np.arange(n) % 3, np.arange(n) // 2 % 3
    report = Report.from_predictions(truth, guess, {"g": np.arange(n) % 4}, equalized_odds("g", max_gap=0.1))
    words = report.content.families[0].words
    assert "same true class" in words
    assert "at most 10 points" in words
    assert words in html.unescape(report.to_html())
