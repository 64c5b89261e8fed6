"""From a model or from predictions to the content of a report: released values, sentences and notes.

Epsilons do not add up: a release is shown by how much it raises the total of all that came before it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise._files import now
from ratewise.accounting import Event, Ledger, PrivacyStatement, accountant
from ratewise.accounting.events import merged, single
from ratewise.accounting.statement import epsilon_text, software_version
from ratewise.constraints.compiled import as_constraints
from ratewise.constraints.domain import Domain, Numeric, list_values, show_number
from ratewise.data.table import code_groups, code_labels
from ratewise.exceptions import InvalidType
from ratewise.models.fitted import ShapeFunction, unused_words
from ratewise.report import content as c
from ratewise.report import evaluation
from ratewise.report.content import Content, finite, finites, listed
from ratewise.report.evaluation import FEW_ROWS, OTHER, Evaluation, Floats, ValueNames, constraints_of
from ratewise.training.certificate import CANNOT_TELL, HELD, MISSED, Certificate, short

MOST_ENTRIES = 40  # of the budget
CURVE_POINTS, MOST_CURVES = 120, 40  # of the training
MOST_SHAPES = 60
SMALL_GROUP = 30
_STEP_SHARE = 0.01  # of the rows and of the width, in a drawn step of a shape function
_HIDDEN = 0.0005  # of the rows: fewer, at the ends or in a category, are not drawn
_NOISE_LEVEL = 1.96
_SHOWN_CONSTRAINTS = 3
_SHOWN_VALUES = 8
_OTHERWISE = {"add_or_remove": "not taken part", "replace_one": "been another", "zero_out": "been blanked out"}


# ------------------------------------------------------------------------------------------------ budget


def spending_of(ledger: Ledger, delta: float) -> c.Spending:
    """Return the picture of a ledger at a delta; equal releases that follow each other are one entry."""

    def epsilon(events: Iterable[Event]) -> float:
        return accountant.epsilon(merged(events), delta, neighbours=ledger.neighbours)

    before, so_far, entries = 0.0, list[Event](), list[c.LedgerEntry]()
    for (purpose, data, _), run in itertools.groupby(_releases(ledger), lambda one: one[0]):
        events = merged(event for _, event in run)
        so_far += events
        after = epsilon(so_far)
        entries.append(c.LedgerEntry(purpose, data, str(events[0]), *finites(epsilon(events), before, after)))
        before = after
    extra = len(entries) - MOST_ENTRIES
    if extra > 0:  # the earliest become one, which keeps the sums right
        start, end = entries[0].before, entries[extra].after
        words = f"the first {extra + 1} releases"
        entries[: extra + 1] = [c.LedgerEntry(words, "", "see the ledger itself", end, start, end)]
    return c.Spending(delta, None if ledger.cap is None else ledger.cap.epsilon, finite(before), tuple(entries))


def _releases(ledger: Ledger) -> Iterator[tuple[tuple[str, str, Event], Event]]:
    """Yield every release that was admitted, in order: its name in its plan, its data and one event; and its event."""
    for plan in ledger.admissions:
        for name, event in zip(plan.names, plan.events, strict=True):
            several = plan.purpose and len(ledger.admissions) > 1  # then purposes tell them apart
            both = (f"{plan.purpose}: {name}" if len(plan.names) > 1 else plan.purpose) if several else name
            yield (both, plan.data, single(event)[0]), event


# ---------------------------------------------------------------------------------------------- training


def training_of(history: Mapping[str, Any], compiled: Any = None) -> c.Training | None:
    """Return the curves of a history; `compiled` names the constraints and holds their bounds.

    At most `MOST_CURVES` constraints are kept, those with the largest multipliers in the last quarter
    (then those nearest to their bound), and at most `CURVE_POINTS` steps, each a mean over several.
    """
    steps = np.asarray(history.get("step", ()))
    if not len(steps):
        return None
    edges = np.unique(np.linspace(0, len(steps), min(CURVE_POINTS, len(steps)) + 1).astype(np.intp))

    def thin(values: Any) -> tuple[float | None, ...]:
        return tuple(map(finite, _means(np.asarray(values, dtype=np.float64), edges[:-1])))

    curves: list[c.Curve] = []
    left_out = 0
    if compiled is not None and "values" in history:
        excess = np.asarray(history["values"], dtype=np.float64) - np.asarray(compiled.bounds)
        multipliers = np.asarray(history["multipliers"], dtype=np.float64)
        late = np.array([3 * len(excess) // 4])
        order = np.lexsort([np.nan_to_num(-_means(x, late)[0], nan=np.inf) for x in (excess, multipliers)])
        curves = [c.Curve(compiled.names[j], thin(excess[:, j]), thin(multipliers[:, j])) for j in order[:MOST_CURVES]]
        left_out = len(order) - len(curves)
    kept = tuple(int(step) for step in steps[edges[1:] - 1])
    return c.Training(kept, thin(history["gradient_norm"]), tuple(curves), left_out)


def _means(values: Floats, starts: npt.NDArray[np.intp]) -> Floats:
    """Return the mean of what is finite in each stretch; NaN if nothing is."""
    there = np.isfinite(values)
    sums = np.add.reduceat(np.where(there, values, 0.0), starts)
    counts = np.add.reduceat(there.astype(np.float64), starts)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


# -------------------------------------------------------------------------------------- shape functions


def shapes_of(model: Any, classes: tuple[str, ...], names: ValueNames) -> tuple[c.Shape, ...]:
    """Return the shape functions of a fitted classifier, the most important features first.

    Of two classes the score of the second is shown.
    """
    functions = getattr(getattr(model, "model_", None), "shape_functions", None)
    if functions is None:
        return ()
    found = []
    for shape in sorted(functions(), key=lambda shape: -shape.importance)[:MOST_SHAPES]:
        if shape.importance > 0:
            drawn = shape_of(shape, classes[1 if len(classes) == 2 else shape.output])
            labels = tuple(names.value(shape.feature, label) for label in drawn.labels)
            found.append(replace(drawn, feature=names.title(shape.feature), labels=labels))
    return tuple(found)


def shape_of(shape: ShapeFunction, output: str) -> c.Shape:
    """Return a shape function prepared for a picture."""
    half, special = _NOISE_LEVEL * shape.standard_error, list[tuple[str, float]]()
    if shape.edges is None:
        kept = np.flatnonzero(shape.shares >= _HIDDEN)
        edges, labels = np.empty(0), tuple(shape.labels[place] for place in kept)
        values, low, high = shape.values[kept], (shape.values - half)[kept], (shape.values + half)[kept]
    else:
        shares = np.maximum(shape.shares, 0.0)
        starts, stop = _steps(shares, shape.edges)
        weights = np.maximum(shares, 1e-12 * np.diff(shape.edges) / np.ptp(shape.edges))[:stop]
        total = np.add.reduceat(weights, starts)
        values = np.add.reduceat(shape.values[:stop] * weights, starts) / total
        spread = np.add.reduceat(half[:stop] * weights, starts) / total
        low, high = values - spread, values + spread
        edges, labels = np.append(shape.edges[starts], shape.edges[stop]), ()
        parts = zip(shape.labels, shape.special, shape.special_shares, strict=True)
        special = [(label, float(v)) for label, v, share in parts if share >= _STEP_SHARE / 2]
    return c.Shape(
        shape.feature,
        output,
        shape.importance,
        edges=tuple(edges.tolist()),
        labels=labels,
        values=tuple(values.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        special=tuple(special),
    )


def _steps(shares: Floats, edges: Floats) -> tuple[npt.NDArray[np.intp], int]:
    """Return where the drawn steps begin, and where the last one ends.

    A step joins bins until it has a hundredth of the rows and of the width, because the contribution of bins
    with hardly any rows is mostly noise. Bins at both ends without rows are left out.
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


# ----------------------------------------------------------------------------------------------- content


@dataclass(frozen=True)
class Background:
    """What is known about a model besides its predictions; every part may be missing.

    `target` and `data` are what the label and the rows measured on are called; `notes` are further warnings.
    """

    name: str = "model"
    model: Any = None
    statement: PrivacyStatement | None = None
    ledger: Ledger | None = None
    target: str | None = None
    data: str | None = None
    title: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", _validate.texts(notes=self.notes))

    @classmethod
    def of_model(cls, model: Any, statement: PrivacyStatement | None, **known: Any) -> Background:
        """Return what a classifier knows of itself, and what else is known."""
        own: dict[str, Any] = {"name": type(model).__name__, "ledger": getattr(model, "ledger_", None)}
        given = {name: value for name, value in known.items() if value is not None}
        return cls(model=model, statement=statement, **(own | given))

    @property
    def certificate(self) -> Certificate | None:
        """The certificate of the model."""
        found = getattr(self.model, "certificate_", None)
        return found if isinstance(found, Certificate) else None

    @property
    def compiled(self) -> Any:
        """The constraints that the model was trained with."""
        return getattr(self.model, "constraints_", None)


Comparison = tuple[Any, Certificate | None, float | None]
"""Predictions of another model, their certificate, and its epsilon."""


def content_of(
    data: Evaluation, background: Background, certificate: Certificate | None, others: Mapping[str, Comparison]
) -> Content:
    """Measure everything and return the content of the report; `certificate` is that of the rows."""
    names, declared = data.names, data.constraints
    trained = background.certificate
    constraints = constraints_of(certificate, declared, data.domain, names, trained=trained)
    everyone, groupings = evaluation.groups_of(data)
    score = "the predicted class" if len(data.classes) > 2 else names.classes[data.classes[1]]
    return _content(
        background,
        certificate,
        names,
        data.domain.columns,
        released=False,
        rows=len(data.truth),
        confidence=data.confidence,
        score_words="" if data.scores is None else f"predicted probability of {score}",
        families=evaluation.families_of(declared, data.domain, names, constraints, data),
        constraints=constraints,
        everyone=everyone,
        groupings=groupings,
        calibration=evaluation.calibration_of(data),
        models=_models(data, background, certificate, others),
    )


def content_of_training(background: Background) -> Content:
    """Return the content of a report from released values alone."""
    model, certificate, statement = background.model, background.certificate, background.statement
    compiled = background.compiled
    columns = {} if compiled is None else compiled.domain.columns
    names = ValueNames(getattr(model, "schema", None), tuple(model.classes_.tolist()), columns)
    constraints: tuple[c.Constraint, ...] = ()
    families: tuple[c.Declared, ...] = ()
    if compiled is not None:
        constraints = constraints_of(certificate, model.constraints, compiled.domain, names, population=False)
        families = evaluation.families_of(model.constraints, compiled.domain, names, constraints)
    accuracy = None if certificate is None else certificate.accuracy
    numbers = (math.nan,) * 3 if accuracy is None else (accuracy.value, *accuracy.interval)
    value, low, high = finites(*numbers)
    rows = (statement.n_units if statement else None) or 0
    return _content(
        background,
        certificate,
        names,
        columns,
        released=True,
        rows=rows,
        confidence=0.95 if certificate is None else certificate.level,
        families=families,
        constraints=constraints,
        everyone=c.Group("everyone", rows, c.Share(value, low, high, rows), {}),
    )


def _content(
    background: Background,
    certificate: Certificate | None,
    names: ValueNames,
    columns: Mapping[str, Any],
    **measured: Any,
) -> Content:
    """Return content with what the training released, sentences and notes added to what was measured."""
    statement, ledger, target = background.statement, background.ledger, background.target
    classes, history = tuple(names.classes.values()), getattr(background.model, "history_", None)
    titled = f"Prediction of {names.title(target)}" if target else f"Report on {background.name}"
    headline = "No constraints were requested" if certificate is None else names.text(certificate.summary)
    if len(classes) < 2:
        one = listed(classes, 1)
        headline = f"The model predicts {one} for everyone: training found fewer than two classes"
    recorded = ledger is not None and statement is not None and ledger.records
    content = Content(
        title=_validate.text(required=True, title=titled if background.title is None else background.title),
        model=background.name,
        created=now(),
        version=software_version(),
        headline=headline,
        tolerance=0.01 if certificate is None else certificate.tolerance,
        classes=classes,
        shapes=shapes_of(background.model, classes, names),
        training=None if history is None else training_of(history, background.compiled),
        spending=spending_of(ledger, statement.delta) if ledger and statement and recorded else None,
        statement=None if statement is None else statement.to_dict(),
        words=() if statement is None else tuple(_privacy_in_words(statement)),
        **measured,
    )
    about = tuple(_about(content, columns, names, background))
    return replace(content, about=about, notes=_notes(content, background))


def comparisons_of(
    baseline: Any, X: Any, known: Any, judge: Callable[[Any], Certificate | None]
) -> dict[str, Comparison]:
    """Return what other models (one, or several by name) predict on the `known` rows."""
    models = baseline if isinstance(baseline, Mapping) else {"without constraints": baseline}
    found: dict[str, Comparison] = {}
    for name, model in () if baseline is None else models.items():
        if not callable(getattr(model, "predict", None)):
            raise InvalidType(
                f"baseline must be a fitted classifier, or a mapping of names to such, got {type(model).__name__}"
            )
        name = _validate.text(required=True, **{"each name of baseline": name})
        predicted, epsilon = model.predict(X), getattr(getattr(model, "privacy_", None), "epsilon", None)
        found[name] = predicted[known], judge(predicted), epsilon
    return found


def known_values(model: Any) -> dict[str, Any]:
    """Return the values of columns in training, so that constraints mean the same."""
    declared = getattr(model, "group_values", None) or {}
    domain = getattr(getattr(model, "constraints_", None), "domain", None)
    return {**({} if domain is None else domain.columns), **declared}


def known_rows(model: Any, y: Any, columns: Mapping[str, Any]) -> tuple[Any, dict[str, Any], npt.NDArray[np.bool_]]:
    """Return labels and groups, as a classifier of ours spells them, of rows whose label it knows; and which.

    A group that it does not know is `OTHER`; a row without a number for intervals is left out.
    """
    compiled = getattr(model, "constraints_", None)
    domain = Domain(tuple(model.classes_.tolist()), {}, other=True) if compiled is None else compiled.domain
    labels = code_labels(y, domain)
    known, groups = labels >= 0, {}
    for name, column in columns.items():
        values = domain.columns.get(name)
        codes = np.asarray(column) if values is None else code_groups({name: column}, domain)[name]
        if isinstance(values, Numeric):
            known &= np.isfinite(codes)
        elif values is not None:
            codes = np.array([*values, OTHER], dtype=object)[codes]
        groups[name] = codes
    spelt = np.array(domain.classes, dtype=object)[labels[known]]
    return spelt, {name: column[known] for name, column in groups.items()}, known


def _models(
    data: Evaluation, background: Background, certificate: Certificate | None, others: Mapping[str, Comparison]
) -> tuple[c.ComparedModel, ...]:
    """Return the models as they do on the rows, the one reported first."""
    statement, found = background.statement, list[c.ComparedModel]()
    reported = data.predicted, certificate, None if statement is None else statement.epsilon
    for name, (predicted, judged, epsilon) in [(background.name, reported), *others.items()]:
        accuracy = evaluation.accuracy_of(data, predicted)
        constraints = constraints_of(judged, data.constraints, data.domain, data.names)
        spent = None if epsilon is None else finite(epsilon)
        worst = max((one.excess for one in constraints if one.excess is not None), default=None)
        reached = tuple(one.reached for one in constraints)
        found.append(c.ComparedModel(name, accuracy, worst, reached, spent, spent is not None))
    return tuple(found)


# -------------------------------------------------------------------------------------------- words


def _about(content: Content, columns: Mapping[str, Any], names: ValueNames, background: Background) -> Iterator[c.Note]:
    """Yield what is predicted, for whom, from which rows and under which constraints."""
    model, statement, ledger = background.model, background.statement, background.ledger
    target = "" if background.target is None else f"{names.title(background.target)}: "
    features = getattr(model, "_feature_names", ())
    source = f", from {len(features)} features ({listed(features, 4)})" if features else ""
    yield c.Note("Predicted", target + listed(content.classes, 8) + source)
    groups = []
    for column, values in columns.items():
        few = isinstance(values, tuple) and len(values) <= _SHOWN_VALUES
        shown = f" ({', '.join(names.value(column, value) for value in values)})" if few else ""
        groups.append(names.title(column) + shown)
    if groups:
        yield c.Note("Groups", "; ".join(groups))
    source = "training rows" if content.released else "rows that were given"
    rows = f"{content.rows:,} {f'rows of {background.data}' if background.data else source}"
    if statement is not None and statement.n_units is not None and not content.released:
        sources = [*{plan.data for plan in ledger.admissions}] if ledger else []
        named = len(sources) == 1 and sources[0].startswith("rows of ") and statement.unit.kind == "row"
        trained = sources[0] if named else statement.unit.noun
        rows += f"; the model was trained on {statement.n_units:,} {trained}"
    yield c.Note("Trained on" if content.constant else "Measured on", rows)
    sentences = [family.words for family in content.families]
    sentences += [constraint.words for constraint in content.constraints if constraint.family is None]
    if content.constant:
        sentences = [f"{one} (not judged)." for one in as_constraints(getattr(model, "constraints", None))]
    more = len(sentences) - _SHOWN_CONSTRAINTS
    said = " ".join(sentences[:_SHOWN_CONSTRAINTS]) + (f" And {more} more." if more > 0 else "")
    yield c.Note("Constraints", said or "none")


def detail(content: Content) -> str:
    """Return the sentence below the headline."""
    if content.constant:
        remedy = "Train again with declared classes, with more rows or with a larger epsilon."
        return f"No constraint was judged. {remedy}"
    if not content.constraints:
        return f"Rates below were measured on {measured(content)}."
    within = f"within the bound plus {short(content.tolerance)}"
    held = f"its value on these rows is {within}."
    if content.released:
        level = f"{show_number(100 * content.confidence)}%"
        held = f"its whole {level} interval is {within}, and otherwise missed if all of it is beyond the bound."
    return f"Measured on {measured(content)}. A constraint is held if {held}"


def measured(content: Content) -> str:
    """Return which rows the numbers are about."""
    return f"{content.rows:,} {'training rows, with noise' if content.released else 'rows'}"


def certificate_line(content: Content) -> str:
    """Return what the private certificate says of the constraints on the training rows; "" without one."""
    states = [one.certified.state for one in content.constraints if one.certified is not None]
    counts = {state: states.count(state) for state in (HELD, MISSED, CANNOT_TELL)}
    words = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    return f"Certificate of the training rows (private): {words}." if words else ""


def _privacy_in_words(statement: PrivacyStatement) -> Iterator[str]:
    """Yield what the guarantee means, without formulas, and never more than it says."""
    if not statement.events:
        yield "Nothing was released from private data."
        return
    if math.isinf(statement.epsilon):
        risk = "it may reveal anything about the rows it was trained on"
        yield f"This model was trained without a privacy guarantee: {risk}."
        return
    times, delta = epsilon_text(math.exp(statement.epsilon)), f"{statement.delta:g}"
    yield (
        f"The model, and everything recorded while it was trained, protects {statement.unit} of the training "
        f"data by differential privacy with epsilon {epsilon_text(statement.epsilon)} and delta {delta}."
    )
    yield (
        "That means: any event that depends on this model and its records has at most "
        f"{times} times the probability that it would have if {statement.unit} had {_OTHERWISE[statement.neighbours]}, "
        f"plus {delta}. This holds whatever else anybody knows."
    )
    if statement.outside:
        yield f"Not covered, because it was read from the private data without noise: {'; '.join(statement.outside)}."


def _notes(content: Content, background: Background) -> tuple[c.Note, ...]:
    """Return all warnings and remarks, equal ones once."""
    statement, found = background.statement, list[tuple[str, str]]()
    if statement is None:
        found.append(("privacy", "Nothing is known about the privacy of these predictions."))
    else:
        if statement.outside:
            found.append(
                ("leak", f"This was read from the private data without noise: {'; '.join(statement.outside)}.")
            )
        if math.isinf(statement.epsilon):
            found.append(("privacy", "The model has no privacy guarantee: epsilon is infinite."))
        elif statement.unit.kind == "row":
            words = "One row is protected. A person with several rows is protected less."
            found.append(("privacy", words))
    found += [("certificate", text) for text in _certificate_notes(background.certificate)]
    found += [("rows", text) for text in _row_notes(content)]
    unused = unused_words(getattr(background.model, "unused_features_", {}))
    found += [("page", text) for text in (*background.notes, *unused)]
    covered = " The privacy guarantee covers the model and its training, not these measurements."
    words = (
        f"This page was measured on the rows it was given, without noise.{covered if statement else ''} "
        "Show it only to those who may know rates of these rows."
    )
    if content.released:
        words = "Everything on this page was released by the training and is covered by its guarantee."
    found.append(("page", words))
    if content.constraints and statement is not None and not content.released:
        words = "Other people differ by chance, and more so if they come from another population."
        found.append(("aim", f"Training aims at the constraints on training rows. {words}"))
    return tuple(c.Note(kind, text) for kind, text in dict.fromkeys(found))


def _certificate_notes(certificate: Certificate | None) -> Iterator[str]:
    """Yield remedies and warnings of the certificate, equal ones once."""
    by_remedy: dict[str, list[str]] = {}
    for row in certificate or ():
        if row.remedy:
            by_remedy.setdefault(row.remedy, []).append(row.name)
    for remedy, names in by_remedy.items():
        subject = list_values(names, 3) if len(names) < 4 else f"{len(names)} constraints"
        yield f"{subject}: {remedy}"
    yield from () if certificate is None else certificate.warnings


def _row_notes(content: Content) -> Iterator[str]:
    empty = sum(constraint.reached is None for constraint in content.constraints)
    small = sum(group.rows < SMALL_GROUP for grouping in content.groupings for group in grouping.groups)
    if empty:
        yield f"{empty:,} of {len(content.constraints):,} constraints are about groups without rows here."
    if small:
        yield f"{small:,} of the groups have fewer than {SMALL_GROUP} rows; their rates say little."
    if content.score_words and not content.calibration:
        yield f"Calibration needs at least {FEW_ROWS} rows and is not shown."
