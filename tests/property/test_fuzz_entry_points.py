"""A small share of the fuzzing of public entry points; the long run is ``python tests/fuzz/run.py``."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_spec = importlib.util.spec_from_file_location(
    "fuzz_entry_points", Path(__file__).parents[1] / "fuzz" / "entry_points.py"
)
entry_points = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(entry_points)

SLOW = {"fit": 25, "ledger": 8, "accounting": 12}


@pytest.mark.parametrize("name", entry_points.TARGETS)
def test_no_crash_no_foreign_exception(name):
    target, _ = entry_points.TARGETS[name]

    @settings(max_examples=SLOW.get(name, 60), deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def feed(data):
        entry_points.survive(target, data.draw)

    feed()


def test_a_foreign_exception_would_be_seen():
    def broken(draw):
        return [][draw(st.integers(0, 3))]

    @settings(max_examples=5, deadline=None, database=None)
    @given(data=st.data())
    def feed(data):
        entry_points.survive(broken, data.draw)

    with pytest.raises(IndexError):
        feed()
