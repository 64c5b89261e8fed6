"""The long fuzzing run: a hundred thousand inputs over all public entry points.

    python tests/fuzz/run.py [--inputs 100000] [--only NAME] [--seed 0] [--record FILE]

Prints one line per entry point: inputs, how many ended in a result rather than in one of our errors, time.
Any other exception, a model that is not finite, or a book below the truth is shown with the input, made as
small as Hypothesis can make it, and the run ends with an error after the other entry points were fed. An
input that takes longer than a minute is a hang: the stack is shown and the run ends. With ``--record``
counts, the share of inputs that ended in a result, seconds, commits, seeds and versions go to a JSON file
after every piece of a thousand inputs, and a run that was stopped goes on where the file ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from entry_points import TARGETS, survive

PATIENCE = 60  # seconds for one input
PIECE = 1000
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "pandas", "click", "hypothesis")


def run(name: str, inputs: int, start: int) -> tuple[int, int]:
    """Feed an entry point; return how many inputs it got and how many ended in a result."""
    target, _ = TARGETS[name]
    counted = {"inputs": 0, "results": 0}

    @seed(start)
    @settings(max_examples=inputs, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def feed(data: st.DataObject) -> None:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            counted["inputs"] += 1
            counted["results"] += survive(target, data.draw)
        finally:
            faulthandler.cancel_dump_traceback_later()

    feed()
    return counted["inputs"], counted["results"]


def shares(inputs: int, only: str | None) -> dict[str, int]:
    """Return how many inputs each entry point gets."""
    if only is not None:
        return {only: inputs}
    whole = sum(share for _, share in TARGETS.values())
    return {name: -(-inputs * share // whole) for name, (_, share) in TARGETS.items()}


def versions() -> dict[str, str]:
    """Return what ran."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **found}


def commit() -> str | None:
    """Return what is checked out, marked if files differ from it."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    found = subprocess.run(asked, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return found.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--only", choices=list(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    record = {"seed": options.seed, "piece": PIECE, "versions": versions(), "entry_points": {}}
    if options.record is not None and options.record.exists():
        record = json.loads(options.record.read_text())
    done = record["entry_points"]
    found = []
    for name, wanted in shares(options.inputs, options.only).items():
        here = done.setdefault(name, {"inputs": 0, "results": 0, "pieces": 0, "seconds": 0.0})
        try:
            while here["inputs"] < wanted:
                one_piece(name, min(PIECE, wanted - here["inputs"]), here, record["seed"])
                keep(record, options.record)
        except Exception:  # whatever it is, it was found; the others are fed all the same
            found.append(name)
            traceback.print_exc()
        counts = f"{here['inputs']:>7,} inputs, {here['results']:>7,} results"
        say(f"{name:>16}: {counts}, {here['seconds']:7.1f} s")
    if found:
        sys.exit(f"found: {', '.join(found)}")
    say(f"{record['inputs']:,} inputs, nothing found")


def one_piece(name: str, inputs: int, here: dict[str, Any], start: int) -> None:
    """Feed an entry point some more, and add it to what is known of it."""
    began = time.perf_counter()
    fed, results = run(name, inputs, start + here["pieces"])
    here["inputs"] += fed
    here["results"] += results
    here["share_of_results"] = round(here["results"] / here["inputs"], 2)
    here["pieces"] += 1
    here["seconds"] = round(here["seconds"] + time.perf_counter() - began, 1)
    here["commit"] = commit()


def keep(record: dict[str, Any], path: Path | None) -> None:
    """Write down what was done so far."""
    done = record["entry_points"].values()
    record["inputs"] = sum(here["inputs"] for here in done)
    record["results"] = sum(here["results"] for here in done)
    record["seconds"] = round(sum(here["seconds"] for here in done), 1)
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n")


def say(line: str) -> None:
    """Show a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
