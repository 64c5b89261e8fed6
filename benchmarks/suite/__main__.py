"""The command line of the suite."""

from __future__ import annotations

import argparse
import sys

from benchmarks.suite.config import (
    Experiment,
    UnknownChoice,
    UnknownExperiment,
    chosen,
    experiment,
    names,
    read_choice,
)
from benchmarks.suite.runner import RunStopped, run
from benchmarks.suite.store import ResultsError, Store, results_path
from ratewise.exceptions import RatewiseError


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 2 if it cannot be done, with one line that says why."""
    options = _parser().parse_args(arguments)
    try:
        return options.action(options)
    except (UnknownExperiment, UnknownChoice, RunStopped, ResultsError, RatewiseError) as problem:
        print(f"error: {problem}", file=sys.stderr)
    except ModuleNotFoundError as problem:
        print(f"error: this command needs {problem.name}, which is not installed", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped; results are kept, and the same command goes on from here", file=sys.stderr)
        return 130
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    commands = parser.add_subparsers(required=True)
    listing = commands.add_parser("list", help="name the experiments")
    listing.set_defaults(action=_list)
    running = commands.add_parser("run", help="run what has no result yet")
    running.add_argument("name", help="an experiment, or all")
    mode = running.add_mutually_exclusive_group(required=True)
    mode.add_argument("--quick", dest="mode", action="store_const", const="quick")
    mode.add_argument("--full", dest="mode", action="store_const", const="full")
    running.add_argument("--workers", type=int, help="processes (default: one per core)")
    running.add_argument(
        "--only", action="append", default=[], metavar="FIELD=VALUE[,VALUE]", help="such as method=ours"
    )
    running.set_defaults(action=_run)
    forgetting = commands.add_parser("forget", help="leave out full results, to run them again")
    forgetting.add_argument("name", help="an experiment, or all")
    forgetting.add_argument("--only", action="append", required=True, metavar="FIELD=VALUE[,VALUE]")
    forgetting.set_defaults(action=_forget)
    figures = commands.add_parser("figures", help="draw all figures from full results")
    figures.add_argument("--quick", dest="mode", action="store_const", const="quick", default="full")
    figures.set_defaults(action=_figures)
    page = commands.add_parser("results-page", help="write docs/results.md from full results")
    page.set_defaults(action=_page)
    return parser


def _list(options: argparse.Namespace) -> int:  # noqa: ARG001 - one signature for all commands
    for name in names():
        found = experiment(name)
        jobs = {mode: len(found.jobs(mode)) for mode in ("quick", "full")}
        print(f"{found.number:2d} {name:16} {found.title}; {jobs['quick']} quick jobs, {jobs['full']} full")
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.workers is not None and options.workers < 1:
        raise UnknownChoice(
            f"--workers must be at least 1, got {options.workers}; left out, it is one per core"
        )
    every = _experiments(options.name)
    jobs = {found.name: list(found.jobs(options.mode).values()) for found in every}
    only = read_choice(options.only, [job for some in jobs.values() for job in some])
    wanted = [found for found in every if any(chosen(job, only) for job in jobs[found.name])]
    if not wanted:
        asked = " with ".join(options.only)
        raise UnknownChoice(
            f"no {options.mode} job of {options.name} has {asked}, though some have each alone"
        )
    for found in wanted:
        run(found, options.mode, workers=options.workers, only=only)
    return 0


def _forget(options: argparse.Namespace) -> int:
    every = _experiments(options.name)
    stores = [Store(results_path(found.name, "full"), found.name) for found in every]
    jobs = [job for found in every for job in found.jobs("full").values()]
    only = read_choice(
        options.only, [*jobs, *(record for store in stores for record in store.records.values())]
    )
    for store in stores:
        keys = [key for key, record in store.records.items() if chosen(record, only)]
        total, before = len(store), store.forget(keys)
        kept = "nothing was changed" if before is None else f"before: {before}"
        print(f"{store.name}: {len(keys)} of {total} results left out; {kept}")
    return 0


def _experiments(name: str) -> list[Experiment]:
    return [experiment(each) for each in (names() if name == "all" else [name])]


def _figures(options: argparse.Namespace) -> int:
    from benchmarks.suite.figures import draw_all

    for name in names():  # a damaged file is refused before any figure is drawn
        Store(results_path(name, options.mode), name)
    for path in draw_all(options.mode):
        print(path)
    return 0


def _page(options: argparse.Namespace) -> int:  # noqa: ARG001
    from benchmarks.suite.page import write_page

    print(write_page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
