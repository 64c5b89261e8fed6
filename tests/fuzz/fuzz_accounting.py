"""What is counted: events, budgets, accountants, calibration, ledgers, statements, and the theory."""

from __future__ import annotations

import inspect
import math

from fuzz_inputs import edges, events, mostly, noises, odd, odd_size
from hypothesis import strategies as st
from lower_bounds import check_not_below_the_truth

from ratewise import accounting
from ratewise.accounting import (
    Admission,
    Budget,
    Calibration,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    OutsideEvent,
    Phase,
    PlanCalibration,
    PrivacyCurve,
    PrivacyFilter,
    PrivacyStatement,
    PrivacyUnit,
    SelectionEvent,
    ThresholdEvent,
    TrainingEvent,
    UnprotectedEvent,
    event_from_dict,
    theory,
)
from ratewise.exceptions import RatewiseError
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.training.config import TrainingConfig

RELATIONS = ["add_or_remove", "replace_one", "zero_out"]
relations = mostly(st.sampled_from(RELATIONS))
deltas = st.floats(1e-9, 0.1)
SETTINGS = sorted(inspect.signature(TrainingConfig).parameters)


def fuzz_scalars(draw):
    """Constructors of events, budgets and settings with any arguments."""
    build = draw(
        st.sampled_from(
            [
                lambda: TrainingEvent(*(draw(odd) for _ in range(5))),
                lambda: TrainingEvent(
                    draw(mostly(st.floats(1e-6, 1.0), 8)),
                    draw(mostly(st.integers(1, 10**5), 8)),
                    draw(mostly(noises, 8)),
                    draw(mostly(noises, 8)),
                    draw(mostly(st.sampled_from(["gaussian", "laplace"]), 8)),
                ),
                lambda: GaussianEvent(draw(mostly(noises, 16)), draw(mostly(st.integers(1, 99), 16))),
                lambda: ThresholdEvent(draw(mostly(noises, 16)), draw(mostly(st.floats(1e-9, 0.1), 16))),
                lambda: PrivacyUnit(draw(mostly(st.sampled_from(["row", "id"]))), draw(odd), draw(odd), draw(odd)),
                lambda: LaplaceEvent(draw(mostly(noises, 16)), draw(mostly(st.integers(1, 99), 16))),
                lambda: OutsideEvent(
                    draw(mostly(st.floats(0, 50), 16)), draw(odd), draw(relations), draw(mostly(st.text(), 16))
                ),
                lambda: UnprotectedEvent(draw(odd)),
                lambda: SelectionEvent(draw(mostly(st.just((GaussianEvent(9.0),)))), draw(odd)),
                lambda: Budget(draw(odd), draw(odd)),
                lambda: PrivacyFilter.for_first_plan(
                    Budget(draw(mostly(st.floats(0.1, 9.0))), draw(mostly(deltas))),
                    (GaussianEvent(draw(noises)),),
                    draw(relations),
                ),
                lambda: Ledger(cap=draw(odd), adaptive=draw(odd), neighbours=draw(relations), unit=draw(odd)),
                lambda: TrainingConfig(**{draw(st.sampled_from(SETTINGS)): draw(odd) for _ in range(3)}),
                lambda: RandomStreams.from_seed(draw(st.one_of(st.integers(0), st.text(), st.floats()))),
            ]
        )
    )
    found = build()
    priced = isinstance(found, accounting.Event) and not isinstance(found, SelectionEvent)
    if priced and draw(st.integers(0, 3)) == 0:
        assert accounting.epsilon(found, 1e-5) >= 0


def fuzz_event_text(draw):
    """Descriptions of events as a file might hold them, damaged."""
    fields = draw(events()).to_dict()
    for name in draw(st.lists(st.sampled_from([*fields, "more"]), max_size=2)):
        fields[name] = draw(odd)
    event = event_from_dict(fields)
    assert event_from_dict(event.to_dict()) == event


def fuzz_accounting(draw):
    """Epsilon and delta of some events, each the other's inverse, on the safe side."""
    event, delta = draw(events()), draw(deltas)
    relation = draw(st.sampled_from(RELATIONS))
    if draw(st.integers(0, 3)) == 0:
        accounting.epsilon(draw(mostly(st.just([event]), 16)), draw(odd), neighbours=draw(relations))
        accounting.delta([event], draw(odd), relation)
    curve = accounting.curve([event], relation)
    assert isinstance(curve, PrivacyCurve)
    total = accounting.epsilon([event], delta, relation)
    check_not_below_the_truth(total, [event], delta)  # other relations are no cheaper
    # two upper bounds, each on a grid of its own; of a selection each question has a bound of its own kind
    if math.isfinite(total) and not isinstance(event, SelectionEvent):
        assert accounting.delta([event], total, relation) <= delta * (1 + 1e-3) + 1e-12
    if relation == "add_or_remove" and not isinstance(event, SelectionEvent):
        accounting.to_dp_event(event)  # or it is refused
        assert total <= accounting.rdp_epsilon(event, delta) * (1 + 1e-3) + 1e-9


def fuzz_calibration(draw):
    """Noise for a budget: never above it."""
    epsilon, delta = draw(mostly(st.floats(0.05, 20.0))), draw(mostly(st.floats(1e-8, 1e-3)))
    rate, steps = draw(mostly(st.floats(0.05, 1.0))), draw(mostly(st.integers(1, 40), 2, odd_size))
    kind = draw(mostly(st.sampled_from(["gaussian", "laplace", None])))
    each, small = accounting.group_budget(epsilon, delta, draw(mostly(st.integers(1, 20), 2, odd_size)))
    assert each <= epsilon
    assert small <= delta * (1 + 1e-9)
    if draw(st.booleans()):
        release, share = draw(st.sampled_from([GaussianEvent, LaplaceEvent])), draw(st.floats(0.1, 0.9))
        plan = accounting.calibrate_plan(
            epsilon, delta, lambda scale: (release(scale / share), TrainingEvent(rate, steps, scale, histogram=None))
        )
        assert isinstance(plan, PlanCalibration)
        assert accounting.epsilon(plan.events, delta) <= epsilon * (1 + 1e-9)
    else:
        found = accounting.calibrate(epsilon, delta, rate, steps, kind, draw(mostly(st.floats(0.05, 0.9))))
        assert isinstance(found, Calibration)
        assert accounting.epsilon([found.event], delta) <= epsilon * (1 + 1e-9)


def fuzz_ledger(draw):
    """Plans in any order; the total never falls, and is never below its last entry alone."""
    accounting.ledger._PROCESS.clear()  # a long run would add up more and more
    cap = draw(st.sampled_from([None, Budget(2.0, 1e-5)]))
    adaptive = draw(st.booleans()) if cap is not None else False
    ledger, before, booked = Ledger(cap=cap, adaptive=adaptive), 0.0, []
    for event in draw(st.lists(events(), max_size=2)):
        try:
            plan = ledger.admit(event, purpose=draw(st.text(max_size=3)), data=draw(mostly(st.just("rows"))))
            assert isinstance(plan, Admission)
            if isinstance(event, TrainingEvent) and draw(st.booleans()):
                with plan.phase(draw(mostly(st.just(event)))) as phase:
                    assert isinstance(phase, Phase)
                    phase.step()
            elif draw(st.booleans()):
                plan.release()
        except RatewiseError:
            continue
        total = ledger.total(1e-5)
        booked.append(event)
        check_not_below_the_truth(total, booked, 1e-5)
        # each is an upper bound, on a grid of its own
        assert total >= before * (1 - 1e-3)
        assert total >= accounting.epsilon([event], 1e-5) * (1 - 1e-3)
        before = total
    assert Ledger.from_json(ledger.to_json()).records == ledger.records
    try:
        together = accounting.process_total("rows", draw(mostly(deltas)))
    except RatewiseError:
        return
    assert isinstance(together, accounting.ProcessTotal)
    assert str(together)


def fuzz_statement(draw):
    """What is said of a run, from any facts; what is written is read back."""
    said = accounting.state(
        draw(mostly(st.lists(st.builds(GaussianEvent, noises), min_size=1, max_size=2))),
        draw(mostly(deltas)),
        neighbours=draw(relations),
        unit=draw(mostly(st.sampled_from([PrivacyUnit(), PrivacyUnit("id", "p", 3, "row")]))),
        public=draw(mostly(st.lists(st.text(min_size=1, max_size=4), max_size=2))),
        outside=draw(mostly(st.lists(st.text(min_size=1, max_size=4), max_size=2))),
        n_units=draw(mostly(st.one_of(st.none(), st.integers(1, 10**6)))),
    )
    assert isinstance(said, PrivacyStatement)
    assert str(said)
    assert PrivacyStatement.from_json(said.to_json()).epsilon == said.epsilon


FORMULAS = sorted(
    name
    for name, value in vars(theory).items()
    if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == theory.__name__
)
RECORDS = ["GradientErrors", "LagrangianRegularity", "ModelRegularity", "StepSizes", "TheoremNoise"]


def fuzz_theory(draw):
    """Formulas of the theory with any numbers; what comes out is no NaN."""
    formula = getattr(theory, draw(st.sampled_from([*FORMULAS, *RECORDS, "RateProblem"])))
    whole = {"steps", "rows", "dimension", "terms", "subsets", "constraints", "smallest_cell", "classes"}
    sizes = st.sampled_from([1e308, 1e200, 1e100, 1e-100, 1e-200, 1e-308, 10**15])
    around = mostly(st.floats(0.1, 9.0), 4, sizes)
    sound = {
        "model": st.builds(theory.ModelRegularity, *[around] * 4),
        "errors": st.builds(theory.GradientErrors, around, around),
        "step_sizes": st.builds(theory.StepSizes, around, around),
        "problem": st.just(theory.RateProblem(10**5, 10**4, 10, 2, 4, 1.0, 2.0, theory.linear_softmax(1.0))),
        **dict.fromkeys(("delta", "failure", "sampling_rate"), st.floats(1e-6, 0.5)),
    }
    arguments = {}
    for name, parameter in inspect.signature(formula).parameters.items():
        usual = st.integers(1, 1000) if name in whole else sound.get(name, st.floats(0.01, 50.0))
        if parameter.default is inspect.Parameter.empty or draw(st.booleans()):
            arguments[name] = draw(mostly(usual, 8, st.one_of(edges, odd_size, sizes)))
    found = formula(**arguments)
    assert not (isinstance(found, float) and math.isnan(found))
