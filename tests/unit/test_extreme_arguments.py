"""What fuzzing found, each with an input as small as it can be: our own error, or a finite result."""

import math

import pytest

import ratewise as rw
from ratewise import accounting, audit
from ratewise.exceptions import InvalidInput, InvalidType
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.metrics import group_rates, rate_report
from ratewise.report import Report

LABELS, GROUPS = [0, 1, 0, 1], {"g": ["a", "b", "a", "b"]}


def test_a_rate_times_a_number_whose_square_is_zero():
    tiny = 1e-200 * rw.rate(1) <= 0.5
    report = rate_report([tiny], LABELS, LABELS, sensitive_features=GROUPS)
    assert "nan" not in str(report).lower()


class TestArgumentsOfAnotherKind:
    def test_columns_of_a_table_of_rates(self):
        with pytest.raises(InvalidType, match="by must be a column or a list of columns, got int"):
            group_rates(LABELS, LABELS, sensitive_features=GROUPS, by=3)

    @pytest.mark.filterwarnings("ignore::ratewise.exceptions.RatewiseWarning")
    def test_columns_and_notes_of_a_report(self):
        with pytest.raises(InvalidType, match="by must be a list of columns, got int"):
            Report.from_predictions(LABELS, LABELS, GROUPS, by=3)
        with pytest.raises(InvalidType, match="notes must be a list of texts, got 3"):
            Report.from_predictions(LABELS, LABELS, GROUPS, notes=3)

    def test_columns_of_a_domain(self):
        with pytest.raises(InvalidType, match="columns must map names to values, got int"):
            rw.Domain((0, 1), 3)


class TestAccounting:
    def test_steps_that_would_take_minutes(self):
        with pytest.raises(InvalidInput, match="steps must be at most 10,000,000, got 10,000,001"):
            accounting.calibrate(1.0, 1e-5, 0.1, 10_000_001)

    def test_a_target_whose_square_is_no_number(self):
        found = accounting.calibrate(1e-200, 1e-5, 1.0, 1)
        assert found.epsilon <= 1e-200  # so much noise that not even delta is used up

    def test_rates_whose_square_is_no_number(self):
        with pytest.raises(InvalidInput, match="sampling_rate must be at least 1e-100, got 1e-300"):
            accounting.TrainingEvent(1e-300, 1, 1.0)

    def test_deltas_that_are_zero_within_the_window(self):
        assert accounting.epsilon(accounting.LaplaceEvent(1e-3), 0.999) < math.inf


class TestAudits:
    EVENT = accounting.TrainingEvent(sampling_rate=1.0, steps=1, gradient_noise=1.0, histogram=None)

    @pytest.mark.parametrize(
        "attack",
        [
            lambda: audit.audit_step(None, games=20),
            lambda: audit.audit_training(3, games=20),
            lambda: audit.audit_one_run("x", canaries=20),
            lambda: audit.TableSubject(None),
            lambda: audit.check_noise(None, streams=RandomStreams.from_seed(1)),
            lambda: audit.check_replay(None, streams=RandomStreams.from_seed(1)),
        ],
        ids=["step", "training", "one run", "subject", "noise", "replay"],
    )
    def test_what_is_no_event(self, attack):
        with pytest.raises(InvalidType, match="event must be a TrainingEvent, got "):
            attack()

    def test_more_canaries_than_memory_has_room_for(self):
        with pytest.raises(InvalidInput, match="canaries and opponents must be at most 20000 rows"):
            audit.TableSubject(self.EVENT, 10**9)

    @pytest.mark.parametrize("wrong", [{"steps": -1}, {"n_rows": 0}, {"steps": "x"}])
    def test_a_check_of_samples_without_samples(self, wrong):
        options = {"n_rows": 3, "steps": 5, "streams": RandomStreams.from_seed(1), **wrong}
        with pytest.raises((InvalidInput, InvalidType), match=next(iter(wrong))):
            audit.check_sampling(0.5, **options)
        with pytest.raises(InvalidInput, match="rate must be"):
            audit.check_sampling(2.0, n_rows=3, steps=5, streams=RandomStreams.from_seed(1))
