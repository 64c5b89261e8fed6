"""``ratewise audit``: try to break the guarantee of a plan, on made-up worst-case rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import click

from ratewise.audit import (
    AuditResult,
    Check,
    Subject,
    audit_one_run,
    audit_step,
    check_noise,
    check_replay,
    check_sampling,
)
from ratewise.cli.options import PLACE
from ratewise.cli.output import Console
from ratewise.exceptions import InvalidInput
from ratewise.plan import Plan
from ratewise.randomness import RandomStreams
from ratewise.runs import RunFolder

_MEANING = (
    "A pass is evidence, not a proof: this adversary found no contradiction to the claim on worst-case rows. "
    "It says nothing about data that was read before, files, clocks or seeds."
)


@click.command()
@click.argument("run", type=PLACE, required=False)
@click.option("--sampling-rate", type=float, default=1.0, show_default=True, help="Without RUN.")
@click.option("--steps", type=int, default=1, show_default=True, help="Without RUN.")
@click.option("--gradient-noise", type=float, default=1.0, show_default=True, help="Without RUN.")
@click.option("--histogram-noise", type=float, default=2.0, show_default=True, help="Without RUN.")
@click.option("--histogram", type=click.Choice(["gaussian", "laplace"]), default="gaussian")
@click.option("--noise", type=click.Choice(["discrete", "continuous"]), default="discrete")
@click.option("--engine", type=click.Choice(["numpy", "torch"]), default="numpy", show_default=True)
@click.option("--games", type=int, default=10_000, show_default=True, help="Games with a single step.")
@click.option("--canaries", type=int, default=1000, show_default=True, help="Of the audit in one run.")
@click.option("--delta", type=float, default=1e-3, show_default=True)
@click.option("--confidence", type=float, default=0.99, show_default=True)
@click.pass_context
def audit(ctx: click.Context, /, run: str | None, **values: Any) -> None:
    """Try to break the guarantee of RUN, a run folder, or of the noise given; exit 1 if it breaks.

    Plays on made-up worst-case rows and reads no data: it costs no privacy.
    """
    console = ctx.find_object(Console) or Console()
    plan = RunFolder.open(run).plan if run is not None else _plan(values)
    if not plan.private:
        raise InvalidInput("the plan has no noise, so there is nothing to audit; give a private run")
    passed = True
    for found in _findings(plan, values):
        fields = found.to_dict() if isinstance(found, AuditResult) else dataclasses.asdict(found)
        console.result(str(found), **fields)
        passed = passed and found.passed
    console.note(_MEANING)
    if not passed:
        raise click.exceptions.Exit(1)


def _plan(values: dict[str, Any]) -> Plan:
    return Plan(
        n_rows=1000,
        sampling_rate=values["sampling_rate"],
        steps=values["steps"],
        clip=1.0,
        gradient_noise=values["gradient_noise"],
        histogram_noise=values["histogram_noise"],
        histogram=values["histogram"],
        noise=values["noise"],
    )


def _findings(plan: Plan, values: dict[str, Any]) -> Iterator[AuditResult | Check]:
    level = {"delta": values["delta"], "confidence": values["confidence"]}
    alone = dataclasses.replace(plan, sampling_rate=1.0)  # sampling hides what the noise does; it comes below
    kinds = [("gradient", "likelihood")]
    if plan.histogram_noise is not None:
        kinds += [("histogram", "likelihood"), ("histogram", "difference"), ("together", "likelihood")]
    for releases, attack in kinds:
        subject = _subject(values["engine"], alone, 1, None)
        yield audit_step(
            alone, games=values["games"], releases=releases, attack=attack, subject=subject, **level
        )
    subject = _subject(values["engine"], plan, values["canaries"], 0)
    yield audit_one_run(plan, canaries=values["canaries"], subject=subject, **level)
    streams = RandomStreams.from_seed()
    yield check_noise(plan, streams=streams)
    yield check_replay(plan, streams=streams)
    yield check_sampling(plan.sampling_rate, streams=streams)


def _subject(engine: str, plan: Plan, n_canaries: int, n_opponents: int | None) -> Subject | None:
    if engine == "numpy":
        return None
    try:
        from ratewise.torch.audit import TorchSubject
    except ImportError:
        raise InvalidInput("engine 'torch' needs PyTorch: pip install ratewise[torch]") from None
    return TorchSubject(plan, n_canaries, n_opponents)
