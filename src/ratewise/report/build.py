"""From a model or from predictions to the content of a report: released values, sentences and notes.

Epsilons do not add up, so a release has no share of its own: what is shown is by how much the total rises with
it, after all that came before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise._files import now
from ratewise.accounting import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    PrivacyStatement,
    TrainingEvent,
    accountant,
)
from ratewise.accounting.events import UnprotectedEvent, merged, single
from ratewise.accounting.statement import software_version
from ratewise.constraints.compiler import as_constraints
from ratewise.constraints.domain import Domain, Numeric, list_values, show_number
from ratewise.exceptions import InvalidType
from ratewise.metrics.verdicts import Certificate, short
from ratewise.models.fitted import ShapeFunction
from ratewise.report.content import (
    About,
    Booking,
    Constraint,
    Content,
    Curve,
    Declared,
    Group,
    Note,
    Rival,
    Shape,
    Share,
    Special,
    Spending,
    Training,
    finite,
)
from ratewise.report.evaluation import (
    FEW_ROWS,
    OTHER,
    Evaluation,
    ValueNames,
    accuracy_of,
    calibration_of,
    constraints_of,
    declared_families,
    difference,
    families_of,
    groups_of,
)

POINTS = 40
MOST_ENTRIES = 40
CURVE_POINTS = 120
MOST_CURVES = 40
MOST_SHAPES = 60
_STEP_SHARE = 0.01  # of the rows and of the width, in a drawn step of a shape function
_HIDDEN = 0.0005  # of the rows: fewer, at the ends or in a category, are not drawn
_NOISE_LEVEL = 1.96

Entry = tuple[str, str, Event, int]
"""Purpose, data, a single release, and how often it counts."""


def spending_of(ledger: Ledger, delta: float) -> Spending:
    """Return the picture of a ledger at a delta."""
    entries = _merged(_entries(ledger))
    neighbours = ledger.neighbours
    before, counted, listed = 0.0, [], []
    for purpose, data, event, times in entries:
        counted.append((event, times))
        after = _epsilon(counted, delta, neighbours)
        alone = _epsilon([(event, times)], delta, neighbours)
        words = str(_repeated(event, times)[0])
        listed.append(Booking(purpose, data, words, finite(alone), finite(before), finite(after)))
        before = after
    steps, epsilons = _curve(entries, delta, neighbours)
    return Spending(
        delta=delta,
        cap=None if ledger.cap is None else ledger.cap.epsilon,
        total=finite(before),
        entries=_shortened(listed),
        steps=steps,
        epsilons=epsilons,
        gradient_share=_gradient_share(entries),
    )


def _entries(ledger: Ledger) -> list[Entry]:
    """Return every release that was admitted, in order, named by its plan and its name in it."""
    return [
        (_joined(plan.purpose, name, len(plan.names)), plan.data, *single(event))
        for plan in ledger.admissions
        for name, event in zip(plan.names, plan.events, strict=True)
    ]


def _joined(purpose: str, name: str, count: int) -> str:
    if count == 1:
        return purpose or name
    return f"{purpose}: {name}" if purpose else name


def _merged(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries, with equal ones that follow each other as one."""
    merged: list[Entry] = []
    for purpose, data, event, times in entries:
        if merged and merged[-1][:3] == (purpose, data, event) and not isinstance(event, UnprotectedEvent):
            merged[-1] = (purpose, data, event, merged[-1][3] + times)
        else:
            merged.append((purpose, data, event, times))
    return merged


def _shortened(entries: list[Booking]) -> tuple[Booking, ...]:
    """Return at most `MOST_ENTRIES`; the earliest beyond that become one, which keeps the sums right."""
    extra = len(entries) - MOST_ENTRIES
    if extra <= 0:
        return tuple(entries)
    first, last = entries[0], entries[extra]
    joined = Booking(
        f"the first {extra + 1} releases", "", "see the ledger itself", last.after, first.before, last.after
    )
    return (joined, *entries[extra + 1 :])


def _epsilon(counted: list[tuple[Event, int]], delta: float, neighbours: str) -> float:
    events = merged(event for one, times in counted if times for event in _repeated(one, times))
    return accountant.epsilon(events, delta, neighbours=neighbours)


def _repeated(event: Event, times: int) -> tuple[Event, ...]:
    """Return a single release and its count as events: one, if its kind has a count."""
    if isinstance(event, TrainingEvent):
        return (event.with_steps(times),)
    if isinstance(event, GaussianEvent | LaplaceEvent):
        return (replace(event, count=times),)
    return (event,) * times


def _curve(entries: list[Entry], delta: float, neighbours: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return epsilon of the whole book after so many steps of its last training."""
    place = max((i for i, entry in enumerate(entries) if isinstance(entry[2], TrainingEvent)), default=-1)
    if place < 0:
        return (), ()
    *earlier, (_, _, event, times) = entries[: place + 1]
    base = [(kind, count) for _, _, kind, count in earlier]
    chosen = sorted({round(times * i / POINTS) for i in range(POINTS + 1)})
    values = [_epsilon([*base, (event, done)], delta, neighbours) if base or done else 0.0 for done in chosen]
    if not all(map(math.isfinite, values)):
        return (), ()
    return tuple(chosen), tuple(values)


def _gradient_share(entries: list[Entry]) -> float | None:
    """Return the part of the last training's budget, by inverse squared noise, that bought gradients."""
    events = [event for _, _, event, _ in entries if isinstance(event, TrainingEvent)]
    if not events or events[-1].gradient_noise is None or events[-1].histogram_noise is None:
        return None
    step = events[-1]
    gradient, counts = events[-1].gradient_noise or 1.0, events[-1].histogram_noise or 1.0
    if step.histogram == "laplace":
        counts *= math.sqrt(2.0)
    return gradient**-2 / (gradient**-2 + counts**-2)


# ---------------------------------------------------------------------------------------------- training


def training_of(history: Mapping[str, Any], compiled: Any = None) -> Training | None:
    """Return the curves of a history; `compiled` names the constraints and holds their bounds.

    At most `MOST_CURVES` constraints are kept, those that took most pressure in the last quarter of the run
    (then those nearest to their bound), and at most `CURVE_POINTS` steps, each the mean over the steps it stands
    for.
    """
    steps = np.asarray(history.get("step", ()))
    if not len(steps):
        return None
    edges = np.unique(np.linspace(0, len(steps), min(CURVE_POINTS, len(steps)) + 1).astype(np.intp))
    norms = _thin(np.asarray(history["gradient_norm"], dtype=np.float64), edges)
    curves, left_out = _curves(history, compiled, edges)
    return Training(
        steps=tuple(int(step) for step in steps[edges[1:] - 1]),
        gradient_norm=_numbers(norms),
        curves=curves,
        left_out=left_out,
    )


def _curves(
    history: Mapping[str, Any], compiled: Any, edges: npt.NDArray[np.intp]
) -> tuple[tuple[Curve, ...], int]:
    if compiled is None or "values" not in history:
        return (), 0
    excess = np.asarray(history["values"], dtype=np.float64) - np.asarray(compiled.bounds)
    multipliers = np.asarray(history["multipliers"], dtype=np.float64)
    late = slice(3 * len(excess) // 4, None)
    order = np.lexsort((-_late_mean(excess[late]), -_late_mean(multipliers[late])))
    kept = [
        Curve(
            compiled.names[j], _numbers(_thin(excess[:, j], edges)), _numbers(_thin(multipliers[:, j], edges))
        )
        for j in order[:MOST_CURVES]
    ]
    return tuple(kept), max(0, len(order) - MOST_CURVES)


def _late_mean(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean of what is finite, by column; -inf if nothing is."""
    there = np.isfinite(values)
    sums, counts = np.where(there, values, 0.0).sum(axis=0), there.sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)


def _thin(values: npt.NDArray[np.float64], edges: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """Return the mean over each stretch; NaN if there is nothing in it."""
    there = np.isfinite(values)
    sums = np.add.reduceat(np.where(there, values, 0.0), edges[:-1])
    counts = np.add.reduceat(there.astype(np.float64), edges[:-1])
    out = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=out, where=counts > 0)
    return out


def _numbers(values: npt.NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(finite(value) for value in values)


# -------------------------------------------------------------------------------------- shape functions


def shapes_of(model: Any, classes: tuple[str, ...], names: ValueNames) -> tuple[Shape, ...]:
    """Return the shape functions of a fitted classifier, the most important features first.

    Of two classes the score of the second is shown.
    """
    functions = getattr(getattr(model, "model_", None), "shape_functions", None)
    if functions is None:
        return ()
    found = sorted(functions(), key=lambda shape: -shape.importance)
    drawn = [
        shape_of(shape, classes[1] if len(classes) == 2 else classes[shape.output])
        for shape in found[:MOST_SHAPES]
        if shape.importance > 0
    ]
    return tuple(
        replace(
            shape,
            feature=names.title(shape.feature),
            labels=tuple(names.value(shape.feature, label) for label in shape.labels),
        )
        for shape in drawn
    )


def shape_of(shape: ShapeFunction, output: str) -> Shape:
    """Return a shape function prepared for a picture."""
    half = _NOISE_LEVEL * shape.standard_error
    if shape.edges is None:
        kept = np.flatnonzero(shape.shares >= _HIDDEN)
        return Shape(
            shape.feature,
            output,
            shape.importance,
            (),
            tuple(shape.labels[place] for place in kept),
            _floats(shape.values[kept]),
            _floats((shape.values - half)[kept]),
            _floats((shape.values + half)[kept]),
            (),
        )
    shares = np.maximum(shape.shares, 0.0)
    starts, stop = _steps(shares, shape.edges)
    weights = np.maximum(shares, 1e-12 * np.diff(shape.edges) / np.ptp(shape.edges))[:stop]
    total = np.add.reduceat(weights, starts)
    values = np.add.reduceat(shape.values[:stop] * weights, starts) / total
    spread = np.add.reduceat(half[:stop] * weights, starts) / total
    edges = np.append(shape.edges[starts], shape.edges[stop])
    special = [
        Special(label, float(value))
        for label, value, share in zip(shape.labels, shape.special, shape.special_shares, strict=True)
        if share >= _STEP_SHARE / 2
    ]
    return Shape(
        shape.feature,
        output,
        shape.importance,
        _floats(edges),
        (),
        _floats(values),
        _floats(values - spread),
        _floats(values + spread),
        tuple(special),
    )


def _steps(
    shares: npt.NDArray[np.float64], edges: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.intp], int]:
    """Return where the drawn steps begin, and where the last one ends.

    A step joins bins until it has a hundredth of the rows and of the width, so that bins with hardly any rows, whose
    contribution is mostly noise, are not drawn by themselves. Bins at both ends without rows are left out.
    """
    if shares.sum() <= 0.0:
        return np.zeros(1, dtype=np.intp), len(shares)
    reached = np.cumsum(shares) / shares.sum()
    first = int(np.searchsorted(reached, _HIDDEN, side="right"))
    stop = min(int(np.searchsorted(reached, 1.0 - _HIDDEN)) + 1, len(shares))
    starts, begun = [min(first, stop - 1)], reached[first - 1] if first else 0.0
    narrow = _STEP_SHARE * (edges[stop] - edges[starts[0]])
    for place in range(starts[0] + 1, stop):
        wide = edges[place] - edges[starts[-1]] >= narrow
        if wide and reached[place - 1] - begun >= _STEP_SHARE and 1.0 - reached[place - 1] >= _STEP_SHARE / 2:
            starts.append(place)
            begun = reached[place - 1]
    return np.array(starts, dtype=np.intp), stop


def _floats(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


SMALL_GROUP = 30
_SHOWN_CONSTRAINTS = 3
_SHOWN_VALUES = 8
_OTHERWISE = {
    "add_or_remove": "not taken part",
    "replace_one": "been another",
    "zero_out": "been blanked out",
}


@dataclass(frozen=True)
class Background:
    """What is known about a model besides its predictions; every part may be missing.

    Attributes
    ----------
    name : str
        What the model is called on the page.
    statement : PrivacyStatement or None
    ledger : Ledger or None
    model : fitted classifier or None
        Its certificate, released history and shape functions are shown.
    target : str or None
        Name of the label.
    data : str or None
        Name of the rows that are measured on.
    notes : tuple of str
        Further warnings, in words.
    """

    name: str = "model"
    statement: PrivacyStatement | None = None
    ledger: Ledger | None = None
    model: Any = None
    target: str | None = None
    data: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def certificate(self) -> Certificate | None:
        """The certificate of the model."""
        found = getattr(self.model, "certificate_", None)
        return found if isinstance(found, Certificate) else None


def content_of(
    data: Evaluation,
    background: Background,
    certificate: Certificate | None,
    rivals: Mapping[str, Rivalry],
    title: str | None = None,
) -> Content:
    """Measure everything and return the content of the report; constraints are those of the certificate of the rows."""
    constraints = constraints_of(
        certificate, data.constraints, data.domain, data.names, trained=background.certificate
    )
    everyone, groupings = groups_of(data)
    content = Content(
        title=_title(title, background, data.names),
        model=background.name,
        created=now(),
        version=software_version(),
        released=False,
        rows=len(data.truth),
        headline=_headline(certificate, data.names),
        confidence=data.confidence,
        tolerance=0.01 if certificate is None else certificate.tolerance,
        classes=tuple(data.names.classes.values()),
        score_words=_score_words(data),
        about=(),
        families=families_of(data, constraints),
        constraints=constraints,
        everyone=everyone,
        groupings=groupings,
        calibration=calibration_of(data),
        models=_models(data, background, certificate, rivals),
        **_training_parts(background, data.names),
        notes=(),
    )
    return _completed(content, data.domain.columns, data.names, background)


def content_of_training(background: Background, title: str | None = None) -> Content:
    """Return the content of a report from released values alone: constraints and accuracy are the certificate's."""
    model, certificate = background.model, background.certificate
    compiled = getattr(model, "constraints_", None)
    columns = {} if compiled is None else compiled.domain.columns
    names = ValueNames(getattr(model, "schema", None), tuple(model.classes_.tolist()), columns)
    constraints: tuple[Constraint, ...] = ()
    families: tuple[Declared, ...] = ()
    if compiled is not None:
        constraints = constraints_of(certificate, model.constraints, compiled.domain, names, population=False)
        families = declared_families(model.constraints, compiled.domain, names, constraints)
    accuracy = None if certificate is None else certificate.accuracy
    value, low, high = (math.nan,) * 3 if accuracy is None else (accuracy.value, *accuracy.interval)
    rows = (background.statement.n_units if background.statement else None) or 0
    content = Content(
        title=_title(title, background, names),
        model=background.name,
        created=now(),
        version=software_version(),
        released=True,
        rows=rows,
        headline=_headline(certificate, names),
        confidence=0.95 if certificate is None else certificate.level,
        tolerance=0.01 if certificate is None else certificate.tolerance,
        classes=tuple(names.classes.values()),
        score_words="",
        about=(),
        families=families,
        constraints=constraints,
        everyone=Group("everyone", rows, Share(finite(value), finite(low), finite(high), rows), {}),
        groupings=(),
        calibration=(),
        models=(),
        **_training_parts(background, names),
        notes=(),
    )
    return _completed(content, columns, names, background)


def _headline(certificate: Certificate | None, names: ValueNames) -> str:
    if len(names.classes) < 2:
        return f"The model predicts {_some(names.classes.values(), 1)} for everyone: training found fewer than two classes"
    return "No constraints were requested" if certificate is None else names.text(certificate.summary)


def _training_parts(background: Background, names: ValueNames) -> dict[str, Any]:
    """Return what was released by the training: shape functions, curves, budget and statement."""
    statement, ledger, model = background.statement, background.ledger, background.model
    history = getattr(model, "history_", None)
    shown = ledger is not None and statement is not None and bool(ledger.records)
    return {
        "shapes": shapes_of(model, tuple(names.classes.values()), names),
        "training": None if history is None else training_of(history, getattr(model, "constraints_", None)),
        "spending": spending_of(ledger, statement.delta) if shown and ledger and statement else None,
        "statement": None if statement is None else statement.to_dict(),
        "words": () if statement is None else tuple(privacy_in_words(statement)),
    }


def _completed(
    content: Content, columns: Mapping[str, Any], names: ValueNames, background: Background
) -> Content:
    about = _about(content, columns, names, background)
    return replace(content, about=about, notes=_notes(content, background.statement, background))


Rivalry = tuple[Any, Certificate | None, float | None]
"""Predictions of another model, their certificate, and its epsilon."""


def rivals_of(
    baseline: Any, X: Any, known: Any, judge: Callable[[Any], Certificate | None]
) -> dict[str, Rivalry]:
    """Return what other models (a model, or several by name) do on the rows; predictions of the `known` ones."""
    if baseline is None:
        return {}
    models = baseline if isinstance(baseline, Mapping) else {"without constraints": baseline}
    found: dict[str, Rivalry] = {}
    for name, model in models.items():
        if not callable(getattr(model, "predict", None)):
            raise InvalidType(
                f"baseline must be a fitted classifier, or a mapping of names to such, got {type(model).__name__}"
            )
        predicted = model.predict(X)
        found[_validate.text(required=True, **{"each name of baseline": name})] = (
            predicted[known],
            judge(predicted),
            getattr(getattr(model, "privacy_", None), "epsilon", None),
        )
    return found


def known_values(model: Any) -> dict[str, Any]:
    """Return the values of the columns that a model was trained with, so that its constraints mean the same."""
    declared = getattr(model, "group_values", None) or {}
    domain = getattr(getattr(model, "constraints_", None), "domain", None)
    return {**({} if domain is None else domain.columns), **declared}


def known_rows(
    model: Any, y: Any, columns: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], npt.NDArray[np.bool_]]:
    """Return labels and groups, in the spelling of a classifier of ours, of the rows whose label it knows; and which.

    Of a column of groups, a value that it does not know is `OTHER`; a row without a number for intervals is left out.
    """
    compiled = getattr(model, "constraints_", None)
    domain = Domain(tuple(model.classes_.tolist()), {}, other=True) if compiled is None else compiled.domain
    spelt = {name: _spelt(domain, name, column) for name, column in columns.items() if name in domain.columns}
    codes = domain.code_labels(y)
    known = np.logical_and.reduce([codes >= 0, *(kept for _, kept in spelt.values())])
    labels = np.array(domain.classes, dtype=object)[codes[known]]
    groups = {name: spelt[name][0] if name in spelt else np.asarray(c) for name, c in columns.items()}
    return labels, {name: column[known] for name, column in groups.items()}, known


def _spelt(domain: Domain, name: str, column: Any) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Return a sensitive column in the declared values, and which rows can be used."""
    codes, values = domain.code_column(name, column), domain.columns[name]
    if isinstance(values, Numeric):
        return codes, np.isfinite(codes)
    return np.array([*values, OTHER], dtype=object)[codes], np.ones(len(codes), dtype=bool)


def probabilities(model: Any, X: Any, known: Any) -> Any:
    """Return the model's probabilities for `known` rows, None if it has none to give."""
    return model.predict_proba(X)[known] if callable(getattr(model, "predict_proba", None)) else None


def _models(
    data: Evaluation,
    background: Background,
    certificate: Certificate | None,
    rivals: Mapping[str, Rivalry],
) -> tuple[Rival, ...]:
    statement = background.statement
    epsilon = None if statement is None else statement.epsilon
    first, ours = _rival(data, background.name, (data.predicted, certificate, epsilon))
    found = [first]
    for name, rival in rivals.items():
        other, theirs = _rival(data, name, rival)
        found.append(replace(other, difference=difference(ours, theirs, data.confidence)))
    return tuple(found)


def _rival(data: Evaluation, name: str, rival: Rivalry) -> tuple[Rival, npt.NDArray[np.bool_]]:
    """Return a model as it does on the rows, and on which of them it is right."""
    predicted, certificate, epsilon = rival
    accuracy, right = accuracy_of(data, predicted)
    spent = None if epsilon is None else finite(epsilon)
    constraints = constraints_of(certificate, data.constraints, data.domain, data.names)
    excess = [constraint.excess for constraint in constraints if constraint.excess is not None]
    return (
        Rival(
            name=name,
            accuracy=accuracy,
            worst=max(excess, default=None),
            reached=tuple(constraint.reached for constraint in constraints),
            epsilon=spent,
            private=spent is not None,
        ),
        right,
    )


# -------------------------------------------------------------------------------------------- words


def _title(title: str | None, background: Background, names: ValueNames) -> str:
    if title is not None:
        return _validate.text(required=True, title=title)
    return (
        f"Prediction of {names.title(background.target)}"
        if background.target
        else f"Report on {background.name}"
    )


def _score_words(data: Evaluation) -> str:
    if data.scores is None:
        return ""
    if len(data.classes) == 2:
        return f"predicted probability of {data.names.classes[data.classes[1]]}"
    return "predicted probability of the predicted class"


def _about(
    content: Content, columns: Mapping[str, Any], names: ValueNames, background: Background
) -> tuple[About, ...]:
    """Return what is predicted, for whom, from which rows and under which constraints."""
    target = "" if background.target is None else f"{names.title(background.target)}: "
    features = getattr(background.model, "_feature_names", ())
    predicted = target + _some(content.classes, 8)
    if features:
        predicted += f", from {len(features)} features ({_some(features, 4)})"
    groups = [_described(name, values, names) for name, values in columns.items()]
    source = f"rows of {background.data}" if background.data else "rows that were given"
    rows = f"{content.rows:,} {'training rows' if content.released and not background.data else source}"
    statement = background.statement
    if statement is not None and statement.n_units is not None and not content.released:
        sources = {plan.data for plan in background.ledger.admissions} if background.ledger else set()
        named = [source for source in sources if source.startswith("rows of ")]
        noun = (
            named[0] if len(sources) == 1 and named and statement.unit.kind == "row" else statement.unit.noun
        )
        rows += f"; the model was trained on {statement.n_units:,} {noun}"
    sentences = [family.words for family in content.families]
    sentences += [constraint.words for constraint in content.constraints if constraint.family is None]
    if content.constant:
        declared = as_constraints(getattr(background.model, "constraints", None))
        sentences = [f"{one} (not judged)." for one in declared]
    more = len(sentences) - _SHOWN_CONSTRAINTS
    said = " ".join(sentences[:_SHOWN_CONSTRAINTS]) + (f" And {more} more." if more > 0 else "")
    return (
        About("Predicted", predicted),
        *([About("Groups", "; ".join(groups))] if groups else []),
        About("Trained on" if content.constant else "Measured on", rows),
        About("Constraints", said or "none"),
    )


def _described(column: str, values: Any, names: ValueNames) -> str:
    """Return a column with its values, if they are few."""
    if not isinstance(values, tuple) or len(values) > _SHOWN_VALUES:
        return names.title(column)
    return f"{names.title(column)} ({', '.join(names.value(column, value) for value in values)})"


def _some(names: Iterable[str], most: int) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def detail(content: Content) -> str:
    """Return the sentence below the headline."""
    if content.constant:
        return "No constraint was judged. Train again with declared classes, with more rows or with a larger epsilon."
    if not content.constraints:
        return f"Rates below were measured on {measured(content)}."
    within = f"within the bound plus {short(content.tolerance)}"
    if not content.released:
        return (
            f"Measured on {measured(content)}. A constraint is held if its value on these rows is {within}."
        )
    level = f"{show_number(100 * content.confidence)}%"
    return (
        f"Measured on {measured(content)}. A constraint is held if its whole {level} interval is {within}, and "
        "otherwise missed if all of it is beyond the bound."
    )


def measured(content: Content) -> str:
    """Return which rows the numbers are about."""
    return f"{content.rows:,} {'training rows, with noise' if content.released else 'rows'}"


def certificate_line(content: Content) -> str:
    """Return what the private certificate says of the constraints on the training rows; "" without one."""
    states = [one.certified.state for one in content.constraints if one.certified is not None]
    if not states:
        return ""
    counts = {state: states.count(state) for state in ("held", "missed", "cannot tell")}
    words = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    return f"Certificate of the training rows (private): {words}."


def privacy_in_words(statement: PrivacyStatement) -> list[str]:
    """Return what the guarantee means, without formulas, and never more than it says."""
    if not statement.events:
        return ["Nothing was released from private data."]
    if math.isinf(statement.epsilon):
        return [
            "This model was trained without a privacy guarantee: it may reveal anything about the rows it was "
            "trained on."
        ]
    times, delta = _upwards(math.exp(statement.epsilon)), f"{statement.delta:g}"
    said = [
        f"The model, and everything recorded while it was trained, protects {statement.unit} of the training "
        f"data by differential privacy with epsilon {epsilon_text(statement.epsilon)} and delta {delta}.",
        "That means: whatever might happen because this model was trained and shown to others is at most "
        f"{times} times as likely as it would be had {statement.unit} {_OTHERWISE[statement.neighbours]}, "
        f"plus {delta}. This holds whatever else anybody knows.",
    ]
    if statement.outside:
        said.append(
            "Not covered by this: " + "; ".join(statement.outside) + ". These were read off the private data."
        )
    return said


def epsilon_text(epsilon: float | None) -> str:
    """Return epsilon with four digits, rounded upwards: a page never claims more privacy than there is.

    >>> epsilon_text(0.99951), epsilon_text(None)
    ('0.9996', 'infinite')
    """
    if epsilon is None or math.isinf(epsilon):
        return "infinite"
    return _upwards(epsilon)


def _upwards(number: float) -> str:
    if number <= 0:
        return "0"
    shown = f"{number:.4g}"
    if float(shown) < number:
        shown = f"{float(shown) + 10.0 ** (math.floor(math.log10(number)) - 3):.4g}"
    return shown


# -------------------------------------------------------------------------------------------- notes


def _notes(content: Content, statement: PrivacyStatement | None, background: Background) -> tuple[Note, ...]:
    found = [
        *_privacy_notes(statement),
        *(("certificate", text) for text in _certificate_notes(background.certificate)),
        *(("rows", text) for text in _row_notes(content)),
        *(("page", text) for text in background.notes),
        *_page_notes(content, statement),
    ]
    return tuple(Note(kind, text) for kind, text in dict.fromkeys(found))


def _certificate_notes(certificate: Certificate | None) -> Iterator[str]:
    """Yield remedies and warnings of the certificate, equal ones once."""
    if certificate is None:
        return
    by_remedy: dict[str, list[str]] = {}
    for row in certificate:
        if row.remedy:
            by_remedy.setdefault(row.remedy, []).append(row.name)
    for remedy, names in by_remedy.items():
        subject = list_values(names, 3) if len(names) < 4 else f"{len(names)} constraints"
        yield f"{subject}: {remedy}"
    yield from certificate.warnings


def _page_notes(content: Content, statement: PrivacyStatement | None) -> Iterator[tuple[str, str]]:
    if content.released:
        yield "page", "Everything on this page was released by the training and is covered by its guarantee."
        return
    covered = " The privacy guarantee covers the model and its training, not these measurements."
    yield (
        "page",
        f"This page was measured on the rows it was given, without noise.{covered if statement else ''} Show it "
        "only to those who may know rates of these rows.",
    )
    if content.constraints and statement is not None:
        yield (
            "aim",
            "Training aims at the constraints on training rows. Other people differ by chance, and more so if "
            "they come from another population.",
        )


def _privacy_notes(statement: PrivacyStatement | None) -> Iterator[tuple[str, str]]:
    if statement is None:
        yield "privacy", "Nothing is known about the privacy of these predictions."
        return
    for leak in statement.outside:
        yield "leak", f"Read off the private data and not covered by epsilon: {leak}."
    if math.isinf(statement.epsilon):
        yield "privacy", "The model has no privacy guarantee: epsilon is infinite."
    elif statement.unit.kind == "row":
        yield "privacy", "One row is protected. A person with several rows is protected less."


def _row_notes(content: Content) -> Iterator[str]:
    empty = sum(constraint.reached is None for constraint in content.constraints)
    small = sum(group.rows < SMALL_GROUP for grouping in content.groupings for group in grouping.groups)
    if empty:
        yield f"{empty:,} of {len(content.constraints):,} constraints are about groups without rows here."
    if small:
        yield f"{small:,} of the groups have fewer than {SMALL_GROUP} rows; their rates say little."
    if content.score_words and not content.calibration:
        yield f"Calibration needs at least {FEW_ROWS} rows and is not shown."


def check_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """Return further warnings as a tuple of texts."""
    return tuple(_validate.texts(notes=notes))
