"""Numbers that formulas of the theory cannot be worked out for, and records that are none: our own errors."""

import math

import pytest

from ratewise.accounting import theory
from ratewise.exceptions import InvalidInput, InvalidType

MODEL = theory.linear_softmax(1.0)
STATIONARITY = {
    "steps": 10,
    "step_sizes": theory.StepSizes(0.1, 0.1),
    "lipschitz": 1.0,
    "smoothness": 1.0,
    "multiplier_radius": 1.0,
    "errors": theory.GradientErrors(0.5, 0.5),
    "envelope_gap": 1.0,
    "lagrangian_rise": 1.0,
}


@pytest.mark.parametrize(
    ("formula", "arguments", "name"),
    [
        (theory.rate_lipschitz, (None, 1.0), "model must be a ModelRegularity"),
        (theory.rate_smoothness, (0, 1.0), "model must be a ModelRegularity"),
        (theory.RateProblem, (9, 3, 1, 2, 4, 1.0, 2.0, None), "model must be a ModelRegularity"),
    ],
)
def test_a_record_of_another_kind_is_named(formula, arguments, name):
    with pytest.raises(InvalidType, match=name):
        formula(*arguments)


def test_a_problem_or_errors_of_another_kind_are_named():
    options = {"epsilon": 1.0, "delta": 0.1, "failure": 0.1, "envelope_gap": 1.0, "lagrangian_rise": 1.0}
    with pytest.raises(InvalidType, match="problem must be a RateProblem, got NoneType"):
        theory.convergence_plan(None, **options)
    noise = {"sampling_rate": 0.5, "gradient_std": 1.0, "laplace_scale": 1.0, "failure": 0.5}
    with pytest.raises(InvalidType, match="problem must be a RateProblem"):
        theory.gradient_errors(None, **noise)
    for name in ("step_sizes", "errors"):
        with pytest.raises(InvalidType, match=f"{name} must be a "):
            theory.sgda_stationarity(**{**STATIONARITY, name: None})
    few = {name: STATIONARITY[name] for name in ("steps", "lipschitz", "smoothness", "envelope_gap")}
    with pytest.raises(InvalidType, match="errors must be a GradientErrors"):
        theory.sgda_step_sizes(**few, errors=None)


@pytest.mark.parametrize(
    "formula",
    [
        lambda: theory.softmax_smoothness(1e308),
        lambda: theory.linear_softmax(1e308),
        lambda: theory.rate_smoothness(theory.ModelRegularity(1e308, 1e308, 1.0, 1.0), 1e-308),
        lambda: theory.subsample_rate_error(1e308, 1e-308),
        lambda: theory.sgda_stationarity(**{**STATIONARITY, "step_sizes": theory.StepSizes(1e-300, 1e-300)}),
        lambda: theory.sgda_step_sizes(
            steps=1, lipschitz=1.0, smoothness=1.0, errors=theory.GradientErrors(1.0, 1e-300), envelope_gap=1.0
        ),
    ],
    ids=["overflow", "square", "undetermined", "zero over zero", "no whole number", "zero denominator"],
)
def test_numbers_beyond_floating_point_are_refused(formula):
    with pytest.raises(InvalidInput, match="too large or too small for floating point"):
        formula()


def test_an_infinite_bound_is_an_answer():
    problem = theory.RateProblem(10, 10, 10, 2, 4, 1.0, 2.0, MODEL)
    found = theory.gradient_errors(problem, sampling_rate=0.5, gradient_std=1, laplace_scale=9, failure=0.1)
    assert found.primal == found.dual == math.inf
