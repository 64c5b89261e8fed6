"""The plan in words names the numbers that run."""

import pytest

from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.datasets import census_like
from ratewise.defaults import PublicFacts, plan_for
from ratewise.explanation import explain

PEOPLE = census_like(3000, random_state=0)


def fitted(**changes):
    public = {"classes": PEOPLE.classes, "group_values": PEOPLE.group_values, "random_state": 0}
    model = RateConstrainedClassifier(demographic_parity("sex", max_gap=0.1), **public, **changes)
    return model.fit(PEOPLE.X, PEOPLE.y, sensitive_features=PEOPLE.sensitive)


def test_every_number_of_the_plan_is_said():
    model = fitted(steps=20)
    said, plan = model.explain(), model.plan_
    numbers = (
        plan.n_rows,
        plan.steps,
        f"{plan.gradient_noise:.4g}",
        f"{plan.histogram_noise:.4g}",
        f"{plan.clip:.3g}",
        f"{plan.learning_rate:g}",
    )
    for number in numbers:
        assert str(number) in said
    assert "hard predictions" in said
    assert "known better by all histograms than by one" in " ".join(said.split())


def test_a_penalty_is_said_where_there_is_one():
    noisy, calm = (
        plan_for(PublicFacts(n_rows=n, n_features=9, n_classes=2), epsilon=1.0, delta=1e-6)
        for n in (500, 500_000)
    )
    assert f"penalty of {noisy.l1:.2g} on their size" in explain(noisy).replace("\n    ", " ")
    assert "penalty" not in explain(calm)


@pytest.mark.filterwarnings("ignore:not to be relied on")  # five steps reach no limit
def test_without_privacy_it_says_so():
    said = fitted(epsilon=None, steps=5).explain()
    assert "this training has no guarantee" in said
    assert "gradient noise" not in said


@pytest.mark.parametrize(
    ("n", "d", "classes", "epsilon"),
    [(500, 5, 2, 0.05), (10_000_000, 50, 20, 10.0), (20_000, 10_000, 3, None), (2000, 30, 5, 1.0)],
)
def test_plans_of_all_sizes_have_words(n, d, classes, epsilon):
    facts = PublicFacts(n_rows=n, n_features=d, n_classes=classes)
    plan = plan_for(facts, epsilon=epsilon, delta=1e-8)
    lines = explain(plan).splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= 110
