"""Every command with any words: exit codes of ours, one message, no traceback."""

from __future__ import annotations

import shutil
import warnings
from functools import cache

import numpy as np
import pandas as pd
from click.testing import CliRunner
from fuzz_inputs import scratch
from hypothesis import strategies as st

from ratewise.cli import main as main
from ratewise.cli.app import COMMANDS, cli
from ratewise.cli.options import to_toml
from ratewise.data.schema import Category, Number, Schema

EXIT_CODES = {0, 1, 2, 3, 4}
SCHEMA = Schema(
    {"job": Category(["sales", "clerk"]), "age": Number(17, 90)},
    label="rich",
    classes=["no", "yes"],
    groups={"sex": Category(["F", "M"])},
)


def invoke(words):
    """Run a command in this process; anything that nobody foresaw is raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(cli, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in EXIT_CODES, (words, done.output)
    assert "Traceback" not in done.output
    return done


@cache
def world():
    """Return a folder with tables, a schema, a finished run and a stopped one."""
    place, rng, rows = scratch() / "world", np.random.default_rng(0), 400
    place.mkdir()
    age = rng.uniform(17, 90, rows).round(1)
    frame = pd.DataFrame(
        {
            "age": age,
            "job": rng.choice(["sales", "clerk"], rows),
            "sex": rng.choice(["F", "M"], rows),
            "rich": np.where(age > 50, "yes", "no"),
        }
    )
    frame.to_csv(place / "people.csv", index=False)
    frame.iloc[:40].to_parquet(place / "people.parquet")
    (place / "schema.toml").write_text(to_toml(SCHEMA.to_dict()))
    (place / "broken.csv").write_text('age,job\n1,"sa\n2\n\x00,3,4\n')
    common = ["--schema", str(place / "schema.toml"), "--label", "rich", "--steps", "4", "--epsilon", "8"]
    limit = ["--constraint", "demographic_parity(sex) <= 0.5", "--checkpoint-every", "2"]
    done = invoke(["train", str(place / "people.csv"), *common, *limit, "--out", str(place / "run")])
    assert done.exit_code == 0, done.output
    _stop(place, [*common, *limit])
    return place


def _stop(place, words):
    """Make a run that was killed after its first checkpoint."""
    from ratewise.runs import run

    whole = run.write_checkpoint

    def killed(path, state, name):
        whole(path, state, name)
        if state["loop"] is not None and state["loop"]["done"] >= 2:
            raise KeyboardInterrupt

    run.write_checkpoint = killed
    try:
        CliRunner().invoke(cli, ["train", str(place / "people.csv"), *words, "--out", str(place / "stopped")])
    finally:
        run.write_checkpoint = whole
    assert (place / "stopped" / "checkpoint.ratewise").exists()


def words(draw, *, flag):
    """Draw what may follow a flag or stand for a place."""
    place = world()
    places = [place / name for name in ("people.csv", "people.parquet", "broken.csv", "schema.toml", "run")]
    sound = ["rich", "sex", "1", "2", "0.5", "none", "demographic_parity(sex) <= 0.2", "sex=F,M", "gaussian"]
    odd = ["", "-1", "nan", "inf", "1e400", "no such", "../..", "a,b", "{slack}", "Ω", "\\", "0", "1e-9"]
    named = {
        "--steps --games --canaries": ["1", "2", "40", "-1", "x"],
        "--rows --features --classes": ["1", "50", "3", "0", "x"],
        "--schema --config": [str(place / "schema.toml"), str(place / "broken.csv")],
        "--out --card --ledger": [str(scratch() / "made"), "", str(place)],
        "--engine": ["numpy", "x"],
    }
    known = next((choices for flags, choices in named.items() if flag in flags.split()), None)
    return draw(st.sampled_from(known or [*sound, *odd, *map(str, places)]))


NEVER = {"--help", "-h", "--rehearse"}  # takes a minute, and is what training does


def fuzz_commands(draw):
    """A command, sound in its first words and anything after them."""
    place, made = world(), scratch() / "made"
    for path in (made, scratch() / "made.html"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    name = draw(st.sampled_from(sorted(COMMANDS)))
    people, run = str(place / "people.csv"), str(place / "run")
    first = {
        "train": [people, "--label", "rich", "--steps", "2", "--out", str(made)],
        "sweep": [people, "--label", "rich", "--steps", "2", "--out", str(made), "--epsilons", "1"],
        "schema": [people, "--label", "rich"],
        "plan": ["--rows", "1000", "--features", "3", "--steps", "3"],
        "predict": [run, people],
        "evaluate": [run, people],
        "report": [run, people, "--out", str(scratch() / "made.html")],
        "compare": [run],
        "resume": [run],
        "start": [people, "--yes", "--label", "rich", "--out", str(made)],
        "app": [str(place / "no such file.csv")],  # a file that exists would be served until Ctrl-C
        "audit": ["--games", "40", "--canaries", "10", "--steps", "2"],
    }[name]
    if name != "app" and draw(st.integers(0, 7)) == 0:
        first = [words(draw, flag="") for _ in range(draw(st.integers(0, 2)))]
        first += ["--games", "40", "--canaries", "10"] if name == "audit" else []
    flags = [option.opts[0] for option in cli.get_command(None, name).params if option.opts[0].startswith("-")]
    said = []
    for flag in draw(st.lists(st.sampled_from([*flags, "--no-such", "--json", "-q"]), max_size=3)):
        if flag not in NEVER:
            said += [flag, words(draw, flag=flag)] if draw(st.integers(0, 5)) else [flag]
    invoke([name, *first, *said])
