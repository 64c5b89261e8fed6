"""``ratewise audit`` says what it found, what that means, and ends with 1 if the guarantee broke."""

import json

import numpy as np
import pytest

click = pytest.importorskip("click")
from click.testing import CliRunner  # noqa: E402

from ratewise.cli.app import cli  # noqa: E402
from ratewise.mechanisms.noise import RoundedGaussianMechanism  # noqa: E402

QUICK = ["--games", "1500", "--canaries", "200", "--delta", "0.01", "--confidence", "0.999"]


def run(*words):
    return CliRunner().invoke(cli, ["--json", "audit", *QUICK, *words])


def lines(found):
    return [json.loads(line) for line in found.output.splitlines()]


@pytest.mark.parametrize(("histogram", "rows"), [("gaussian", "3"), ("laplace", "1")])
def test_the_shipped_noise_passes(histogram, rows):
    """For canaries that are persons with three rows, and for rows."""
    found = run("--histogram", histogram, "--histogram-noise", "1.5", "--rows-per-id", rows)
    assert found.exit_code == 0, found.output
    results = [line for line in lines(found) if line["event"] == "result"]
    assert len(results) == 13
    assert [line["name"] for line in results[8:]] == [
        "network: clipping", "network: isolation of rows", "network: dropout", "network: traces", "network: noise",
    ]  # fmt: skip
    assert all(line["passed"] for line in results)
    assert any("evidence, not a proof" in line.get("message", "") for line in lines(found))


@pytest.mark.parametrize(("rows", "code"), [("0", 2), ("2", 0)])
def test_persons_are_audited_in_networks_too(rows, code):
    found = run("--rows-per-id", rows, "--engine", "torch", "--games", "60")
    assert found.exit_code == code, found.output


def test_broken_noise_ends_with_one(monkeypatch):
    monkeypatch.setattr(RoundedGaussianMechanism, "release", lambda self, value, rng: np.array(value, dtype=float))
    found = run()
    assert found.exit_code == 1, found.output
    assert any(not line["passed"] for line in lines(found) if line["event"] == "result")


def test_words_for_people():
    found = CliRunner().invoke(cli, ["audit", *QUICK, "--engine", "torch", "--games", "60"])
    assert found.exit_code == 0, found.output
    assert "audit of one run" in found.output


def test_a_folder_that_is_no_run(tmp_path):
    found = CliRunner().invoke(cli, ["audit", str(tmp_path)])
    assert found.exit_code in (1, 2)
    assert "error:" in found.output
