"""The command line of the suite."""

from __future__ import annotations

import argparse
import sys

from benchmarks.suite.config import UnknownExperiment, experiment, names
from benchmarks.suite.runner import chosen, run
from benchmarks.suite.store import ResultsError, Store, results_path
from ratewise.exceptions import RatewiseError


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 2 if it cannot be done, with one line that says why."""
    options = _parser().parse_args(arguments)
    try:
        return options.action(options)
    except (UnknownExperiment, ResultsError, RatewiseError) as problem:
        print(f"error: {problem}", file=sys.stderr)
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
    chosen = names() if options.name == "all" else [options.name]
    only = dict(item.split("=", 1) for item in options.only)
    for found in [experiment(name) for name in chosen]:
        run(found, options.mode, workers=options.workers, only=only)
    return 0


def _forget(options: argparse.Namespace) -> int:
    only = dict(item.split("=", 1) for item in options.only)
    for name in names() if options.name == "all" else [options.name]:
        path = results_path(experiment(name).name, "full")
        if path.exists():
            store = Store(path, name)
            keys = [key for key, record in store.records.items() if chosen(record, only)]
            print(f"{name}: {len(keys)} of {len(store)} results left out; before: {store.forget(keys)}")
    return 0


def _figures(options: argparse.Namespace) -> int:
    from benchmarks.suite.figures import draw_all

    for path in draw_all(options.mode):
        print(path)
    return 0


def _page(options: argparse.Namespace) -> int:  # noqa: ARG001
    from benchmarks.suite.page import write_page

    print(write_page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
