"""Public entry points and what feeds them; what may come out is a result or one of our errors.

`TARGETS` maps a name to a function of Hypothesis' ``draw`` and its share of the inputs. A function that
returns is an input that was survived; any exception but a `RatewiseError` is a find. Each checks its result
as far as that goes: models are finite, books are not below the truth, what is written can be read.
"""

from __future__ import annotations

import contextlib
import urllib.request
import warnings
from unittest import mock

import fuzz_books as books
import fuzz_commands as commands
import fuzz_files as files
import fuzz_language as language
import fuzz_rows as rows
import fuzz_torch as network

from ratewise.exceptions import RatewiseError, RatewiseWarning

# share of the inputs that each target gets: the cheap ones more
TARGETS = {
    "scalars": (books.fuzz_scalars, 120),
    "event_text": (books.fuzz_event_text, 200),
    "theory": (books.fuzz_theory, 6),
    "statement": (books.fuzz_statement, 10),
    "accounting": (books.fuzz_accounting, 3),
    "calibration": (books.fuzz_calibration, 1),
    "ledger": (books.fuzz_ledger, 2),
    "constraint_text": (language.fuzz_constraint_text, 120),
    "rates": (language.fuzz_rates, 60),
    "families": (language.fuzz_families, 80),
    "domain": (language.fuzz_domain, 30),
    "report": (language.fuzz_report, 15),
    "ledger_file": (files.fuzz_ledger_file, 10),
    "model_file": (files.fuzz_model_file, 20),
    "checkpoint_file": (files.fuzz_checkpoint_file, 12),
    "schema_file": (files.fuzz_schema_file, 30),
    "settings": (files.fuzz_settings, 60),
    "statement_file": (files.fuzz_statement_file, 20),
    "report_file": (files.fuzz_report_file, 6),
    "run_folder": (files.fuzz_run_folder, 6),
    "resumed_run": (files.fuzz_resumed_run, 1),
    "commands": (commands.fuzz_commands, 3),
    "randomness": (rows.fuzz_randomness, 150),
    "bounds": (rows.fuzz_bounds, 20),
    "audits": (rows.fuzz_audits, 4),
    "draft": (rows.fuzz_draft, 20),
    "datasets": (rows.fuzz_datasets, 12),
    "table": (rows.fuzz_table, 4),
    "fit": (rows.fuzz_fit, 3),
    "parameters": (rows.fuzz_parameters, 3),
    "evaluation": (rows.fuzz_evaluation, 2),
    "selection": (rows.fuzz_selection, 1),
    "page": (rows.fuzz_page, 6),
    "networks": (network.fuzz_networks, 12),
    "torch_parts": (network.fuzz_torch_parts, 6),
    "torch_fit": (network.fuzz_torch_fit, 2),
    "make_private": (network.fuzz_make_private, 3),
    "torch_checkpoint": (network.fuzz_torch_checkpoint, 6),
    "shards": (network.fuzz_shards, 6),
}


def survive(target, draw):
    """Run a target on one input; our own errors and warnings are answers. Nothing is fetched."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", RatewiseWarning)
        warnings.filterwarnings("ignore", module="sklearn")
        offline = mock.patch.object(urllib.request, "urlopen", side_effect=OSError("no network"))
        stack.enter_context(offline)
        try:
            target(draw)
        except RatewiseError:
            return False
    return True
