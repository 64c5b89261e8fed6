"""Run the jobs of an experiment that have no result yet, on several cores, one line of results each."""

from __future__ import annotations

import functools
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.suite.config import Experiment, chosen
from benchmarks.suite.store import ROOT, Store, job_key, results_path

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PACKAGES = ("ratewise", "numpy", "scipy", "scikit-learn", "dp-accounting")
_SOURCES = ("src/ratewise", "benchmarks/suite")
_BROKEN = (
    "a process ended before its job did (killed, or out of memory): run again, with fewer --workers "
    "if memory is short"
)

Say = Callable[[str], object]


class RunStopped(Exception):  # noqa: N818 - reads as what happened
    """A job has failed, or a process has died; results of other jobs are kept."""


def attempt(job: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a job; whatever goes wrong is told in one line that names the job."""
    try:
        return run_job(job)
    except ModuleNotFoundError as problem:
        advice = f"install it, or choose methods other than {job['method']} with --only method=..."
        raise RunStopped(f"{_named(job)} needs {problem.name}, which is not installed: {advice}") from None
    except Exception as problem:
        place = traceback.extract_tb(problem.__traceback__)[-1]
        what = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise RunStopped(
            f"{_named(job)} failed: {what} ({Path(place.filename).name}, line {place.lineno})"
        ) from None


def _named(job: dict[str, Any]) -> str:
    fields = ("dataset", "method", "variant", "epsilon", "knob", "split")
    return f"job {job_key(job)} ({' '.join(f'{field}={job[field]}' for field in fields if job[field] != '')})"


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Return the result of one job: what was asked, what came out, and with which versions."""
    if job["constraint"] == "timing":
        from benchmarks.suite.timing import time_step

        found = time_step(job)
    else:
        found = _fit_and_measure(job)
    found = _rounded(found)
    versions = {**{package: version(package) for package in _PACKAGES}, "commit": _commit()}
    return {
        "key": job_key(job),
        **job,
        **found,
        "versions": {"python": platform.python_version(), **versions},
    }


def _fit_and_measure(job: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.suite.methods import METHODS
    from benchmarks.suite.methods.base import GaveUp
    from benchmarks.suite.problem import Task, measure, split

    train, test, digest = split(Task(job["dataset"], job["constraint"], job["column"]), job["split"])
    seed = int(job_key(job)[:8], 16)
    known = {"seed": seed, "split_hash": digest, "n_train": len(train), "n_test": len(test)}
    method = METHODS[job["method"]]
    begin = time.perf_counter()
    try:
        model = method.fit(train, job["knob"], job["epsilon"], job["delta"], seed, **job["settings"])
    except GaveUp as problem:
        return {**known, "failed": str(problem)}
    seconds = time.perf_counter() - begin
    private = model.epsilon != float("inf")
    return {
        **known,
        "spent": {"epsilon": model.epsilon if private else None, "delta": model.delta if private else None},
        "protects": method.protects,
        "neighbours": model.neighbours if private else None,
        **measure(test, *model.predict(test)),
        "seconds": round(seconds, 3),
        "details": model.details,
    }


def run(
    experiment: Experiment,
    mode: str,
    *,
    workers: int | None = None,
    only: dict[str, str] | None = None,
    say: Say | None = None,
) -> int:
    """Run what is missing and return how many jobs ran.

    Parameters
    ----------
    only : mapping of field to value
        Restricts the run to jobs with these values, such as {"method": "ours"}.
    """
    report = say or _say
    store = Store(results_path(experiment.name, mode), experiment.name)
    jobs = {key: job for key, job in experiment.jobs(mode).items() if chosen(job, only or {})}
    missing = [job for key, job in jobs.items() if key not in store]
    report(
        f"{experiment.name} ({mode}): {len(jobs) - len(missing)} of {len(jobs)} results are in {store.path}"
    )
    if not missing:
        return 0
    alone = experiment.constraint == "timing"  # times must not compete
    count = 1 if alone else min(workers or os.cpu_count() or 1, len(missing))
    for name in _THREADS:
        os.environ.setdefault(name, "1")
    progress = _Progress(len(missing), report)
    try:
        _run_all(missing, count, store, progress)
    except (RunStopped, BrokenProcessPool) as problem:
        text = str(problem) if isinstance(problem, RunStopped) else _BROKEN
        raise RunStopped(f"{text}; {len(store)} results are kept in {store.path}") from None
    return len(missing)


def _run_all(jobs: list[dict[str, Any]], count: int, store: Store, progress: _Progress) -> None:
    """Run jobs in processes and store each result; after a failure, those under way too."""
    futures: list[Future[dict[str, Any]]] = []
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            futures.extend(pool.submit(attempt, job) for job in jobs)
            for future in as_completed(futures):
                store.add(future.result())
                progress.advance()
        except (RunStopped, BrokenProcessPool):
            pool.shutdown(wait=True, cancel_futures=True)
            for result in filter(None, map(_result, futures)):
                if result["key"] not in store:
                    store.add(result)
            raise
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _result(future: Future[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the result of a job, None if it has not run or has failed."""
    ran = future.done() and not future.cancelled()
    return future.result() if ran and future.exception() is None else None


class _Progress:
    """Says how many jobs are done and how long the others will take, every few seconds."""

    def __init__(self, total: int, report: Say) -> None:
        self._total, self._report = total, report
        self._done, self._begin, self._said = 0, time.monotonic(), 0.0

    def advance(self) -> None:
        """Count one more job."""
        self._done += 1
        now = time.monotonic()
        if now - self._said < 10.0 and self._done < self._total:
            return
        self._said = now
        left = (now - self._begin) / self._done * (self._total - self._done)
        self._report(f"  {self._done}/{self._total} done, about {left / 60:.1f} min left")


@functools.cache
def _commit() -> str:
    """Return the commit that the sources are at.

    A plus sign after it says that the package or the suite has changed since. Where the sources are not a
    checkout, $RATEWISE_COMMIT says it.
    """
    if "RATEWISE_COMMIT" in os.environ:
        return os.environ["RATEWISE_COMMIT"]
    git = shutil.which("git")
    if git is None:
        return "unknown"
    ask = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False)
    head = ask([git, "rev-parse", "--short", "HEAD"]).stdout.strip()
    changed = ask([git, "status", "--porcelain", "--untracked-files=no", *_SOURCES]).stdout.strip()
    return f"{head}+" if head and changed else head or "unknown"


def _rounded(value: Any) -> Any:
    """Return plain data with six digits of every number: enough to plot, and half the bytes."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
