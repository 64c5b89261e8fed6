"""The long fuzzing run: a hundred thousand inputs over all public entry points.

    python tests/fuzz/run.py [--inputs 100000] [--only NAME] [--seed 0]

Prints one line per entry point: inputs, how many ended in a result rather than in one of our errors, time.
Any other exception, a model that is not finite, or a book below the truth stops the run and shows the input,
made as small as Hypothesis can make it. Inputs that take longer than a minute are reported as hangs.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from entry_points import TARGETS, survive

PATIENCE = 60  # seconds for one input; then the stack is shown and the run ends


def run(name: str, inputs: int, start: int) -> tuple[int, int]:
    """Feed an entry point; return how many inputs it got and how many ended in a result."""
    target, _ = TARGETS[name]
    counted = {"inputs": 0, "results": 0}

    @seed(start)
    @settings(max_examples=inputs, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def feed(data: st.DataObject) -> None:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        counted["inputs"] += 1
        counted["results"] += survive(target, data.draw)
        faulthandler.cancel_dump_traceback_later()

    feed()
    return counted["inputs"], counted["results"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--only", choices=list(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    whole = sum(share for _, share in TARGETS.values())
    total = 0
    for name in [options.only] if options.only else TARGETS:
        share = options.inputs if options.only else -(-options.inputs * TARGETS[name][1] // whole)
        began = time.perf_counter()
        inputs, results = run(name, share, options.seed)
        total += inputs
        spent = time.perf_counter() - began
        say(f"{name:>16}: {inputs:>7,} inputs, {results:>7,} results, {spent:7.1f} s")
    say(f"{total:,} inputs, nothing found")


def say(line: str) -> None:
    """Show a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
