"""The one command line of the benchmarks: ``python -m benchmarks NAME [options]``."""

from __future__ import annotations

import runpy
import sys

NAMES = {
    "scoreboard": "error, AUC, gap and seconds of systems by table, constraint and epsilon",
    "paper": "the experiments of the paper",
    "page": "write docs/scoreboard.md, docs/benchmarks.md and the table of the README from the results",
    "environments": "make the environments of systems that run in their own",
    "speed": "time of a step, a fit, accounting and many rows, beside Opacus, dp-accounting, scikit-learn and Fairlearn",
    "deep": "time and memory of a private step of networks, beside Opacus",
    "distributed": "several processes: time and bytes exchanged",
    "distributed_tables": "tables larger than memory and on several processes: time and memory of one fit",
    "certificate": "coverage of certificates on real fits",
    "persons": "persons with several rows: ids, group privacy and row-level privacy",
    "postprocess": "private decision rules on scores, beside Fairlearn's ThresholdOptimizer",
    "faces": "a private network with a constraint on real faces",
    "accountant_rounding": "rounding errors of the accountant",
    "theory_vs_accountant": "how loose the closed forms of the paper are",
}


def main(arguments: list[str]) -> int:
    """Run a benchmark; without a name, list them."""
    if not arguments or arguments[0] not in NAMES:
        width = max(map(len, NAMES))
        for name, text in NAMES.items():
            print(f"{name:{width}}  {text}")
        return 0 if not arguments or arguments[0] in ("list", "--help", "-h") else 2
    name = arguments[0]
    sys.argv = [f"python -m benchmarks {name}", *arguments[1:]]
    module = {"environments": "peers.external"}.get(name, name)
    runpy.run_module(f"benchmarks.{module}", run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
