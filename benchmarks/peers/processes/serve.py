"""The side of a process: requests are JSON lines on standard input, replies JSON lines on standard output.

    {"do": "fit", "rows": "train.parquet", "numbers": {"age": [17, 90]}, "categories": {"race": ["White", ...]},
     "classes": 2, "epsilon": 1.0, "delta": 1e-05, "seed": 0, "settings": {...}}      ->  {"seconds": 3.1, "epsilon": 1.0}
    {"do": "predict", "rows": "test.parquet", "out": "chances.npy"}                   ->  {}

A request to fit may have "minutes": a process that uses more processor time for it is ended by the system (SIGXCPU).

Tables hold the raw feature columns, the label `y` (0, 1, ...) and the group `group` (0, 1, ...). `chances.npy` is an array
(rows, classes). A script calls `serve` with a function that fits; it imports neither ratewise nor the benchmarks.
"""

import json
import os
import resource
import sys
import time
import warnings

import numpy as np
import pandas as pd


def serve(fit):
    """Answer requests until standard input ends. `fit(rows, request)` returns the predictor and what it spent."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to standard error
    warnings.simplefilter("ignore")
    predict = None
    for line in sys.stdin:
        request = json.loads(line)
        rows = pd.read_parquet(request["rows"])
        try:
            if request["do"] == "fit":
                begin = time.process_time()
                limit = int(begin + 60 * request["minutes"]) + 1 if "minutes" in request else resource.RLIM_INFINITY
                resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
                predict, spent = fit(rows, request)
                reply = {"seconds": time.process_time() - begin, "epsilon": spent}
            else:
                np.save(request["out"], np.asarray(predict(rows), dtype=np.float64))
                reply = {}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def one_hot(rows, request):
    """Return numbers scaled to [0, 1] by their bounds, then zeros and ones; each row has norm at most sqrt(columns)."""
    parts = [
        ((np.clip(rows[name], low, high) - low) / (high - low)).to_numpy(dtype=float)[:, None]
        for name, (low, high) in request["numbers"].items()
    ]
    parts += [
        (rows[name].astype(str).to_numpy()[:, None] == np.array([str(v) for v in values])).astype(float)
        for name, values in request["categories"].items()
    ]
    return np.hstack(parts)
