"""``ratewise start``: from a file to a run, with questions instead of options.

`Choices` is what a person decides, in the terminal or on the local page (`ratewise.cli.webapp`). It turns into
the settings of a run, and into the same run as a command, a TOML file and a Python script. Suggestions follow from
the names of the columns alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from ratewise._files import write_whole
from ratewise.cli.console import Table, reading_of, refuse_folder
from ratewise.cli.evaluate import released_report
from ratewise.cli.options import PLACE, Listed, file_options, to_toml
from ratewise.cli.plan import expected
from ratewise.cli.train import show_result, watched
from ratewise.constraints.domain import list_values
from ratewise.constraints.families import demographic_parity, equal_opportunity, error_rate_parity
from ratewise.constraints.text import format_constraint
from ratewise.data.schema import Category, Number, Schema
from ratewise.data.table import code_ids
from ratewise.exceptions import InvalidInput
from ratewise.runs import Result, Settings, Watch, session_for, train_run
from ratewise.training.certificate import short

EPSILONS = (0.5, 1.0, 3.0)
_MOST_MADE_UP = 10_000
_LABEL = re.compile(r"^(label|target|class|outcome|y|income|default|approved|hired|two_year_recid)$", re.I)
_GROUP = re.compile(r"(^|[_\W])(sex|gender|race|ethnicity|ethnic|religion|nationality|disability)([_\W]|$)", re.I)
_ID = re.compile(r"(^|[_\W])(id|uuid|person|patient|subject|customer|user|client)([_\W]*id)?$", re.I)

KINDS = {
    "parity": "Each class is predicted equally often in all groups",
    "opportunity": "Of the people who have one class, equally many in all groups are predicted to have it",
    "errors": "Predictions are wrong equally often in all groups",
    "none": "No constraint",
}
"""Constraints in plain words, by short names."""


@dataclass(frozen=True)
class Choices:
    """What a person decides about a run.

    `out` is the folder that everything is written to. An empty `privacy_id` protects rows. `kind` is one of `KINDS`,
    `positive` the class of "opportunity", `slack` the largest difference between a group and the others.
    """

    data: str
    out: str
    label: str
    privacy_id: str = ""
    groups: tuple[str, ...] = ()
    kind: str = "parity"
    positive: str = ""
    slack: float = 0.05
    epsilon: float = 1.0
    leave_out: tuple[str, ...] = ()
    title: str = ""

    @property
    def positive_class(self) -> Any:
        """The class of "opportunity", as a whole number if it is one."""
        return int(self.positive) if self.positive.isdecimal() else self.positive

    @property
    def constraints(self) -> tuple[str, ...]:
        """The constraints as text, one for each column of groups."""
        if self.kind not in KINDS:
            raise InvalidInput(f"the constraint must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.kind == "none":
            return ()
        if not self.groups:
            raise InvalidInput("name at least one column of groups, or choose no constraint")
        more: dict[str, Any] = {}
        if self.kind == "opportunity":
            if not self.positive:
                raise InvalidInput("name the class that people should be found to have equally often (--positive)")
            more = {"positive": self.positive_class}
        family: Any = {"parity": demographic_parity, "opportunity": equal_opportunity, "errors": error_rate_parity}[
            self.kind
        ]
        return tuple(format_constraint(family(name, max_gap=self.slack, **more)) for name in self.groups)

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        same = ("label", "groups", "constraints", "epsilon", "leave_out", "title")
        return Settings(privacy_id=self.privacy_id or None, **{name: getattr(self, name) for name in same})

    def configuration(self, reading: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a configuration file for ``ratewise train --config``."""
        named = ("groups", "constraints", "privacy_id", "leave_out", "title")
        optional = {**{name: getattr(self, name) for name in named}, **reading}
        given = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in optional.items()
            if value not in ("", (), [], None)
        }
        return {"data": self.data, "label": self.label, **given, "epsilon": self.epsilon, "out": self.out}

    def command(self, reading: Mapping[str, Any]) -> str:
        """Return the command that makes the same run."""
        fields = self.configuration(reading)
        words = ["ratewise", "train", fields.pop("data")]
        for name, value in fields.items():
            flag = "--constraint" if name == "constraints" else f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                words.append(flag if value else f"--no-{flag[2:]}")
            elif name in ("constraints", "missing"):
                words += [word for text in value for word in (flag, text)]
            elif isinstance(value, list):
                words += [flag, ",".join(value)]
            else:
                words += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
        return shlex.join(words)

    def script(self, reading: Mapping[str, Any]) -> str:
        """Return a Python script that trains the same model."""
        groups = f"\n    sensitive_features=table[{list(self.groups)!r}]," if self.groups else ""
        ids = f"\n    privacy_ids={self.privacy_id!r}," if self.privacy_id else ""
        return _SCRIPT.format(
            data=self.data,
            options="".join(f", {name}={value!r}" for name, value in reading.items()),
            constraints=list(self.constraints),
            epsilon=self.epsilon,
            unused=[self.label, *self.groups, *self.leave_out],
            label=self.label,
            more=groups + ids,
        )


_SCRIPT = """\
import ratewise as rw
from ratewise.data.files import read_table

table = read_table({data!r}{options}).frame
model = rw.RateConstrainedClassifier({constraints!r}, epsilon={epsilon!r})
model.fit(
    table.drop(columns={unused!r}),
    table[{label!r}],{more}
)
print(model.certificate_)
print(model.privacy_)
model.save("model.ratewise")
"""


def _suggested(data: str, columns: Sequence[str]) -> Choices:
    """Return suggestions that follow from the names of the columns."""
    label = next((name for name in columns if _LABEL.search(name)), columns[-1])
    others = [name for name in columns if name != label]
    person = next((name for name in others if _ID.search(name)), "")
    groups = tuple(name for name in others if _GROUP.search(name) and name != person)[:1]
    stem = re.sub(r"\W+", "-", Path(data).name.split(".")[0]).strip("-") or "table"
    return Choices(data, f"{stem}-run", label, person, groups, "parity" if groups else "none")


class Guide:
    """A file and its table, from which choices become a run with everything beside it."""

    def __init__(self, data: str, given: Mapping[str, Any]) -> None:
        self.table = Table.read(data, given)
        self.columns = self.table.columns
        if len(self.columns) < 2:
            raise InvalidInput(f"{data!r} has one column only; a label and at least one feature are needed")
        self.suggestion = _suggested(data, self.columns)

    def column(self, name: str) -> str:
        """Return the name of a column of the table, or raise."""
        found = name if name in self.columns else name.strip()
        if found not in self.columns:
            raise InvalidInput(f"{found!r} is no column; the columns are {list_values(self.columns)}")
        return found

    def check(self, choices: Choices) -> Choices:
        """Return the choices if they fit the columns, or raise with what to change."""
        named = (choices.label, *choices.groups, *choices.leave_out, *filter(None, [choices.privacy_id]))
        for name in named:
            self.column(name)
        if not 0.0 < choices.epsilon < float("inf"):
            raise InvalidInput(f"epsilon must be a number above 0, got {choices.epsilon!r}")
        if not 0.0 <= choices.slack <= 1.0:
            raise InvalidInput(f"the largest difference must be between 0 and 1, got {choices.slack!r}")
        _ = choices.settings
        return choices

    def same_run(self, choices: Choices) -> dict[str, str]:
        """Return the run as a command, a TOML file and a Python script."""
        given = self.table.given
        toml = to_toml(choices.configuration(given))
        return {"command": choices.command(given), "toml": toml, "script": choices.script(given)}

    def outlooks(self, choices: Choices) -> list[str]:
        """Return what to expect at the chosen epsilon and at customary ones, a line each.

        Computed from made-up rows. Groups are taken to be two of equal size; nothing of the file but its size and the
        names of its columns is used.
        """
        frame = self.table.frame
        units = code_ids(frame[choices.privacy_id])[1] if choices.privacy_id else len(frame)
        used = {choices.label, choices.privacy_id, *choices.groups, *choices.leave_out}
        schema = Schema(
            {name: Number(-5, 5) for name in self.columns if name not in used} or {"x": Number(-5, 5)},
            label=choices.label,
            classes=[choices.positive_class, "other class"] if choices.positive else [0, 1],
            groups={name: Category(["a", "b"]) for name in choices.groups},
        )
        lines = []
        for epsilon in sorted({*EPSILONS, choices.epsilon}):
            settings = replace(choices, epsilon=epsilon, leave_out=()).settings
            found = expected(max(units, 2), settings, schema, most=_MOST_MADE_UP)
            accuracy, width = found["rehearsal"], found["certificate_half_width"]
            known = "" if width is None else f"; rates of groups are known to about +-{short(width)}"
            lines.append(
                f"epsilon {epsilon:g}: accuracy {accuracy['accuracy']:.3f} on made-up rows "
                f"({accuracy['accuracy_without']:.3f} without privacy){known}"
            )
        return lines

    def train(self, choices: Choices, watch: Watch | None = None) -> Result:
        """Train the run, and write the report, the command, the TOML file and the script into its folder.

        The report shows released values alone: everything in the folder is covered by the guarantee.
        """
        settings = self.check(choices).settings
        refuse_folder(choices.out, force=None)
        same, table = self.same_run(choices), self.table
        classifier, session = session_for(table.frame, settings)
        command = shlex.split(same["command"])
        made = {"settings": settings, "schema": None, "plan": session.plan, "command": command}
        folder = table.new_run(choices.out, **made)
        write_whole(folder.path / "command.txt", same["command"] + "\n")
        write_whole(folder.path / "train.toml", same["toml"] + "\n")
        write_whole(folder.path / "train.py", same["script"])
        result = train_run(folder, classifier, session, watch=watch)
        page = released_report(folder, classifier, notes=result.messages)
        page.to_html(folder.path / "report.html")
        return result


# ------------------------------------------------------------------------------------- the terminal


@click.command()
@click.argument("data", type=PLACE)
@click.option("--yes", is_flag=True, help="Accept every suggestion that is not given as an option.")
@click.option("--label", default=None, help="Column to predict.")
@click.option("--privacy-id", default=None, metavar="COLUMN", help="Column of ids; empty protects rows.")
@click.option("--groups", type=Listed(str), default=None, help="Columns whose groups are compared: a,b.")
@click.option("--kind", type=click.Choice([*KINDS]), default=None, help="Which constraint.")
@click.option("--positive", default=None, metavar="CLASS", help="The class of 'opportunity'.")
@click.option("--slack", type=float, default=None, help="Largest difference between groups.")
@click.option("--epsilon", type=float, default=None, help="Privacy budget.")
@click.option("--leave-out", type=Listed(str), default=None, help="Columns not to use.")
@click.option("--title", default=None, help="Heading of the report.")
@click.option("--out", type=PLACE, default=None, metavar="FOLDER", help="Where everything is written.")
@file_options
def start(data: str, yes: bool, **values: Any) -> None:
    """Train on the table DATA step by step: questions with suggestions, then run, report and command.

    Everything in the folder is covered by the guarantee. `ratewise report FOLDER TEST` replaces the page by one
    with the rates of other rows.
    """
    guide = Guide(data, reading_of(values))
    names = [field.name for field in fields(Choices) if field.name != "data"]
    given = {name: values[name] for name in names if values.get(name) is not None}
    choices = replace(guide.suggestion, **given)
    if "groups" in given and "kind" not in given and choices.groups:
        choices = replace(choices, kind="parity")
    if not yes:
        choices = _ask(guide, choices, given)
    refuse_folder(choices.out, force=None)
    result = watched(choices.out, lambda watch: guide.train(choices, watch))
    command = guide.same_run(choices)["command"]
    show_result(
        result,
        f"The run is in {result.folder.path}: report.html, command.txt, train.toml, train.py.\n"
        f"The same run as a command:\n{command}",
        command=command,
    )


def _ask(guide: Guide, choices: Choices, given: Mapping[str, Any]) -> Choices:
    """Ask for what was not given, each question with a suggestion."""
    click.echo(f"The columns are: {', '.join(guide.columns)}")

    def asked(name: str, question: str, convert: Callable[[str], Any], shown: str = "") -> None:
        nonlocal choices
        if name not in given:
            default = shown or str(getattr(choices, name))
            answer = click.prompt(question, default=default, value_proc=partial(_answer, convert))
            choices = replace(choices, **{name: answer})

    asked("label", "Which column should be predicted", guide.column)
    asked(
        "leave_out",
        "Which columns are not used, such as names and case numbers (separated by commas; none)",
        lambda text: _columns(guide, text),
        ",".join(choices.leave_out) or "none",
    )
    asked(
        "privacy_id",
        "Who is protected: type rows, or the column that identifies people with several rows",
        lambda text: "" if text.lower() in ("rows", "") else guide.column(text),
        choices.privacy_id or "rows",
    )
    asked(
        "groups",
        "Which columns form the groups to compare (separated by commas; none)",
        lambda text: _columns(guide, text),
        ",".join(choices.groups) or "none",
    )
    if not choices.groups and "kind" not in given:
        choices = replace(choices, kind="none")
    elif "kind" not in given:
        choices = replace(choices, kind="parity" if choices.kind == "none" else choices.kind)
        for place, words in enumerate(KINDS.values(), start=1):
            click.echo(f"  {place}. {words}")
        asked("kind", "Which constraint", _kind, str([*KINDS].index(choices.kind) + 1))
    if choices.kind == "opportunity":
        asked("positive", "Which class", str, choices.positive or "1")
    if choices.kind != "none":
        asked("slack", "Largest difference between a group and the others (0.05 is 5 points)", float)
    if "epsilon" not in given:
        click.echo("Privacy budget (smaller is more private):")
        for line in guide.outlooks(choices):
            click.echo(f"  {line}")
    asked("epsilon", "Epsilon", float)
    asked("out", "Folder for the results", str)
    return guide.check(choices)


def _columns(guide: Guide, text: str) -> tuple[str, ...]:
    return () if text.lower() in ("none", "") else tuple(map(guide.column, text.split(",")))


def _answer(convert: Callable[[str], Any], text: str) -> Any:
    """Return what an answer means; what it cannot mean is said, and asked again."""
    try:
        return convert(text.strip())
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None


def _kind(text: str) -> str:
    numbered = dict(zip(map(str, range(1, len(KINDS) + 1)), KINDS, strict=True))
    if text not in KINDS and text not in numbered:
        raise InvalidInput(f"type a number from 1 to {len(KINDS)}")
    return numbered.get(text, text)
