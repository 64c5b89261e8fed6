"""A plan in words: what will run, and why these numbers.

>>> from ratewise.defaults import PublicFacts, plan_for
>>> plan = plan_for(PublicFacts(n_rows=30_000, n_features=20, n_classes=2), epsilon=1.0, delta=1e-5)
>>> print(explain(plan).splitlines()[2])
steps: 200. More steps share the same budget, with more noise in each
"""

from __future__ import annotations

import textwrap
from dataclasses import replace

from ratewise.plan import Plan, Preparation


def explain(plan: Plan, *, limited: bool | None = None, curved: int = 0, found: bool = True) -> str:
    """Return a paragraph per choice of a plan. Nothing in it depends on a row but by what was released.

    Parameters
    ----------
    plan : Plan
    limited : bool, optional
        Whether there are limits; a private plan tells by itself, and others are taken to have some.
    curved : int
        How many features enter a second time, bent.
    found : bool
        Whether there are numbers to be cut off and bent; without declared bounds that was looked for.
    """
    if plan.preparation is not None and not found:
        flags_alone = replace(plan.preparation, tails=None, bends=None, curves=False)
        plan = replace(plan, preparation=flags_alone)
    parts = [
        *_sampling(plan),
        *_noise(plan),
        *_bounds(plan),
        *_curves(plan, curved),
        *_descent(plan),
        *(_limits(plan) if limited is not False else []),
    ]
    return "\n".join(textwrap.fill(f"{name}: {text}", 110, subsequent_indent="    ") for name, text in parts)


def _sampling(plan: Plan) -> list[tuple[str, str]]:
    rows = f"{plan.n_rows} rows takes part in a step with probability {plan.sampling_rate:.3g}"
    return [
        (
            "batches",
            f"each of {rows}, so {plan.expected_rows:.0f} of them on average. Large batches drown the "
            "noise; past some ten thousand rows only time is won by making them smaller",
        ),
        ("steps", f"{plan.steps}. More steps share the same budget, with more noise in each"),
    ]


def _noise(plan: Plan) -> list[tuple[str, str]]:
    if not plan.private:
        return [("noise", "none: this training has no guarantee")]
    found = [
        (
            "gradient noise",
            f"{plan.gradient_noise:.4g} times the clip on the sum of a batch, found from the budget by the "
            "accountant, jointly with everything else that is released",
        )
    ]
    if plan.histogram_noise is not None:
        found.append(
            (
                "histogram noise",
                f"{plan.histogram_noise:.4g} ({plan.histogram}) on each count of predictions per cell, about "
                f"{plan.histogram_noise / plan.expected_rows:.2%} of a batch. By default it takes a tenth of "
                "the budget, since counts are coarse numbers and need little, and up to a quarter where "
                "noise would hide rates: where rows are few, or groups many and gradients can spare it. "
                "Limits on two groups that are tighter than noise get up to half, if gradients can do so",
            )
        )
    return found


def _paid(preparation: Preparation) -> str:
    least, most = (8, 16) if preparation.sized else (6, 12)
    saved = ". Declared bounds of features would save the release of sizes" if preparation.sized else ""
    return (
        f". By default that takes {least}% of the budget, and up to {most}% where rows are few beside "
        f"features{saved}"
    )


def _cut_off(preparation: Preparation) -> str:
    if preparation.tails is None:
        return ""
    return (
        f". Before that, numbers are cut off {preparation.tails:g} deviations from their means, which a "
        "first look finds: the few far out cost more than they tell; tails=None keeps them"
    )


def _bounds(plan: Plan) -> list[tuple[str, str]]:
    found = []
    if plan.preparation is not None:
        sized = "sizes, " if plan.preparation.sized else ""
        noisy = "with noise, " if plan.private else ""
        found.append(
            (
                "features",
                f"centred and scaled by {sized}means and deviations that are released {noisy}because descent "
                "is at a loss when features differ in size"
                + _cut_off(plan.preparation)
                + (_paid(plan.preparation) if plan.private else ""),
            )
        )
    if plan.row_norm is not None:
        found.append(("row bound", f"rows longer than {plan.row_norm:g} are shrunk to it, which is free"))
    if plan.clip is not None:
        found.append(
            (
                "clip",
                f"a row's gradient is cut to length {plan.clip:.3g}. Left open, it is as large as the noise "
                "allows, since cutting distorts most what matters most",
            )
        )
    return found


def _curves(plan: Plan, curved: int) -> list[tuple[str, str]]:
    bends = None if plan.preparation is None else plan.preparation.bends
    if bends is not None:
        return [
            (
                "bends",
                "numbers enter a second time, by how near each is to its mean (nothing from one deviation "
                f"on), at {bends:.2g} of the size of other features, so that scores may bend a little: rows "
                "are not enough for more. It costs no privacy; curves=False keeps scores linear",
            )
        ]
    if not curved:
        return []
    return [
        (
            "curves",
            f"{curved} of the features enter a second time, by how near each is to the middle of its "
            "bounds, so that scores may bend in it. By default those are numbers, if rows are enough. It "
            "costs no privacy; curves=False keeps scores linear",
        )
    ]


def _descent(plan: Plan) -> list[tuple[str, str]]:
    averaged = {
        "tail": f"the mean of the last {plan.averaging_fraction:.0%} of the iterates, which costs nothing",
        "polynomial": "a mean of the iterates with more weight on the later ones, which costs nothing",
        "none": "the last iterate",
    }
    shrunk = (
        f". Weights are drawn towards zero by a penalty of {plan.l1:.2g} on their size: left open, what "
        "noise alone makes of a weight's mean gradient, less where noise is small, and mostly nothing"
        if plan.l1 > 0
        else ""
    )
    return [
        (
            "descent",
            f"learning rate {plan.learning_rate:g} ({plan.schedule}), momentum {plan.momentum:g}; the model "
            f"is {averaged[plan.averaging]}. Left open, the rate falls where noise is more than clipping can "
            f"bring down{shrunk}",
        )
    ]


def _limits(plan: Plan) -> list[tuple[str, str]]:
    dual = plan.dual
    if plan.private and plan.histogram_noise is None:
        return []
    weighed = ""
    if dual.memory > 0:
        weighed += f". Rates are means over about {1.0 / (1.0 - dual.memory):.0f} steps"
    if dual.known_totals:
        weighed += ". What the counts of a cell add up to is known better by all histograms than by one, and "
        weighed += "put right in each"
    if dual.noise_tolerance is not None:
        weighed += ". Errors count less the noisier they are, so that small groups do not stir the rest"
        if dual.patience:
            weighed += f", and more while their mean over {dual.patience} steps is clear"
        if dual.patience and dual.penalty > 0:
            weighed += "; where noise hides a limit, that mean alone pushes"
    return [
        (
            "limits",
            f"held on {plan.rates} predictions; multipliers rise by {dual.rate:g} times the excess "
            f"({dual.schedule}), every {dual.interval} step(s), with a damping of {dual.penalty:g}{weighed}",
        )
    ]
