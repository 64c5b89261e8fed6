"""Experiments as plain files: a list of curves, each a method on data sets with budgets and knobs.

A curve of `configs/NAME.toml`::

    [[curves]]
    datasets = ["adult"]              # names of ratewise.datasets.LOADERS
    method = "ours"                   # a name of methods.METHODS
    epsilons = [1.0, 9.0]             # left out for methods without privacy
    knobs = [0.05, 0.1]               # slack, weight or step; left out for methods without one
    settings = {clip = 3.0}           # handed to the method
    sweep = {clip = [1.0, 10.0]}      # one curve per value
    variant = "soft"                  # told apart in figures
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.suite.store import job_key

FOLDER = Path(__file__).parent / "configs"


class UnknownExperiment(Exception):  # noqa: N818 - reads as what happened
    """No config of that name."""


class UnknownChoice(Exception):  # noqa: N818
    """An option asks for what is not there."""


@dataclass(frozen=True)
class Experiment:
    """A config, read."""

    name: str
    number: int
    title: str
    text: str
    figure: str
    constraint: str
    column: str
    delta: float
    shared_split: bool
    modes: dict[str, dict[str, Any]]
    curves: tuple[dict[str, Any], ...]

    def jobs(self, mode: str) -> dict[str, dict[str, Any]]:
        """Return the jobs of a mode by key, grouped so that a data set is loaded once."""
        limits = self.modes[mode]
        found: dict[str, dict[str, Any]] = {}
        for curve in self.curves:
            for job in self._curve_jobs(curve, limits):
                found[job_key(job)] = job
        return dict(sorted(found.items(), key=lambda item: (item[1]["split"], item[1]["dataset"])))

    def _curve_jobs(self, curve: dict[str, Any], limits: dict[str, Any]) -> Any:
        epsilons = curve.get("epsilons", [None])
        if "epsilons" in limits and epsilons != [None]:
            epsilons = [value for value in epsilons if value in limits["epsilons"]]
        knobs = curve.get("knobs", [None])[:: limits.get("every", 1)]
        datasets = [d for d in curve["datasets"] if d in limits.get("datasets", curve["datasets"])]
        splits = min(limits["splits"], curve.get("splits", limits["splits"]))
        for dataset, epsilon, knob, settings, number in itertools.product(
            datasets,
            epsilons,
            knobs,
            _sweep(curve),
            range(-splits, 0) if self.shared_split else range(splits),
        ):
            yield {
                "dataset": dataset,
                "constraint": self.constraint,
                "column": self.column,
                "method": curve["method"],
                "variant": curve.get("variant", ""),
                "epsilon": epsilon,
                "delta": self.delta,
                "knob": knob,
                "settings": settings,
                "split": number,
            }


def names() -> list[str]:
    """Return the experiments there are, by number."""
    return [path.stem.split("-", 1)[1] for path in sorted(FOLDER.glob("*.toml"))]


def experiment(name: str) -> Experiment:
    """Return one experiment; an unknown name is answered with the known ones."""
    for path in FOLDER.glob("*.toml"):
        number, known = path.stem.split("-", 1)
        if known == name:
            return _read(path, int(number), name)
    raise UnknownExperiment(f"there is no experiment {name!r}; there are {', '.join(names())}")


def _read(path: Path, number: int, name: str) -> Experiment:
    raw = tomllib.loads(path.read_text())
    return Experiment(
        name=name,
        number=number,
        title=raw["title"],
        text=raw.get("text", ""),
        figure=raw["figure"],
        constraint=raw["constraint"],
        column=raw.get("column", "sex"),
        delta=raw.get("delta", 1e-5),
        shared_split=raw.get("shared_split", False),
        modes={"full": {"splits": 10, **raw.get("full", {})}, "quick": {"splits": 2, **raw.get("quick", {})}},
        curves=tuple(raw["curves"]),
    )


def _sweep(curve: dict[str, Any]) -> list[dict[str, Any]]:
    settings, sweep = curve.get("settings", {}), curve.get("sweep", {})
    values = itertools.product(*sweep.values())
    return [{**settings, **dict(zip(sweep, chosen, strict=True))} for chosen in values]


def read_choice(items: Iterable[str], known: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return items FIELD=VALUE[,VALUE] as a mapping; what no job or result of `known` has is refused.

    >>> read_choice(["method=a,b"], [{"method": "a"}, {"method": "b"}])
    {'method': 'a,b'}
    """
    fields = dict.fromkeys(field for each in known for field in each)
    found: dict[str, str] = {}
    for item in items:
        field, equals, value = item.partition("=")
        if not equals:
            raise UnknownChoice(f"--only {item!r} is not FIELD=VALUE[,VALUE]; fields are {_some(fields)}")
        if field not in fields:
            raise UnknownChoice(f"--only {item!r}: there is no field {field!r}; there are {_some(fields)}")
        if field in found:
            raise UnknownChoice(f"--only names {field} twice; give {field}={found[field]},{value}")
        values = dict.fromkeys(str(each.get(field)) for each in known)
        for one in value.split(","):
            if one not in values:
                raise UnknownChoice(f"--only {item!r}: no {field} is {one!r}; there are {_some(values)}")
        found[field] = value
    return found


def chosen(job: Mapping[str, Any], only: Mapping[str, str]) -> bool:
    """Return whether a job or result has the given values; several are separated by commas."""
    return all(str(job.get(field)) in value.split(",") for field, value in only.items())


def _some(names: Iterable[str], most: int = 30) -> str:
    every = [name or "''" for name in names]
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")
