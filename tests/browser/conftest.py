"""A real browser for the tests of this folder.

They need Chromium (on the path, or named by RATEWISE_CHROMIUM) and playwright. Without them they are skipped,
unless RATEWISE_REQUIRE_BROWSER=1 says that they must run.
"""

import os
import shutil

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def _unavailable(reason):
    if os.environ.get("RATEWISE_REQUIRE_BROWSER") == "1":
        pytest.fail(f"a browser is required (RATEWISE_REQUIRE_BROWSER=1), but {reason}")
    pytest.skip(reason)


@pytest.fixture
def unavailable():
    return _unavailable


@pytest.fixture(scope="module")
def browser():
    path = os.environ.get("RATEWISE_CHROMIUM") or shutil.which("chromium")
    if path is None:
        _unavailable("there is no chromium on the path and RATEWISE_CHROMIUM names none")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _unavailable("playwright is not installed")
    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def violations():
    """Return a function for what axe-core has to say against a page."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        _unavailable("axe-playwright-python is not installed")
    return lambda page: Axe().run(page).response["violations"]
