"""Runs releases in processes that are made to be killed.

Imports once, then forks a child for every line on standard input (mode, ledger, side file), says its
number, waits until it has been killed, and says by what. A child admits and "releases" for ever; a release
is one line in the side file.
"""

import itertools
import os
import sys
import time

from ratewise.accounting.events import Budget, GaussianEvent, LaplaceEvent
from ratewise.accounting.ledger import Ledger
from ratewise.accounting.storage import AtomicFile

WHOLE, STEPS = GaussianEvent(noise=10.0), LaplaceEvent(noise=10.0, count=12)
CAP = Budget(1e4, 1e-5)
STRIDE = 5


def slow_down():
    """Make every part of a write take so long that most kills land inside one."""
    write, fsync, replace = os.write, os.fsync, os.replace

    def slow_write(handle, content):
        time.sleep(0.0003)
        return write(handle, content[: max(1000, len(content) // 2)])

    def slow_fsync(handle):
        fsync(handle)
        time.sleep(0.001)

    def slow_replace(source, target):
        time.sleep(0.001)
        replace(source, target)
        time.sleep(0.001)

    os.write, os.fsync, os.replace = slow_write, slow_fsync, slow_replace


def tear():
    """Break the writer on purpose: write into the file itself."""

    def write(self, text):
        with open(self.path, "w") as file:
            for start in range(0, len(text), 200):
                file.write(text[start : start + 200])
                file.flush()
                time.sleep(0.0005)

    AtomicFile.write = write


def releases(ledger, release, late):
    """Record and release in turn; `late` is the mistake of recording afterwards."""

    def in_order(record, name):
        for action in (lambda: release(name), record) if late else (record, lambda: release(name)):
            action()

    def a_phase():
        with ledger.admit(STEPS).phase(0, stride=STRIDE) as phase:
            for _ in range(12):
                in_order(phase.step, "step")

    def a_table():
        plan = ledger.admit(WHOLE, purpose="a table")
        in_order(plan.release, "whole")

    for action in itertools.cycle([a_phase, a_table] if os.getpid() % 2 else [a_table, a_phase]):
        action()


def live(mode, ledger, side):
    handle = os.open(side, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    really_write = os.write
    if mode in ("slow", "late"):
        slow_down()
    if mode == "torn":
        tear()
    releases(Ledger.at(ledger, cap=CAP), lambda name: really_write(handle, f"{name}\n".encode()), mode == "late")


def say(number):
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def main():
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                live(*line.rstrip("\n").split("\t"))
            finally:
                os._exit(3)
        say(child)
        _, status = os.waitpid(child, 0)
        say(os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
