"""Runs as folders: from a table and a few settings to a model, a ledger, a certificate and a statement.

`settings` (what is asked), `folder` (the files of a run and their digests), `run` (training, checkpoints of released
state, and going on after a stop).
"""

from ratewise.runs.folder import RunFolder
from ratewise.runs.run import Result, Watch, admit_run, plan_run, session_for, train_run
from ratewise.runs.settings import Settings

__all__ = ["Result", "RunFolder", "Settings", "Watch", "admit_run", "plan_run", "session_for", "train_run"]
