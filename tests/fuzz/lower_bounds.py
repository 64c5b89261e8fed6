"""The truth from below: what no book may show less than, by an accountant that is not ours.

dp-accounting's optimistic grid gives a lower bound on the exact curve of sampled Gaussian and Laplace
releases, some per mille below it. What it does not know (a selection, somebody's guarantee, a Laplace
histogram beside a gradient) is left out, which only lowers it further.
"""

from __future__ import annotations

import functools

from dp_accounting.pld import privacy_loss_distribution as pld

from ratewise.accounting import GaussianEvent, LaplaceEvent, TrainingEvent


def releases(event):
    """Return (law, noise, sampling rate, times) of an event, or nothing for one that is left out."""
    if isinstance(event, GaussianEvent):
        return "gaussian", event.noise, 1.0, event.count
    if isinstance(event, LaplaceEvent):
        return "laplace", event.noise, 1.0, event.count
    if isinstance(event, TrainingEvent):
        noise = event.joint_gaussian_noise
        law, noise = ("laplace", event.laplace_scale) if noise is None else ("gaussian", noise)
        return law, noise, event.sampling_rate, event.steps
    return None


def least_epsilon(events, delta):
    """Return an epsilon that the events together exceed, for neighbours by adding or removing a row; or 0."""
    known = [found for found in map(releases, events) if found is not None]
    if not known:
        return 0.0
    interval = 5e-4 if min(noise for _, noise, _, _ in known) >= 1 else 2e-3
    options = {"pessimistic_estimate": False, "value_discretization_interval": interval}
    parts = []
    for law, noise, rate, times in known:
        make = pld.from_gaussian_mechanism if law == "gaussian" else pld.from_laplace_mechanism
        part = make(noise, sampling_prob=rate, use_connect_dots=False, **options)
        parts.append(part.self_compose(times))
    whole = functools.reduce(lambda one, other: one.compose(other), parts)
    return whole.get_epsilon_for_delta(delta)


def check_not_below_the_truth(epsilon, events, delta):
    """Fail if an epsilon that was stated for the events is less than what they cost."""
    least = least_epsilon(events, delta)
    assert epsilon >= least * (1 - 1e-9), f"{epsilon} is stated, the truth is at least {least}"
