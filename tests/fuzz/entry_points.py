"""Public entry points and what feeds them; what may come out is a result or one of our errors.

`TARGETS` maps a name to a function of Hypothesis' ``draw`` and its share of the inputs. A function that
returns is an input that was survived; any exception but a `RatewiseError` is a find. Each checks its result
as far as that goes: models are finite, ledgers are not below the truth, what is written can be read.
"""

from __future__ import annotations

import contextlib
import urllib.request
import warnings
from unittest import mock

import fuzz_accounting as accounting
import fuzz_commands as commands
import fuzz_files as files
import fuzz_language as language
import fuzz_rows as rows
import fuzz_torch as network

from ratewise.exceptions import RatewiseError, RatewiseWarning

# weight of each target among the inputs: the cheap ones get more
TARGETS = {
    "scalars": (accounting.fuzz_scalars, 10000),
    "event_text": (accounting.fuzz_event_text, 8000),
    "theory": (accounting.fuzz_theory, 6000),
    "statement": (accounting.fuzz_statement, 3000),
    "accounting": (accounting.fuzz_accounting, 1000),
    "calibration": (accounting.fuzz_calibration, 200),
    "ledger": (accounting.fuzz_ledger, 600),
    "constraint_text": (language.fuzz_constraint_text, 12000),
    "rates": (language.fuzz_rates, 8000),
    "families": (language.fuzz_families, 8000),
    "domain": (language.fuzz_domain, 7000),
    "report": (language.fuzz_report, 3000),
    "ledger_file": (files.fuzz_ledger_file, 1200),
    "model_file": (files.fuzz_model_file, 1500),
    "checkpoint_file": (files.fuzz_checkpoint_file, 2000),
    "schema_file": (files.fuzz_schema_file, 4000),
    "settings": (files.fuzz_settings, 6000),
    "statement_file": (files.fuzz_statement_file, 3000),
    "report_file": (files.fuzz_report_file, 1500),
    "run_folder": (files.fuzz_run_folder, 1200),
    "resumed_run": (files.fuzz_resumed_run, 200),
    "commands": (commands.fuzz_commands, 500),
    "randomness": (rows.fuzz_randomness, 9000),
    "bounds": (rows.fuzz_bounds, 3000),
    "audits": (rows.fuzz_audits, 700),
    "draft": (rows.fuzz_draft, 3000),
    "datasets": (rows.fuzz_datasets, 800),
    "table": (rows.fuzz_table, 1000),
    "fit": (rows.fuzz_fit, 1000),
    "parameters": (rows.fuzz_parameters, 600),
    "evaluation": (rows.fuzz_evaluation, 500),
    "postprocess": (rows.fuzz_postprocess, 500),
    "selection": (rows.fuzz_selection, 60),
    "page": (rows.fuzz_page, 1000),
    "networks": (network.fuzz_networks, 2000),
    "torch_parts": (network.fuzz_torch_parts, 800),
    "torch_fit": (network.fuzz_torch_fit, 400),
    "make_private": (network.fuzz_make_private, 600),
    "torch_checkpoint": (network.fuzz_torch_checkpoint, 1500),
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
