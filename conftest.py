"""What all tests share: every warning is an error, but this one, which is given once in a process."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Let tests use seeds."""
    config.addinivalue_line("filterwarnings", "ignore::ratewise.exceptions.SeedWarning")
