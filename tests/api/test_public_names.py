"""The public surface, on purpose: names, order and signatures that others rely on."""

import dataclasses
import inspect
import types

import pytest

import ratewise
import ratewise.accounting
import ratewise.metrics
from ratewise import RateConstrainedClassifier, everyone
from ratewise.accounting import TrainingEvent


@pytest.mark.parametrize("module", [ratewise, ratewise.accounting], ids=lambda module: module.__name__)
class TestNamespaces:
    def test_list_is_sorted_and_says_each_name_once(self, module):
        assert module.__all__ == sorted(set(module.__all__))

    def test_list_and_namespace_agree(self, module):
        assert set(module.__all__) <= set(dir(module))
        for name in module.__all__:  # some are imported on first use
            getattr(module, name)
        found = {
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and not isinstance(value, types.ModuleType)
        }
        # `delta`, `epsilon` and the like are functions; rooms are modules and are no names of the package
        assert found == set(module.__all__)

    def test_star_import_gives_just_that(self, module):
        names: dict = {}
        exec(f"from {module.__name__} import *", names)
        assert set(names) - {"__builtins__"} == set(module.__all__)

    def test_every_name_is_documented(self, module):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                assert inspect.getdoc(value), name


def shape(function):
    """Return the parameters of a function as (name, kind, default)."""
    return [
        (parameter.name, parameter.kind.name, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


EMPTY = inspect.Parameter.empty
PLAIN, NAMED = "POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY"
STAR, STARS = "VAR_POSITIONAL", "VAR_KEYWORD"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (ratewise.group, [("values", STARS, EMPTY)]),
        (ratewise.label, [("values", STAR, EMPTY)]),
        (ratewise.rate, [("k", PLAIN, EMPTY), ("where", PLAIN, everyone), ("out_of", PLAIN, None)]),
        (ratewise.demographic_parity, [("columns", STAR, EMPTY), ("max_gap", NAMED, EMPTY), ("versus", NAMED, "rest")]),
        (ratewise.equalized_odds, [("columns", STAR, EMPTY), ("max_gap", NAMED, EMPTY), ("versus", NAMED, "rest")]),
        (ratewise.equal_opportunity, [("columns", STAR, EMPTY), ("max_gap", NAMED, EMPTY), ("positive", NAMED, 1)]),
        (ratewise.false_negative_rate, [("max_rate", PLAIN, EMPTY), ("positive", PLAIN, 1), ("by", PLAIN, ())]),
        (ratewise.false_positive_rate, [("max_rate", PLAIN, EMPTY), ("positive", PLAIN, 1), ("by", PLAIN, ())]),
        (ratewise.positive_rate, [("min_rate", PLAIN, None), ("max_rate", PLAIN, None), ("by", PLAIN, ())]),
        (
            ratewise.accounting.epsilon,
            [("events", PLAIN, EMPTY), ("delta", PLAIN, EMPTY), ("neighbours", PLAIN, "add_or_remove")],
        ),
        (
            ratewise.accounting.delta,
            [("events", PLAIN, EMPTY), ("epsilon", PLAIN, EMPTY), ("neighbours", PLAIN, "add_or_remove")],
        ),
        (
            ratewise.accounting.calibrate,
            [
                *((name, PLAIN, EMPTY) for name in ("epsilon", "delta", "sampling_rate", "steps")),
                ("histogram", PLAIN, "gaussian"),
                ("histogram_share", PLAIN, 0.1),
            ],
        ),
        (
            TrainingEvent,
            [
                *((name, PLAIN, EMPTY) for name in ("sampling_rate", "steps", "gradient_noise")),
                ("histogram_noise", PLAIN, None),
                ("histogram", PLAIN, "gaussian"),
            ],
        ),
        (RateConstrainedClassifier.predict, [("self", PLAIN, EMPTY), ("X", PLAIN, EMPTY)]),
        (RateConstrainedClassifier.predict_proba, [("self", PLAIN, EMPTY), ("X", PLAIN, EMPTY)]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_promised_signatures_are_kept(function, expected):
    """In this order and with these defaults; more parameters may follow or, by name, stand between."""
    found = shape(function)
    assert [parameter for parameter in found if parameter in expected] == expected
    fixed = [parameter[0] for parameter in expected if parameter[2] is EMPTY and parameter[1] == PLAIN]
    assert [parameter[0] for parameter in found][: len(fixed)] == fixed
    promised = {name for name, _, _ in expected}
    assert all(default is not EMPTY for name, _, default in found if name not in promised)


def test_the_classifier():
    parameters = shape(RateConstrainedClassifier)
    assert parameters[0] == ("constraints", PLAIN, None)
    assert all(kind == NAMED for _, kind, _ in parameters[1:])
    defaults = {name: default for name, _, default in parameters}
    assert {name: defaults[name] for name in ("epsilon", "delta", "random_state")} == {
        "epsilon": 1.0,
        "delta": None,
        "random_state": None,
    }
    assert shape(RateConstrainedClassifier.fit)[1:] == [
        ("X", PLAIN, EMPTY),
        ("y", PLAIN, EMPTY),
        ("sensitive_features", NAMED, None),
        ("privacy_ids", NAMED, None),
        ("sample_weight", NAMED, None),
    ]
    assert callable(RateConstrainedClassifier.score)
    assert callable(RateConstrainedClassifier.save)
    assert callable(ratewise.load)


def test_every_parameter_of_the_classifier_is_documented():
    words = inspect.getdoc(RateConstrainedClassifier)
    for name, _, _ in shape(RateConstrainedClassifier):
        assert f"{name}" in words.partition("Attributes")[0].partition("Parameters")[2], name


def test_noise_is_a_field_of_a_calibration():
    found = ratewise.accounting.calibrate(1.0, 1e-5, 0.1, 10)
    assert found.gradient_noise > 0
    assert found.histogram_noise > 0
    ratio = (found.histogram_noise / found.gradient_noise) ** 2
    assert ratio == pytest.approx(0.9 / 0.1)


def test_an_event_takes_no_more_than_numbers_and_a_word():
    names = [field.name for field in dataclasses.fields(TrainingEvent)]
    assert names == ["sampling_rate", "steps", "gradient_noise", "histogram_noise", "histogram"]


def test_rows_of_a_rate_report():
    parity = ratewise.demographic_parity("sex", max_gap=0.4)
    report = ratewise.metrics.rate_report(
        parity, [0, 1, 0, 1], [0, 1, 1, 1], sensitive_features={"sex": ["F", "F", "M", "M"]}
    )
    for row in report:
        assert {"name", "reached", "bound", "interval", "holds"} <= set(dir(row))
    assert [abs(row.reached) for row in report] == pytest.approx([0.5, 0.5])
    assert [abs(row.bound) for row in report] == [0.4, 0.4]
    assert sorted(row.holds for row in report) == [False, True]
