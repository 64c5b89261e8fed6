"""A family that is defined outside the package is known to text, compilation, reports and metrics."""

import pickle

import numpy as np
import pytest

from ratewise import Domain, RateConstrainedClassifier, TrainingConfig, group, label, rate
from ratewise.constraints import families as registry_module
from ratewise.constraints import text as text_module
from ratewise.constraints.compiled import as_constraints, compile_constraints, named_values
from ratewise.constraints.families import Family, GapFamily, RateFamily, crossed, register_family
from ratewise.constraints.text import GrammarError, format_constraint, parse_constraint
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.metrics import rate_report
from ratewise.report import Report

PEOPLE = Domain(("no", "yes"), {"sex": ("F", "M"), "race": ("A", "B", "C")})


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    monkeypatch.setattr(registry_module, "FAMILIES", dict(registry_module.FAMILIES))
    monkeypatch.setattr(text_module, "FAMILIES", registry_module.FAMILIES)
    for family in (SelectionRatio, CoverageGap, Coverage):
        register_family(family)


class SelectionRatio(Family):
    """The four-fifths rule: every group is selected at least `min_ratio` times as often as everyone."""

    kind = "selection_ratio"
    short_names = ("sr",)
    lower = "min_ratio"
    options = {"positive": "yes"}  # noqa: RUF012

    def expand(self, domain):
        k = self.positive
        return tuple(
            (rate(k, where=subset) - self.low * rate(k) >= 0.0).named(f"ratio({subset.name}) >= {self.low:g}")
            for subset in crossed(self.columns, domain)
        )

    def describe(self, domain=None, names=None):
        return f"Every group by {', '.join(self.columns)} is selected at {self.low:g} of the average or more."

    def plot_data(self, domain):
        return [(self.kind, g.name, rate(self.positive, where=g)) for g in crossed(self.columns, domain)]


class CoverageGap(GapFamily):
    kind = "coverage_gap"
    measured = "are predicted 'yes'"

    def measures(self, domain):
        return [lambda subset: rate("yes", where=subset)]


class Coverage(RateFamily):
    kind = "coverage"
    lower, upper = "min_rate", "max_rate"
    options = {"positive": "yes", "truth": "no"}  # noqa: RUF012
    population = "rows"
    event = "are predicted {positive}"

    @classmethod
    def rate_in(cls, options, subset):
        return rate(options["positive"], where=label(options["truth"]) & subset)


@pytest.mark.parametrize(
    ("text", "family", "written"),
    [
        ("selection_ratio(sex) >= 0.8", SelectionRatio("sex", min_ratio=0.8), None),
        ("sr(race=*) >= 0.8", SelectionRatio("race", min_ratio=0.8), "selection_ratio(race) >= 0.8"),
        ("coverage_gap(sex) <= 0.05", CoverageGap("sex", max_gap=0.05), None),
        ("coverage_gap(sex, versus='everyone') <= 0.05", CoverageGap("sex", max_gap=0.05, versus="everyone"), None),
        ("coverage(race=*).between(0.1, 0.3)", Coverage(0.1, 0.3, by="race"), None),
        ("coverage(truth='yes') <= 0.3", Coverage(max_rate=0.3, truth="yes"), None),
        ("coverage(sex=F) <= 0.3", rate("yes", where=label("no") & group(sex="F")) <= 0.3, ""),
        ("coverage(sex=F) - coverage(sex=M) <= 0.3", None, ""),
    ],
)
def test_text_is_read_and_written(text, family, written):
    found = parse_constraint(text, PEOPLE)
    assert family is None or found == family
    assert parse_constraint(format_constraint(found)) == found
    if written != "":
        assert format_constraint(found) == (written or text)
        assert pickle.loads(pickle.dumps(found)) == found
        assert eval(repr(found), {family.kind: type(family)}) == found


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("selection_ratio(sex) <= 0.8", 24, "from below only"),
        ("selection_ratio(sex) >= 1.8", 24, "min_ratio must be between 0 and 1"),
        ("selection_ratio(height) >= 0.8", 16, "column 'height' is not among"),
        ("selection_ratoi(sex) >= 0.8", 0, "did you mean selection_ratio?"),
        ("coverage_gap(sex=F) <= 0.1", 17, "compares groups"),
        ("coverage_gap(sex, versus=nobody) <= 0.1", 25, "versus must be one of"),
        ("coverage(truth=maybe) <= 0.1", None, "'maybe' is not among the classes"),
        ("sr(label=no, positive=no, sex=*) >= 0.1", 22, "two words for one thing"),
    ],
)
def test_errors_in_its_text_point_at_the_place(text, position, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        compile_constraints(parse_constraint(text, PEOPLE), PEOPLE)
    assert position is None or (isinstance(caught.value, GrammarError) and caught.value.position == position)


def test_it_is_described_and_plotted():
    assert CoverageGap("sex", max_gap=0.05).describe(PEOPLE) == (
        "F and M are predicted 'yes' at rates that differ by at most 5 points."
    )
    assert CoverageGap("sex", max_gap=0.01).describe(PEOPLE, {("sex", "F"): "Women", ("sex", "M"): "men"}) == (
        "Women and men are predicted 'yes' at rates that differ by at most 1 point."
    )
    assert Coverage(0.1, 0.3, by="race").describe() == (
        "Between 10% and 30% of the rows are predicted 'yes', in every group by race."
    )
    plot = CoverageGap("race", max_gap=0.05).plot_data(PEOPLE)
    assert [name for _, name, _ in plot] == ["race=A", "race=B", "race=C"]
    assert [name for _, name, _ in Coverage(0.1, 0.3).plot_data(PEOPLE)] == ["everyone"]


def test_two_sided_bounds_are_one_item():
    declared = ["coverage_gap(sex) <= 0.05", Coverage(0.1, 0.9), "sr(sex) >= 0.8", rate("yes") <= 0.7]
    compiled = compile_constraints(declared, PEOPLE)
    items = compiled.items
    assert [len(item.members) for item in items] == [2, 2, 1, 1, 1]
    assert sorted(j for item in items for j in item.members) == list(range(len(compiled)))
    gap, coverage, ratio, _, alone = items
    assert gap.name == "abs(P(yes | sex=F) - P(yes | sex!=F)) <= 0.05"
    words = "sex=F and everybody else are predicted 'yes' at rates that differ by at most 5 points."
    assert gap.description == words
    assert (gap.is_gap, gap.slack, gap.family) == (True, 0.05, CoverageGap("sex", max_gap=0.05))
    assert coverage.name == "0.1 <= P(yes | label=no) <= 0.9"
    assert (ratio.name, alone.family, alone.slack) == ("ratio(sex=F) >= 0.8", None, 0.7)
    table = compiled.histogram(compiled.code_cells([1, 1, 0, 0], {"sex": [0, 0, 1, 1]}), np.array([0, 0, 0, 1]))
    values = compiled.values(table)
    assert gap.gap(values) == pytest.approx(0.5)


def test_metrics_and_reports_know_it():
    truth = np.array(["no", "yes"] * 50)
    guess = np.array((["yes"] * 3 + ["no"]) * 25)
    sex = np.array((["F"] * 2 + ["M"] * 2) * 25)
    declared = ["coverage_gap(sex) <= 0.1", SelectionRatio("sex", min_ratio=0.8)]
    report = rate_report(declared, truth, guess, sensitive_features={"sex": sex})
    assert {row.family for row in report} == {"coverage_gap(sex) <= 0.1", "selection_ratio(sex) >= 0.8"}
    assert report[0].reached == pytest.approx(0.5)
    content = Report.from_predictions(truth, guess, {"sex": sex}, declared)
    page = content.to_html()
    assert "Every group by sex is selected at 0.8 of the average or more." in page


def test_a_classifier_is_trained_with_its_text():
    rng = np.random.default_rng(0)
    X, sex = rng.normal(size=(400, 2)), np.array(["F", "M"])[rng.integers(0, 2, 400)]
    y = np.where(X[:, 0] > 0, "yes", "no")
    model = RateConstrainedClassifier(
        ["coverage_gap(sex) <= 0.1", rate("yes") <= 0.9],
        classes=("no", "yes"),
        group_values={"sex": ("F", "M")},
        config=TrainingConfig(steps=3),
        random_state=0,
    )
    model.fit(X, y, sensitive_features={"sex": sex})
    assert set(model.predict(X)) <= {"no", "yes"}


def test_named_values_count_classes_and_values():
    named = named_values(["coverage(race=*) <= 0.3", rate("maybe", where=group(race="D", town={1, 2})) <= 0.1])
    assert named.classes == ("yes", "maybe")
    assert named.columns == {"race": ("D",), "town": (1, 2)}
    assert named.numeric == frozenset()
    assert not named.all_columns
    assert named_values("coverage_gap() <= 0.1").all_columns
    assert named_values(None).columns == {}


def test_any_form_of_constraints_is_accepted():
    bound = rate("yes") <= 0.2
    found = as_constraints(["coverage_gap(sex) <= 0.1", (bound, [None, {bound}]), rate("no").between(0.1, 0.9)])
    assert found == [CoverageGap("sex", max_gap=0.1), bound, bound, rate("no").between(0.1, 0.9)]
    assert as_constraints(None) == []
    for wrong in (3, {"a": 1}, iter([bound]), rate("yes"), True, b"rate(1) <= 0.2"):
        with pytest.raises(InvalidType):
            as_constraints([bound, wrong] if not hasattr(wrong, "__next__") else wrong)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"kind": "", "upper": "m"}, "identifier"),
        ({"kind": "no good", "upper": "m"}, "identifier"),
        ({"kind": "demographic_parity", "upper": "m"}, "a family 'demographic_parity' already"),
        ({"kind": "fresh", "short_names": ("fnr",), "upper": "m"}, "a family 'fnr' already"),
        ({"kind": "fresh"}, "needs lower= or upper="),
    ],
)
def test_a_class_that_cannot_be_registered_is_refused(attributes, words):
    with pytest.raises(InvalidInput, match=words):
        register_family(type("Odd", (Family,), attributes))
