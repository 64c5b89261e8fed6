"""A small share of the fuzzing of public entry points; the long run is ``python tests/fuzz/run.py``.

Beside it: nothing public is left out.
"""

import ast
import dataclasses
import importlib
import inspect
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ratewise import RateConstrainedClassifier
from ratewise.accounting import Ledger, PrivacyCurve, TrainingEvent
from ratewise.accounting.events import as_events

FOLDER = Path(__file__).parents[1] / "fuzz"
sys.path.append(str(FOLDER))
entry_points = importlib.import_module("entry_points")

FEW = {
    **dict.fromkeys(("calibration", "selection", "resumed_run"), 5),
    **dict.fromkeys(
        ("accounting", "ledger", "commands", "fit", "parameters", "evaluation", "postprocess", "torch_fit"), 12
    ),
}


def fed(target, inputs, **options):
    """Return a test that feeds a target the same inputs every time; new ones are for the long run."""

    @settings(max_examples=inputs, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), **options)
    @given(data=st.data())
    def feed(data):
        entry_points.survive(target, data.draw)

    return feed


@pytest.mark.parametrize("name", entry_points.TARGETS)
def test_no_crash_no_foreign_exception(name):
    target, _ = entry_points.TARGETS[name]
    fed(target, FEW.get(name, 30))()


def test_a_foreign_exception_would_be_seen():
    def broken(draw):
        return [][draw(st.integers(0, 3))]

    @settings(max_examples=5, deadline=None, database=None)
    @given(data=st.data())
    def feed(data):
        entry_points.survive(broken, data.draw)

    with pytest.raises(IndexError):
        feed()


def halved(event):
    """Return a phase of training with half its steps; other events as they are."""
    return event.with_steps(-(-event.steps // 2)) if isinstance(event, TrainingEvent) else event


def rarer(event):
    """Return a phase of training whose sampling rate is a tenth too small; other events as they are."""
    if not isinstance(event, TrainingEvent):
        return event
    return dataclasses.replace(event, sampling_rate=0.9 * event.sampling_rate)


@pytest.mark.parametrize("broken", ["two percent low", "half the steps", "rarer rows"])
def test_an_accountant_below_the_truth_would_be_seen(broken, monkeypatch):
    """Power of "no ledger below the truth": the accountant is off by little, and so is all that uses it."""
    change = {"half the steps": halved, "rarer rows": rarer}.get(broken, lambda event: event)
    build, read = PrivacyCurve.__init__, PrivacyCurve.epsilon

    def wrong_events(self, events, *arguments, **options):
        build(self, [change(event) for event in as_events(events)], *arguments, **options)

    def wrong_answer(self, *asked):
        return read(self, *asked) * (0.98 if broken == "two percent low" else 1.0)

    monkeypatch.setattr(PrivacyCurve, "__init__", wrong_events)
    monkeypatch.setattr(PrivacyCurve, "epsilon", wrong_answer)
    feed = fed(entry_points.accounting.fuzz_ledger, 200, phases=[Phase.generate])
    with pytest.raises(AssertionError, match="is stated, the truth is at least"):
        feed()


def test_a_ledger_that_forgets_an_entry_would_be_seen(monkeypatch):
    sound = Ledger._epsilon

    def forgetful(self, events, delta):
        return sound(self, events[1:], delta)

    monkeypatch.setattr(Ledger, "_epsilon", forgetful)
    with pytest.raises(AssertionError):
        fed(entry_points.accounting.fuzz_ledger, 60, phases=[Phase.generate])()


MODULES = [
    *("ratewise", "ratewise.accounting", "ratewise.audit", "ratewise.datasets", "ratewise.estimators.evaluation"),
    *("ratewise.constraints.text", "ratewise.metrics", "ratewise.report", "ratewise.data.schema", "ratewise.torch"),
    *("ratewise.estimators.search", "ratewise.estimators.persistence"),
]
# records that the library makes and people only read; loaders are fed by way of LOADERS
READ_ONLY = {
    "ClassRates",
    "GroupRates",
    "GroupRow",
    "RateReport",
    "RateRow",
    "Estimate",
    "Certificate",
    "CertificateRow",
}
READ_ONLY |= {"Images", "Table", "Subject", "Column"}
# sizes are those of ResNet, whose arguments are fed; it is too large to be built a thousand times
READ_ONLY |= {"resnet16"}


def _made_in(module, name, value):
    return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__


def public_names():
    """Yield every public function and class, errors and warnings left out."""
    for module in map(importlib.import_module, MODULES):
        own = [name for name, value in vars(module).items() if _made_in(module, name, value)]
        for name in getattr(module, "__all__", own):
            value = getattr(module, name)
            ours = getattr(value, "__module__", "").startswith("ratewise")
            error = inspect.isclass(value) and issubclass(value, BaseException)
            if ours and callable(value) and not error:
                yield name


def used_names():
    """Return every name that the fuzzing uses."""
    trees = [ast.parse(path.read_text()) for path in FOLDER.glob("fuzz_*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} | {
        node.id for node in nodes if isinstance(node, ast.Name)
    }


def test_no_public_name_is_left_out():
    named = {name for name in public_names() if not name.startswith("load_")} - READ_ONLY
    behind = {"save", "load"}  # of to_bytes and from_bytes
    behind |= {"to_onnx", "to_sql"}  # of models that were fitted
    assert sorted(named - used_names() - behind) == []


def test_every_command_and_every_kind_of_file_is_fed():
    from ratewise.cli.app import COMMANDS

    source = inspect.getsource(entry_points.commands.fuzz_commands)
    assert all(f'"{name}": [' in source for name in COMMANDS)
    files = {"ledger_file", "model_file", "checkpoint_file", "torch_checkpoint", "schema_file", "report_file"}
    assert files | {"statement_file", "run_folder"} <= set(entry_points.TARGETS)


def test_no_parameter_of_a_fit_is_left_out():
    fed_ones = importlib.import_module("fuzz_rows").PARAMETERS
    assert fed_ones.keys() == RateConstrainedClassifier().get_params().keys()
