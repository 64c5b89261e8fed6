"""The report: what it says is what was measured, whoever made the predictions."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest

from ratewise import (
    RateConstrainedClassifier,
    below,
    demographic_parity,
    false_negative_rate,
    group,
    positive_rate,
    rate,
)
from ratewise.accounting import Budget, GaussianEvent, Ledger, TrainingEvent, accountant
from ratewise.data.schema import Category, Number, Schema
from ratewise.datasets import census_like
from ratewise.estimators.evaluation import evaluate
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.metrics import rate_report
from ratewise.report import Report
from ratewise.report.build import CURVE_POINTS, MOST_CURVES, MOST_ENTRIES, spending_of, training_of
from ratewise.report.content import STATES, Content
from ratewise.report.views import counted


def people(n=400, seed=0):
    rng = np.random.default_rng(seed)
    sex = rng.choice(["F", "M"], n)
    truth = rng.integers(0, 2, n)
    guess = np.where(rng.random(n) < 0.8, truth, 1 - truth)
    return truth, guess, {"sex": sex}


@pytest.fixture(scope="module")
def trained():
    rows, others = census_like(4000, random_state=0), census_like(4000, random_state=1)
    public = {"classes": rows.classes, "group_values": rows.group_values, "random_state": 0}
    constraints = [demographic_parity("sex", max_gap=0.05), false_negative_rate(0.7, by="region")]
    model = RateConstrainedClassifier(constraints, feature_bounds=rows.feature_bounds, **public)
    model.fit(rows.X, rows.y, sensitive_features=rows.sensitive)
    plain = RateConstrainedClassifier(epsilon=None, feature_bounds=rows.feature_bounds, **public)
    plain.fit(rows.X, rows.y)
    report = Report.from_model(model, others.X, others.y, others.sensitive, baseline=plain)
    return model, plain, others, report


class TestStates:
    """The verdict of the certificate by exact counts: about these rows, not about the population."""

    def reported(self, n, hits, bound):
        guess = np.zeros(n, dtype=int)
        guess[:hits] = 1
        return Report.from_predictions(
            np.arange(n) % 2, guess, None, rate(1) <= bound, classes=[0, 1]
        ).content.constraints[0]

    def test_well_within_is_held(self):
        assert self.reported(1000, 100, 0.2).state == "held"

    def test_well_beyond_is_missed(self):
        assert self.reported(1000, 300, 0.2).state == "missed"

    @pytest.mark.parametrize(("hits", "state"), [(210, "held"), (211, "missed")])
    def test_the_tolerance_decides_near_the_bound(self, hits, state):
        found = self.reported(1000, hits, 0.2)
        assert found.state == state
        assert found.low < 0.2 < found.reached < found.high

    def test_no_rows_cannot_be_told_and_count_as_worst_of_those(self):
        truth, guess, sensitive = people()
        report = Report.from_predictions(
            truth, guess, sensitive, positive_rate(max_rate=0.9, by="sex"), group_values={"sex": ["F", "M", "X"]}
        )
        empty = next(constraint for constraint in report.content.constraints if "sex=X" in constraint.name)
        assert (empty.state, empty.reached, empty.excess) == ("cannot tell", None, None)
        assert report.content.by_worst()[0] is empty
        assert any("without rows" in note.text for note in report.content.notes)

    def test_order_is_missed_unclear_held_then_by_gap(self):
        truth, guess, sensitive = people()
        groups = {"F": 0.9, "M": 0.1, "X": 0.5}
        bounds = [rate(1, where=group(sex=name)) <= bound for name, bound in groups.items()]
        bounds += [rate(0) <= 0.2, rate(0, where=group(sex="F")) <= 0.8]
        report = Report.from_predictions(truth, guess, sensitive, bounds, group_values={"sex": [*groups]})
        ordered = report.content.by_worst()
        assert [constraint.upper for constraint in ordered] == [0.1, 0.2, 0.5, 0.8, 0.9]
        assert [STATES.index(constraint.state) for constraint in ordered] == [0, 0, 1, 2, 2]

    def test_several_bounds_on_one_rate_are_the_tightest(self):
        truth, guess, sensitive = people()
        (found,) = Report.from_predictions(
            truth, guess, sensitive, [rate(1) <= 0.9, rate(1) <= 0.6]
        ).content.constraints
        assert found.upper == 0.6

    @pytest.mark.parametrize(
        ("constraints", "state", "words"),
        [
            (None, "none", "No constraints were requested"),
            (rate(1) <= 0.9, "held", "P(1): requested <= 0.9, reached .5 (population .4"),
            (rate(1) >= 0.9, "missed", "P(1): requested >= 0.9, reached .5"),
            (rate(1).between(0.4, 0.6), "held", "P(1): requested 0.4 to 0.6, reached .5"),
            (demographic_parity("sex", max_gap=0.5), "held", "Largest gap: requested .5, reached 0 (population 0 to "),
            ([demographic_parity("sex", max_gap=0.5), rate(1) <= 0.1], "missed", "P(1): requested <= 0.1"),
        ],
    )
    def test_the_headline_is_the_decisive_constraint(self, constraints, state, words):
        truth, guess = np.arange(2000) % 2, np.arange(2000) // 2 % 2
        sex = np.where(np.arange(2000) // 4 % 2, "F", "M")
        report = Report.from_predictions(truth, guess, {"sex": sex}, constraints)
        assert report.content.state == state
        assert words in report.headline
        assert f"{state} (tolerance .01)" in report.headline or state == "none"


class TestNumbers:
    def test_constraints_are_those_of_the_rate_report(self, trained):
        """A gap is one constraint: the absolute value of a difference that is bounded from both sides."""
        model, _, others, report = trained
        direct = rate_report(
            model.constraints,
            others.y,
            model.predict(others.X),
            sensitive_features=others.sensitive,
            group_values=others.group_values,
        )
        found = report.content.constraints
        assert [constraint.name for constraint in found] == [item.name for item in model.constraints_.items]
        assert len(found) == len(direct) - 1
        assert found[0].gap
        assert found[0].reached == pytest.approx(abs(direct[0].reached))
        assert [one.reached for one in found[1:]] == pytest.approx([row.reached for row in direct[2:]])
        for one, row in zip(found[1:], direct[2:], strict=True):  # simultaneous intervals contain those of one row
            assert one.low <= row.interval[0] <= row.interval[1] <= one.high
            assert (one.state == "held") == (row.gap <= 0.01)

    def test_certificates_stand_beside_measurements(self, trained):
        model, _, _, report = trained
        for row, constraint in zip(model.certificate_, report.content.constraints, strict=True):
            assert constraint.certified.reached == row.estimate
            assert constraint.certified.state == row.verdict

    def test_rates_that_a_family_compares_are_those_of_the_groups(self, trained):
        report = trained[3]
        family = report.content.families[0]
        groups = {group.name: group.rates["1"]["selection_rate"].value for group in report.content.groupings[0].groups}
        assert {value for *_, value in family.points} == set(groups.values())

    def test_rates_by_hand(self):
        truth = [1, 1, 0, 0, 1, 0]
        guess = [1, 0, 0, 1, 1, 0]
        sex = ["F", "F", "F", "M", "M", "M"]
        content = Report.from_predictions(truth, guess, {"sex": sex}).content
        assert [grouping.by for grouping in content.groupings] == [("sex",)]
        women, men = content.groupings[0].groups
        assert (women.name, women.rows, women.accuracy.value) == ("sex=F", 3, pytest.approx(2 / 3))
        found = women.rates["1"]
        assert (found["true_positive_rate"].value, found["true_positive_rate"].rows) == (0.5, 2)
        assert (found["false_positive_rate"].value, found["false_positive_rate"].rows) == (0.0, 1)
        assert (found["precision"].value, found["precision"].rows) == (1.0, 1)
        assert men.rates["1"]["selection_rate"].value == pytest.approx(2 / 3)
        assert men.rates["1"]["precision"].value == 0.5
        assert content.everyone.rows == 6

    def test_a_rate_of_no_rows_is_none(self):
        content = Report.from_predictions([1, 1, 0], [0, 0, 0], {"g": ["a", "a", "b"]}).content
        assert content.groupings[0].groups[0].rates["1"]["precision"].value is None
        assert content.groupings[0].groups[0].rates["1"]["false_positive_rate"].rows == 0

    def test_intervals_are_exact_and_hold_the_rate(self):
        # Clopper-Pearson for 8 of 10, from published tables
        truth, guess = [1] * 10 + [0] * 10, [1] * 8 + [0] * 12
        share = Report.from_predictions(truth, guess).content.everyone.rates["1"]["true_positive_rate"]
        assert share.value == 0.8
        assert (share.low, share.high) == (pytest.approx(0.44390, abs=1e-5), pytest.approx(0.97479, abs=1e-5))

    def test_calibration_by_hand(self):
        scores = np.repeat([0.05, 0.15, 0.95], [200, 100, 100])
        truth = np.r_[np.zeros(100), np.ones(100), np.zeros(100), np.ones(100)].astype(int)
        content = Report.from_predictions(truth, (scores > 0.5).astype(int), scores=scores).content
        bins = content.calibration[0].bins
        assert [(round(b.score, 3), b.observed.value, b.observed.rows) for b in bins] == [
            (0.05, 0.5, 200),
            (0.15, 0.0, 100),
            (0.95, 1.0, 100),
        ]
        assert content.calibration[0].error == pytest.approx((0.9 + 0.15 + 0.05) / 4)
        assert content.calibration[0].brier == pytest.approx((0.05**2 + 0.95**2 + 0.15**2 + 0.05**2) / 4)

    def test_calibration_needs_enough_rows(self):
        truth, guess, sensitive = people(500)
        sensitive["sex"] = np.where(np.arange(500) < 100, "F", "M")
        content = Report.from_predictions(truth, guess, sensitive, scores=0.1 + 0.8 * guess).content
        assert [each.group for each in content.calibration] == ["everyone", "sex=M"]
        few = Report.from_predictions(truth[:200], guess[:200], scores=0.1 + 0.8 * guess[:200]).content
        assert few.calibration == ()
        assert any("Calibration needs at least" in note.text for note in few.notes)

    def test_calibration_of_groups_adds_up_to_everyone(self, trained):
        content = trained[3].content
        everyone, *groups = content.calibration
        by_sex = [each for each in groups if each.by == "sex"]  # both have enough rows
        assert sum(each.rows for each in by_sex) == everyone.rows == content.rows
        weighted = sum(each.brier * each.rows for each in by_sex) / everyone.rows
        assert weighted == pytest.approx(everyone.brier)

    def test_several_classes_are_calibrated_by_their_best_guess(self):
        scores = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.1, 0.1, 0.8]] * 100)
        content = Report.from_predictions(list("abcc") * 100, list("abcc") * 100, scores=scores).content
        assert content.shown_classes == ("a", "b", "c")
        assert "predicted class" in content.score_words
        assert content.calibration[0].error == pytest.approx((0.3 + 0.2 + 0.6 + 0.2) / 4)

    def test_the_price_of_the_constraints(self, trained):
        model, plain, others, report = trained
        first, second = report.content.models
        ours, theirs = model.predict(others.X) == others.y, plain.predict(others.X) == others.y
        assert first.accuracy.value == pytest.approx(ours.mean())
        assert second.name == "without constraints"
        assert not second.private
        assert second.accuracy.value == pytest.approx(theirs.mean())


class TestSpending:
    def test_the_ledger_in_order_and_in_sum(self, trained):
        model, _, _, report = trained
        spending = report.content.spending
        assert spending.total == pytest.approx(model.privacy_.epsilon, rel=1e-9)
        assert spending.cap == 1.0
        assert [entry.purpose for entry in spending.entries] == [*model.plan_.events]
        afters = [entry.after for entry in spending.entries]
        assert afters == sorted(afters)
        assert [entry.before for entry in spending.entries] == [0.0, *afters[:-1]]
        for entry in spending.entries:
            assert entry.after - entry.before <= entry.alone + 1e-9

    def test_a_phase_that_stopped_counts_its_plan(self):
        ledger = Ledger(cap=Budget(10.0, 1e-5))
        event = TrainingEvent(0.1, 50, gradient_noise=2.0)
        with ledger.admit(event, purpose="train").phase(0) as phase:
            for _ in range(7):
                phase.step()
        spending = spending_of(ledger, 1e-5)
        assert spending.total == pytest.approx(accountant.epsilon(event, 1e-5))

    def test_many_entries_are_joined_without_losing_any(self):
        ledger = Ledger()
        for i in range(MOST_ENTRIES + 25):
            ledger.admit(GaussianEvent(noise=100.0 + i), purpose=f"release {i}")
        spending = spending_of(ledger, 1e-5)
        assert len(spending.entries) == MOST_ENTRIES
        assert spending.entries[0].before == 0.0
        assert spending.entries[0].after == spending.entries[1].before
        assert spending.entries[-1].after == spending.total == pytest.approx(ledger.total(1e-5))

    def test_without_protection_there_is_no_number(self, trained):
        _, plain, others, _ = trained
        content = Report.from_model(plain, others.X, others.y, others.sensitive).content
        assert content.spending.total is None
        assert content.statement["epsilon"] == "infinity"
        assert any("no privacy guarantee" in note.text for note in content.notes)


class TestCurves:
    def test_they_are_the_released_values(self, trained):
        model, _, _, report = trained
        curves = report.content.training.curves
        assert sorted(curve.name for curve in curves) == sorted(model.constraints_.names)
        j = model.constraints_.names.index(curves[0].name)
        excess = model.history_["values"][:, j] - model.constraints_.bounds[j]
        shown = np.array(curves[0].excess, dtype=float)
        assert np.nanmin(excess) - 1e-12 <= np.nanmin(shown)
        assert np.nanmax(shown) <= np.nanmax(excess) + 1e-12
        assert np.nanmean(shown) == pytest.approx(np.nanmean(excess), abs=0.02)

    def test_a_long_history_of_many_constraints_is_thinned(self):
        class Compiled:
            bounds = np.zeros(100)
            names = tuple(f"constraint {j}" for j in range(100))

        steps = np.arange(1, 5001)
        values = np.tile(np.linspace(-1, 1, 100), (5000, 1))
        history = {
            "step": steps,
            "gradient_norm": steps.astype(float),
            "values": values,
            "multipliers": np.zeros((5000, 100)),
        }
        training = training_of(history, Compiled())
        assert len(training.steps) == len(training.gradient_norm) == CURVE_POINTS
        assert training.steps[-1] == 5000
        assert (len(training.curves), training.left_out) == (MOST_CURVES, 100 - MOST_CURVES)
        assert training.curves[0].name == "constraint 99"

    def test_no_history_no_curves(self):
        assert training_of({}) is None


class TestPlainData:
    def test_json_and_back(self, trained):
        report = trained[3]
        again = Report.from_json(report.to_json())
        assert again.content == report.content
        assert again.to_html() == report.to_html()

    def test_json_is_strict_and_written_whole(self, trained, tmp_path):
        path = tmp_path / "report.json"
        text = trained[3].to_json(path)
        assert path.read_text(encoding="utf-8") == text
        json.loads(text, parse_constant=pytest.fail)
        assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda d: d.pop("constraints"), "fields"),
            (lambda d: d.update(more=1), "fields"),
            (lambda d: d.update(format="other"), "format"),
            (lambda d: d.update(version_of_format=1), "version"),
            (lambda d: d["constraints"][0].update(upper="0.05"), "constraints"),
            (lambda d: d.update(rows=True), "rows"),
            (lambda d: d.update(classes="ab"), "classes"),
            (lambda d: d["training"]["steps"].append("one"), "training.steps"),
        ],
    )
    def test_foreign_json_is_refused(self, trained, change, said):
        description = json.loads(trained[3].to_json())
        change(description)
        with pytest.raises(InvalidInput, match=said):
            Report.from_json(json.dumps(description))

    def test_what_is_no_json_is_refused(self):
        with pytest.raises(InvalidInput, match="JSON"):
            Report.from_json("{")
        with pytest.raises(InvalidType, match="JSON"):
            Report.from_json(3)
        with pytest.raises(InvalidType, match="mapping"):
            Report.from_json("[]")
        with pytest.raises(InvalidType, match="content"):
            Report({})

    def test_no_field_holds_a_row(self, trained):
        """What is kept is counts and rates: nothing in it has one entry per row."""
        content = trained[3].content

        def longest(value):
            if dataclasses.is_dataclass(value):
                return max(longest(getattr(value, f.name)) for f in dataclasses.fields(value))
            if isinstance(value, tuple | list | dict):
                items = value.values() if isinstance(value, dict) else value
                return max([len(value), *map(longest, items)], default=0)
            return 0

        assert longest(content) < 300 < content.rows


class TestBadInput:
    def test_scores_that_are_no_probabilities(self):
        truth, guess, sensitive = people()
        for scores in (guess * 3.0, np.full(len(guess), np.nan), np.full(len(guess), -0.1)):
            with pytest.raises(InvalidInput, match="scores must be probabilities"):
                Report.from_predictions(truth, guess, sensitive, scores=scores)
        with pytest.raises(InvalidInput, match="scores must have"):
            Report.from_predictions(truth, guess, sensitive, scores=np.ones((3, 2)))
        with pytest.raises(InvalidType, match="scores must be numbers"):
            Report.from_predictions(truth, guess, sensitive, scores=["a"] * len(truth))

    def test_wrong_lengths_and_names(self):
        truth, guess, sensitive = people()
        with pytest.raises(InvalidInput, match="y_pred must have one entry per row"):
            Report.from_predictions(truth, guess[:-1], sensitive)
        with pytest.raises(InvalidInput, match="race"):
            Report.from_predictions(truth, guess, sensitive, demographic_parity("race", max_gap=0.1))
        with pytest.raises(InvalidInput, match="must have one entry per row"):
            Report.from_predictions(truth, guess, sensitive, baseline=guess[:-1])
        with pytest.raises(InvalidType, match="by must list"):
            Report.from_predictions(truth, guess, sensitive, by=[3])
        with pytest.raises(InvalidInput, match="title"):
            Report.from_predictions(truth, guess, sensitive, title=" ")
        with pytest.raises(InvalidInput, match="confidence"):
            Report.from_predictions(truth, guess, sensitive, rate(1) <= 0.5, confidence=1.0)

    def test_a_baseline_must_predict(self, trained):
        model, _, others, _ = trained
        with pytest.raises(InvalidType, match="baseline"):
            Report.from_model(model, others.X, others.y, others.sensitive, baseline=3)


class TestAnyPredictions:
    def test_columns_that_nobody_asked_about_are_not_looked_at(self):
        truth, guess, sensitive = people()
        table = {**sensitive, "id": [None] * len(truth)}
        content = Report.from_predictions(truth, guess, table, demographic_parity("sex", max_gap=0.2)).content
        assert [grouping.by for grouping in content.groupings] == [("sex",)]

    def test_crossed_families_show_crossed_groups(self):
        truth, guess, sensitive = people()
        table = {**sensitive, "age": np.where(np.arange(len(truth)) % 3, "old", "young")}
        family = demographic_parity("sex", "age", max_gap=0.2)
        content = Report.from_predictions(truth, guess, table, family).content
        assert [grouping.by for grouping in content.groupings] == [("sex",), ("age",), ("sex", "age")]
        assert len(content.groupings[2].groups) == 4
        chosen = Report.from_predictions(truth, guess, table, family, by=["age", ("age", "sex")]).content
        assert [grouping.by for grouping in chosen.groupings] == [("age",), ("age", "sex")]

    def test_numeric_columns_have_constraints_but_no_list_of_groups(self):
        truth, guess, sensitive = people()
        table = {**sensitive, "age": np.linspace(18, 90, len(truth))}
        constraint = rate(1, where=group(age=below(30))) <= 0.9
        content = Report.from_predictions(truth, guess, table, [constraint, demographic_parity("sex", max_gap=0.5)])
        assert [grouping.by for grouping in content.content.groupings] == [("sex",)]
        assert len(content.content.constraints) == 2

    def test_frames_and_text_labels(self):
        pandas = pytest.importorskip("pandas")
        truth, guess, sensitive = people()
        names = np.array(["no", "yes"])
        frame = pandas.DataFrame(sensitive)
        family = demographic_parity("sex", max_gap=0.2)
        plain = Report.from_predictions(truth, guess, sensitive, family).content
        framed = Report.from_predictions(
            pandas.Series(names[truth]), pandas.Series(names[guess]), frame, family
        ).content
        assert framed.classes == ("no", "yes")
        assert [constraint.reached for constraint in framed.constraints] == [
            constraint.reached for constraint in plain.constraints
        ]

    def test_a_foreign_model(self):
        sklearn = pytest.importorskip("sklearn.linear_model")
        rows = census_like(500, random_state=0)
        model = sklearn.LogisticRegression(max_iter=2000).fit(rows.X / 100, rows.y)
        report = Report.from_model(model, rows.X / 100, rows.y, rows.sensitive)
        assert report.content.model == "LogisticRegression"
        assert report.content.statement is None
        assert report.content.calibration
        assert "Assume they were not" in report.to_html()

    def test_no_constraints_no_groups(self):
        truth, guess, _ = people()
        content = Report.from_predictions(truth, guess).content
        assert isinstance(content, Content)
        assert (content.constraints, content.groupings) == ((), ())
        assert content.state == "none"


def test_nothing_is_left_of_a_page_that_could_not_be_written(trained, tmp_path, monkeypatch):
    report, path = trained[3], tmp_path / "page.html"
    path.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        report.to_html(path)
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(FileNotFoundError):
        report.to_html(tmp_path / "no such folder" / "page.html")


def test_repr_says_how_many(trained):
    report = trained[3]
    counts = report.content.counts
    assert repr(report) == (
        f"<Report: {counts['held']} constraints held, {counts['missed']} missed, "
        f"{counts['cannot tell']} cannot tell, on {report.content.rows:,} rows>"
    )
    assert report.headline in str(report)


def test_words_of_privacy_give_the_factor_of_the_definition(trained):
    model, _, _, report = trained
    factor = float(re.search(r"at most ([\d.]+) times the probability", " ".join(report.content.words))[1])
    assert math.exp(model.privacy_.epsilon) <= factor <= math.exp(model.privacy_.epsilon) * 1.001
    assert "plus 1e-05" in " ".join(report.content.words)


def test_families_are_shown_as_text_that_can_be_copied():
    from ratewise import demographic_parity, false_negative_rate
    from ratewise.constraints.text import parse_constraint
    from ratewise.report import Report

    asked = [demographic_parity("my sex", max_gap=0.1), false_negative_rate(0.5, "yes", by=("my sex", "race"))]
    people = {"my sex": ["F", "F", "M", "M"], "race": ["A", "B", "A", "B"]}
    truth, guess = ["no", "yes", "no", "yes"], ["no", "yes", "yes", "no"]
    report = Report.from_predictions(truth, guess, people, asked)
    assert [parse_constraint(family.name) for family in report.content.families] == asked


def test_remedies_are_merged():
    """Equal messages about several constraints are one note."""
    rows = census_like(2000, random_state=0)
    model = RateConstrainedClassifier(false_negative_rate(0.05, by="region"), random_state=0)
    model.fit(rows.X, rows.y, sensitive_features=rows.sensitive)
    assert sum(bool(row.remedy) for row in model.certificate_) == 4
    content = model.report(rows.X, rows.y, sensitive_features=rows.sensitive).content
    texts = [note.text for note in content.notes if note.kind == "certificate"]
    assert len(texts) == len(set(texts))
    for row in model.certificate_:
        assert any(row.remedy in text for text in texts)
        assert sum(row.remedy in text for text in texts) == 1


def test_the_first_screen_says_what_is_predicted_for_whom_and_from_what():
    pandas = pytest.importorskip("pandas")
    rows = census_like(2000, random_state=0)
    frame = rows.frame()
    model = RateConstrainedClassifier(demographic_parity("sex", max_gap=0.1), random_state=0)
    features = frame.drop(columns=["income", "region"])
    model.fit(features, frame["income"], sensitive_features=frame[["sex"]])
    report = model.report(
        features, frame["income"], sensitive_features=frame[["sex"]], title="Who earns much?", data="people.csv"
    )
    about = {entry.kind: entry.text for entry in report.content.about}
    assert about["Predicted"].startswith("income: 0, 1, from 17 features (age, ")
    assert about["Groups"] == "sex (Female, Male)"
    assert about["Measured on"] == "2,000 rows of people.csv; the model was trained on 2,000 rows"
    assert about["Constraints"] == "Female and Male are predicted '1' at rates that differ by at most 10 points."
    assert report.content.title == "Who earns much?"
    assert isinstance(frame, pandas.DataFrame)


def test_unknown_labels_are_left_out_and_unknown_groups_are_other_values():
    """As in `evaluate`: the accuracy of the page is that of the certificate."""
    rows = census_like(2000, random_state=0)
    model = RateConstrainedClassifier(demographic_parity("sex", max_gap=0.1), random_state=0)
    model.fit(rows.X, rows.y, sensitive_features=rows.sensitive)
    sex, y = rows.sensitive["sex"].astype(object), rows.y.astype(object)
    sex[:10], y[10:15] = "unknown", "maybe"
    report = model.report(rows.X, y, sensitive_features={"sex": sex})
    assert report.content.rows == 1995
    assert any(note.text.startswith("5 rows") for note in report.content.notes)
    (grouping,) = report.content.groupings
    assert {group.name: group.rows for group in grouping.groups}["sex=other values"] == 10
    assert "other values" not in report.content.families[0].words
    values = model.constraints_.domain.columns
    found = evaluate(
        model.constraints,
        y,
        model.predict(rows.X),
        sensitive_features={"sex": sex},
        classes=[0, 1],
        group_values=values,
    )
    assert report.content.everyone.accuracy.value == pytest.approx(found.accuracy.value)


def test_shapes_are_those_of_the_model_most_important_first():
    rows = census_like(3000, random_state=0)
    model = RateConstrainedClassifier(random_state=0, feature_bounds=rows.feature_bounds).fit(rows.X, rows.y)
    shapes = model.report(rows.X, rows.y).content.shapes
    assert [shape.importance for shape in shapes] == sorted((s.importance for s in shapes), reverse=True)
    assert {shape.feature: shape.importance for shape in shapes} == {
        name: value for name, value in model.feature_importances().items() if value > 0
    }
    for shape in shapes:
        own = next(s for s in model.shape_functions() if s.feature == shape.feature)
        assert len(shape.edges) == len(shape.values) + 1 <= 102
        assert own.edges[0] <= shape.edges[0] < shape.edges[-1] <= own.edges[-1]
        assert min(own.values) - 1e-9 <= min(shape.values) <= max(shape.values) <= max(own.values) + 1e-9
        assert all(low <= value <= high for low, value, high in zip(shape.low, shape.values, shape.high, strict=True))


def test_one_is_not_many():
    assert counted(1, "more group") == "1 more group"
    assert counted(1200, "more group") == "1,200 more groups"


def test_labels_and_values_are_called_as_in_the_schema():
    rng = np.random.default_rng(0)
    rows = 1200
    pandas = pytest.importorskip("pandas")
    race, job, x = rng.integers(1, 4, rows), rng.integers(1, 3, rows), rng.normal(size=rows)
    frame = pandas.DataFrame({"x": x, "JOB": job, "RAC1P": race})
    y = pandas.Series((x + (job == 2) > 0.5).astype(int), name="ESR")
    schema = Schema(
        {"x": Number(-4, 4), "JOB": Category([1, 2], labels={2: "nurse"})},
        label="ESR",
        classes=[0, 1],
        class_labels={1: "employed"},
        title="employment",
        groups={"RAC1P": Category([1, 2, 3], labels={3: "American Indian"})},
    )
    model = RateConstrainedClassifier(
        demographic_parity("RAC1P", max_gap=0.1), epsilon=None, schema=schema, random_state=0
    )
    model.fit(frame[["x", "JOB"]], y, sensitive_features=frame[["RAC1P"]])
    report = model.report(frame[["x", "JOB"]], y, sensitive_features=frame[["RAC1P"]])
    content = report.content
    assert content.title == "Prediction of employment"
    assert content.classes == ("0", "1: employed")
    about = {entry.kind: entry.text for entry in content.about}
    assert about["Predicted"].startswith("employment: 0, 1: employed")
    assert about["Groups"] == "RAC1P (1, 2, 3: American Indian)"
    assert [group.name for group in content.groupings[0].groups][-1] == "RAC1P = 3: American Indian"
    words = [one.words for one in content.constraints]
    assert any("RAC1P = 3: American Indian" in sentence for sentence in words)
    assert all("'1: employed'" in sentence for sentence in words)
    assert any("2: nurse" in shape.labels for shape in content.shapes)
    assert Report.from_json(report.to_json()).content == content
    assert "RAC1P = 3: American Indian" in report.to_html()
