"""What is shown as a plan before rows are read is what runs, for tables and for rehearsals."""

import dataclasses
import warnings

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier
from ratewise.cli import rehearsal
from ratewise.defaults import PublicFacts
from ratewise.domain import Domain
from ratewise.exceptions import RatewiseWarning
from ratewise.partition import compile_constraints
from ratewise.plan import Plan
from ratewise.runs import Settings, facts_of, plan_run
from ratewise.schema import Category, Number, Schema
from ratewise.table_model import TableClassifier

NARROW = {"age": Number(0, 99), "job": Category(["clerk", "sales"])}
WIDE = {"age": Number(0, 99), "town": Category([str(town) for town in range(300)])}
SETTINGS = Settings(label="rich", groups=("sex",), constraints=("demographic_parity(sex) <= 0.1",), steps=3)


@pytest.mark.parametrize("rows", [40, 600])
@pytest.mark.parametrize(("columns", "measured"), [(NARROW, True), (WIDE, False)])
def test_a_table_is_trained_as_its_schema_lets_expect(columns, measured, rows):
    """Dense tables are standardised however few their rows; wide ones, which are sparse, are not."""
    rng = np.random.default_rng(0)
    schema = Schema(columns, label="rich", classes=[0, 1], groups={"sex": Category(["F", "M"])}).sign()
    frame = {
        name: rng.uniform(0, 99, rows) if isinstance(column, Number) else rng.choice(column.values, rows)
        for name, column in columns.items()
    }
    frame |= {"sex": rng.choice(["F", "M"], rows), "rich": np.arange(rows) % 2}
    planned = plan_run(facts_of(schema, SETTINGS, rows), SETTINGS)
    assert (planned.preparation is not None) == measured
    model = TableClassifier(schema, SETTINGS.declared, steps=3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatewiseWarning)
        assert model.fit(frame).plan_ == planned


GIVEN = {
    "neighbours": "zero_out", "steps": 7, "sampling_rate": 0.3, "clip": 0.7, "row_norm": 1.5,
    "learning_rate": 0.4, "schedule": "constant", "momentum": 0.2, "averaging": "none",
    "histogram": "laplace", "noise": "continuous", "temperature": 1.7, "rates": "soft", "l1": 0.03,
    "l2": 0.02,
}  # fmt: skip


def test_every_setting_reaches_the_plan():
    domain = Domain(range(2), {"sex": ["F", "M"]})
    constraints = compile_constraints(SETTINGS.declared, domain)
    facts = PublicFacts(n_rows=300, n_features=4, n_classes=2, constraints=constraints)
    asked = dataclasses.replace(SETTINGS, **GIVEN)
    plan = plan_run(facts, asked)
    of_plans = {field.name for field in dataclasses.fields(Plan)}
    assert {name for name in GIVEN if name in of_plans} == {
        field.name for field in dataclasses.fields(Settings) if field.name in of_plans
    }
    assert {name: getattr(plan, name) for name in GIVEN if name in of_plans} == {
        name: value for name, value in GIVEN.items() if name in of_plans
    }


def test_every_setting_is_rehearsed():
    # read elsewhere, or of no use to made-up rows
    read = {"label", "groups", "constraints", "epsilon", "unit", "leave_out", "curves", "tails"}
    apart = {"clip", "row_norm", "standardise"}  # None means another thing to the classifier
    fields = {field.name for field in dataclasses.fields(Settings)}
    assert set(rehearsal._PASSED_ON) == fields - read - apart


@pytest.mark.parametrize(
    ("rows", "bounded", "sparse", "standardised"),
    [
        (600, True, False, True),
        (300, True, False, True),
        (300, False, False, False),
        (300, True, True, False),
        (2000, True, True, True),
        (2000, False, False, True),
        (2000, False, True, True),
    ],
)
def test_a_rehearsal_runs_the_plan_that_is_shown(monkeypatch, rows, bounded, sparse, standardised):
    domain = Domain(range(2), {"sex": ["F", "M"]})
    constraints = compile_constraints(SETTINGS.declared, domain)
    facts = PublicFacts(
        n_rows=rows,
        n_features=4,
        n_classes=2,
        constraints=constraints,
        n_kinds=2 if rows == 600 else 1,
        bounded=bounded,
        sparse=sparse,
    )
    ran = []

    class Watched(RateConstrainedClassifier):
        def fit(self, *args, **options):
            ran.append(super().fit(*args, **options).plan_)
            return self

    monkeypatch.setattr(rehearsal, "RateConstrainedClassifier", Watched)
    rehearsal.rehearse(facts, SETTINGS, domain)
    shown = plan_run(facts, SETTINGS)
    assert (shown.preparation is not None) == standardised
    assert shown.preparation is None or shown.preparation.sized != bounded
    assert ran[0] == shown
    assert not ran[1].private
