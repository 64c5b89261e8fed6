"""Attacks on the private evaluation: a row must not show in errors, warnings, records or the domain."""

import re
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from ratewise import Budget, Ledger, RatewiseWarning, demographic_parity, group, rate
from ratewise.cli.app import cli
from ratewise.estimators.evaluation import evaluate
from ratewise.exceptions import BudgetExceeded
from ratewise.preprocessing.discovery import count_values, discovery_threshold, release_values
from ratewise.runs import RunFolder

N = 400
Y = np.arange(N) % 2
G = np.array(["a", "b"])[np.arange(N) // 2 % 2]


class Hostile:
    def __eq__(self, other):
        raise RuntimeError("compared")

    def __hash__(self):
        raise RuntimeError("hashed")

    def __str__(self):
        raise RuntimeError("shown")


SECRETS = [None, np.nan, "nobody knows", 2, -1, 1e300, Hostile(), [1, 2], b"1", np.inf, ("a",), object()]


def run(labels, guesses, groups, *, declared, constraint, ids=None):
    """Return what is visible of an evaluation besides its released values."""
    ledger = Ledger(cap=Budget(2.0, 1e-5), adaptive=False)
    known = {"classes": [0, 1], "group_values": {"g": ["a", "b"]}} if declared else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = evaluate(
            constraint,
            labels,
            guesses,
            sensitive_features={"g": groups},
            privacy_ids=ids,
            epsilon=2.0,
            ledger=ledger,
            **known,
        )
    events = [(name, event) for a in ledger.admissions for name, event in zip(a.names, a.events, strict=True)]
    return ([row.name for row in found], events, [str(w.message) for w in caught])


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("place", ["labels", "guesses", "groups"])
def test_no_entry_of_a_row_shows(place, declared):
    vectors = {"labels": Y.tolist(), "guesses": Y.tolist(), "groups": G.tolist()}
    limit = demographic_parity("g", max_gap=0.1)
    plain = run(**vectors, declared=declared, constraint=limit)
    for number, secret in enumerate(SECRETS):
        changed = list(vectors[place])
        changed[7] = secret
        assert run(**{**vectors, place: changed}, declared=declared, constraint=limit) == plain, number


@pytest.mark.parametrize("declared", [True, False])
def test_no_entry_of_a_person_shows(declared):
    """All rows of one id are replaced, or all but one are gone; the bound on its rows is found by a release."""
    ids, limit = np.arange(N) // 2, demographic_parity("g", max_gap=0.1)
    vectors = {"labels": Y.tolist(), "guesses": Y.tolist(), "groups": G.tolist()}
    plain = run(**vectors, ids=ids, declared=declared, constraint=limit)
    assert plain[1][0][0] == "rows per id"
    for number, secret in enumerate(SECRETS):
        changed = {name: [secret, secret, *vector[2:]] for name, vector in vectors.items()}
        assert run(**changed, ids=ids, declared=declared, constraint=limit) == plain, number
    shorter = {name: vector[1:] for name, vector in vectors.items()}
    assert run(**shorter, ids=ids[1:], declared=declared, constraint=limit) == plain


def test_values_that_constraints_name_need_no_look():
    groups = [*G[:-1].tolist(), "somebody else"]
    shown = run(Y, Y, groups, declared=False, constraint=rate(1, where=group(g="a")) <= 0.7)
    assert shown[0] == ["P(1 | g=a) <= 0.7"]


def test_a_value_of_one_row_is_found_with_probability_delta_at_most():
    delta, noise, repeats = 0.05, 3.0, 4000
    rng = np.random.default_rng(0)
    columns = {"x": ["only me"], "y": ["nor me"]}
    counted = count_values(columns, None)
    kept = sum(any(release_values(counted, noise, delta, rng).values()) for _ in range(repeats))
    # three standard deviations above delta; at half the threshold the value would be found four times as often
    assert kept / repeats <= delta + 3 * np.sqrt(delta / repeats)
    assert kept > 0
    low = discovery_threshold(noise, delta, 2) / 2
    rows = 1 + noise * np.sqrt(2) * rng.standard_normal((repeats, 2))
    assert (rows >= low).any(axis=1).mean() > 2 * delta


def test_frequent_values_are_found_in_their_form():
    rng = np.random.default_rng(0)
    columns = {"i": np.arange(4000) % 4, "t": ["x", " x ", "y", None] * 1000, "f": np.arange(4000) % 2 == 0}
    named = {"f": (False, True), "t": ("w",)}
    with pytest.warns(RatewiseWarning, match="names 'w', which is not among the values of 't'"):
        found = release_values(count_values(columns, None), 5.0, 1e-6, rng, named=named)
    assert found == {"i": (0, 1, 2, 3), "t": ("w", "x", "y"), "f": (False, True)}
    assert found["f"][0] is False


# ------------------------------------------------------------------------------ on the command line


def commanded(*words):
    """Return exit code, output and warnings of a command, without numbers."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = CliRunner().invoke(cli, [str(word) for word in words])
    said = re.sub(r"[0-9]*\.?[0-9]+", "", done.output)
    return done.exit_code, type(done.exception), said, sorted({str(w.message) for w in caught})


def trained(place, labels):
    """Return the folder of a run on quick rows; labels of one kind give a constant."""
    frame = pd.DataFrame({"x": np.arange(len(labels)) % 7, "g": ["a", "b"] * (len(labels) // 2), "y": labels})
    frame.to_parquet(place / "train.parquet")
    asked = "rate('yes', where=group(g='z')) <= 0.9"
    words = ["--label", "y", "--constraint", asked, "--epsilon", "1", "--steps", "1", "--out", place / "run"]
    assert commanded("train", place / "train.parquet", *words)[0] == 0
    return place / "run", frame


def test_the_values_of_private_rows_are_not_compared_with_those_of_constraints(tmp_path):
    """The domain of a constant was read off the rows: a warning listed their groups, those of one row included."""
    run, frame = trained(tmp_path, ["yes"] * 3000)
    assert RunFolder.open(run).model().model_ is None
    frame.loc[7, "g"] = "secret"
    frame.to_parquet(tmp_path / "test.parquet")
    for name in ("train", "test"):
        code, _, said, caught = commanded("evaluate", run, tmp_path / f"{name}.parquet", "--epsilon", "1")
        assert code == 0
        assert not [word for word in ("secret", "among the values") if word in said + "".join(caught)]
        (run / "evaluations.json").unlink()


@pytest.mark.parametrize("column", ["g", "y"])
def test_text_of_a_private_row_that_is_no_text_is_no_error(column, tmp_path):
    """A text that is not in UTF-8 ended the command with an error that quoted it."""
    run, frame = trained(tmp_path, ["yes", "no", "no", "yes"] * 750)
    table = pa.Table.from_pandas(frame.drop(columns=column))
    texts = [text.encode() for text in frame[column]]
    texts[7] = b"secret \xff"
    made = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())
    pq.write_table(table.append_column(column, made), tmp_path / "test.parquet")
    assert commanded("evaluate", run, tmp_path / "test.parquet", "--epsilon", "1")[:2] == (0, type(None))


def test_an_evaluation_without_noise_is_no_free_release_on_a_ledger():
    """Exact counts of the rows of a capped ledger left no record on it."""

    def exact(ledger):
        return evaluate(
            demographic_parity("g", max_gap=0.1), Y, Y, sensitive_features={"g": G}, ledger=ledger, random_state=0
        )

    with pytest.raises(BudgetExceeded):
        exact(Ledger(cap=Budget(1.0, 1e-5)))
    ledger = Ledger()
    exact(ledger)
    assert ledger.total(1e-5) == np.inf
