"""Runs as folders: from a table and a few settings to a model, a book, a statement and released values.

`settings` (what is asked), `folder` (where everything is), `placing` (making it appear in one step), `plain`
(data as JSON), `seal` (which files are the run's own), `resumable` (checkpoints of released state), `job`
(training, and going on after a stop).
"""

from ratewise.runs.folder import RunFolder
from ratewise.runs.job import (
    Result,
    Watch,
    facts_of,
    plan_run,
    read_run_rows,
    row_count,
    schema_for,
    train_run,
)
from ratewise.runs.settings import Settings

__all__ = [
    "Result",
    "RunFolder",
    "Settings",
    "Watch",
    "facts_of",
    "plan_run",
    "read_run_rows",
    "row_count",
    "schema_for",
    "train_run",
]
