"""Watching a run: bars in terminal and notebook, MLflow and TensorBoard; released values and nothing else."""

import io
import sys
import types

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier, TrainingConfig, demographic_parity
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.training.callbacks import (
    Line,
    MLflowCallback,
    Moment,
    Output,
    Progress,
    TensorBoardCallback,
    find_screen,
    scalars,
)
from ratewise.training.loop import StepRecord


def record(step, values=(0.25, -0.5)):
    return StepRecord(step, 1.5, None, np.array(values), np.array([2.0, 0.0]))


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Screen:
    seconds = 0.5

    def __init__(self):
        self.shown, self.ended = [], False

    def show(self, moment):
        self.shown.append(moment)

    def end(self):
        self.ended = True


def session(steps=10):
    gap = types.SimpleNamespace(is_gap=True, gap=lambda values: abs(values[0]))
    plan = types.SimpleNamespace(steps=steps, private=True, epsilon=1.0)
    return types.SimpleNamespace(plan=plan, compiled=types.SimpleNamespace(items=[gap]))


def moment(step, left=None):
    return Moment(step, 10, 1.0, 1.5, 0.25, left)


class TestProgress:
    def test_first_and_last_step_are_always_shown_with_what_was_released(self):
        screen = Screen()
        with Progress(session(), screen) as progress:
            for step in range(1, 11):
                progress.show(record(step))
        assert screen.shown == [moment(1), moment(10, 0.0)]
        assert str(screen.shown[1]) == "step 10/10, 0 s left, largest gap 0.250, epsilon 1.000, gradient 1.5"
        assert screen.ended

    def test_no_time_left_is_shown_before_there_is_a_pace(self, monkeypatch):
        clock = [0.0]
        monkeypatch.setattr("time.monotonic", lambda: clock[0])
        screen = Screen()
        with Progress(session(), screen) as progress:
            for step in range(1, 11):
                clock[0] += 60.0 if step == 1 else 1.0
                progress.show(record(step))
        assert screen.shown == [moment(1), *(moment(step, 10.0 - step) for step in range(2, 11))]

    def test_a_classifier_shows_its_steps(self, capsys):
        rng = np.random.default_rng(0)
        X, sex = rng.normal(size=(500, 2)), rng.choice(["F", "M"], 500)
        y = (X[:, 0] + rng.normal(size=500) > 0).astype(int)
        model = RateConstrainedClassifier(
            demographic_parity("sex", max_gap=0.5),
            epsilon=20.0,
            config=TrainingConfig(steps=20),
            classes=(0, 1),
            group_values={"sex": ("F", "M")},
            verbose=1,
        )
        model.fit(X, y, sensitive_features={"sex": sex})
        last = capsys.readouterr().err.splitlines()[-1]
        assert "step 20/20, " in last
        assert "0 s left" in last

    def test_without_a_screen_nothing_is_shown(self):
        with Progress(session()) as progress:
            progress.show(record(1))

    def test_a_terminal_has_one_line(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "55")
        stream = Terminal()
        line = Line(stream)
        line.show(moment(5, 12.0))
        line.show(moment(10, 9.0))
        line.end()
        shown = stream.getvalue()
        assert shown.count("\n") == 1
        first, second = shown.rstrip("\n").split("\r")[1:]
        assert first == "[##########..........] step 5/10, 12 s left, largest g"
        assert second == "[####################] step 10/10, 9 s left, largest g"

    def test_a_log_file_has_lines(self):
        stream = io.StringIO()
        line = Line(stream)
        line.show(moment(5))
        line.show(moment(10))
        line.end()
        bars = [text.split("]")[0] for text in stream.getvalue().splitlines()]
        assert bars == ["[##########..........", "[####################"]

    def test_a_notebook_replaces_one_output(self, monkeypatch):
        shown = []

        class Handle:
            def update(self, bar):
                shown.append(("update", bar))

        def display(bar, display_id):
            assert display_id is True
            shown.append(("new", bar))
            return Handle()

        shell = types.SimpleNamespace(kernel=object())
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
        monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
        screen = find_screen()
        assert isinstance(screen, Output)
        screen.show(moment(5))
        screen.show(moment(10))
        assert [kind for kind, _ in shown] == ["new", "update"]
        assert 'value="0.5000"' in shown[0][1]._repr_html_()
        assert "step 5/10, largest gap 0.250" in shown[0][1]._repr_html_()
        assert repr(shown[1][1]) == str(moment(10))

    def test_ipython_in_a_terminal_is_a_terminal(self, monkeypatch):
        shell = types.SimpleNamespace()
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
        monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=pytest.fail))
        assert isinstance(find_screen(), Line)


class Writer:
    def __init__(self):
        self.written, self.closed = [], False

    def add_scalar(self, name, value, step):
        self.written.append((name, value, step))

    def close(self):
        self.closed = True


class TestTracking:
    def test_scalars_by_name(self):
        found = scalars(record(3), ["first", "second"])
        assert found == {
            "gradient_norm": 1.5,
            "largest_value": 0.25,
            "value/first": 0.25,
            "value/second": -0.5,
            "largest_multiplier": 2.0,
            "multiplier/first": 2.0,
            "multiplier/second": 0.0,
        }

    def test_what_is_not_finite_is_left_out(self):
        assert "value/first" not in scalars(record(1, (np.nan, 1.0)), ["first", "second"])
        assert set(scalars(StepRecord(1, 2.0))) == {"gradient_norm"}

    def test_a_fit_writes_what_its_history_holds(self):
        rng = np.random.default_rng(0)
        X, y, sex = rng.normal(size=(1500, 2)), rng.integers(0, 2, 1500), rng.integers(0, 2, 1500)
        writer = Writer()
        model = RateConstrainedClassifier(
            demographic_parity("sex", max_gap=0.5),
            classes=[0, 1],
            group_values={"sex": [0, 1]},
            config=TrainingConfig(steps=25),
            random_state=0,
            callback=TensorBoardCallback(writer, every=10),
        ).fit(X, y, sensitive_features={"sex": sex})
        norms = {step: value for name, value, step in writer.written if name == "gradient_norm"}
        assert sorted(norms) == [1, 10, 20]
        for step, value in norms.items():
            assert value == model.history_["gradient_norm"][step - 1]

    def test_mlflow(self, monkeypatch):
        calls = []
        fake = types.SimpleNamespace(log_metric=lambda *args, **kwargs: calls.append((args, kwargs)))
        monkeypatch.setitem(sys.modules, "mlflow", fake)
        MLflowCallback(every=1, names=["P(1 | sex=F) <= 0.1", "b"])(record(2))
        assert (("value/P_1 _ sex_F_ __ 0.1", 0.25), {"step": 2}) in calls
        calls.clear()
        MLflowCallback("abc", every=1)(record(1))
        assert all(options["run_id"] == "abc" for _, options in calls)

    def test_real_tensorboard_reads_it_back(self, tmp_path):
        pytest.importorskip("tensorboard")
        pytest.importorskip("torch")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        log = TensorBoardCallback(tmp_path, every=1)
        for step in (1, 2, 3):
            log(record(step))
        log.close()
        events = EventAccumulator(str(tmp_path))
        events.Reload()
        assert [(event.step, event.value) for event in events.Scalars("largest_value")] == [
            (1, 0.25),
            (2, 0.25),
            (3, 0.25),
        ]

    def test_bad_input_and_absent_libraries(self, monkeypatch):
        with pytest.raises(InvalidType, match="log must be a folder"):
            TensorBoardCallback(3)
        with pytest.raises(InvalidInput, match="every"):
            TensorBoardCallback(Writer(), every=0)
        monkeypatch.setitem(sys.modules, "mlflow", None)
        with pytest.raises(ImportError, match="pip install mlflow"):
            MLflowCallback()
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(ImportError, match="pip install torch tensorboard"):
            TensorBoardCallback("runs")
