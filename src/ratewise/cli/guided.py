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
from ratewise.metrics.verdicts import short
from ratewise.runs import Result, Settings, Watch, session_for, train_run

EPSILONS = (0.5, 1.0, 3.0)
_MOST_MADE_UP = 10_000
_LABEL = re.compile(r"^(label|target|class|outcome|y|income|default|approved|hired|two_year_recid)$", re.I)
_GROUP = re.compile(
    r"(^|[_\W])(sex|gender|race|ethnicity|ethnic|religion|nationality|disability)([_\W]|$)", re.I
)
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

    Attributes
    ----------
    data, out : str
        The file, and the folder that everything is written to.
    label : str
    privacy_id : str
        Column of ids that are protected; empty protects rows.
    groups : tuple of str
        Columns whose groups are compared.
    kind : str
        One of `KINDS`.
    positive : str
        The class of "opportunity".
    slack : float
        Largest difference between a group and the others.
    epsilon : float
    leave_out : tuple of str
    title : str
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
    def constraints(self) -> tuple[str, ...]:
        """The constraints as text, one for each column of groups."""
        if self.kind not in KINDS:
            raise InvalidInput(f"the constraint must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.kind == "none":
            return ()
        if not self.groups:
            raise InvalidInput("name at least one column of groups, or choose no constraint")
        if self.kind == "opportunity" and not self.positive:
            raise InvalidInput(
                "name the class that people should be found to have equally often (--positive)"
            )
        positive: Any = int(self.positive) if self.positive.isdecimal() else self.positive
        made: dict[str, Callable[[str], Any]] = {
            "parity": lambda name: demographic_parity(name, max_gap=self.slack),
            "opportunity": lambda name: equal_opportunity(name, max_gap=self.slack, positive=positive),
            "errors": lambda name: error_rate_parity(name, max_gap=self.slack),
        }
        return tuple(format_constraint(made[self.kind](name)) for name in self.groups)

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        return Settings(
            label=self.label,
            groups=self.groups,
            constraints=self.constraints,
            epsilon=self.epsilon,
            privacy_id=self.privacy_id or None,
            leave_out=self.leave_out,
            title=self.title,
        )

    def configuration(self, reading: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a configuration file for ``ratewise train --config``."""
        optional = {
            "groups": list(self.groups),
            "constraints": list(self.constraints),
            "privacy_id": self.privacy_id,
            "leave_out": list(self.leave_out),
            "title": self.title,
            **reading,
        }
        given = {name: value for name, value in optional.items() if value not in ("", [], None)}
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


def suggested(data: str, columns: Sequence[str]) -> Choices:
    """Return suggestions that follow from the names of the columns."""
    label = next((name for name in columns if _LABEL.search(name)), columns[-1])
    others = [name for name in columns if name != label]
    person = next((name for name in others if _ID.search(name)), "")
    groups = tuple(name for name in others if _GROUP.search(name) and name != person)[:1]
    stem = re.sub(r"\W+", "-", Path(data).name.split(".")[0]).strip("-") or "table"
    return Choices(
        data=data, out=f"{stem}-run", label=label, privacy_id=person, groups=groups, kind="parity" if groups else "none"
    )  # fmt: skip


def check(choices: Choices, columns: Sequence[str]) -> Choices:
    """Return the choices if they fit the columns, or raise with what to change."""
    named = (choices.label, *choices.groups, *choices.leave_out, *filter(None, [choices.privacy_id]))
    for name in named:
        if name not in columns:
            raise InvalidInput(f"the table has no column {name!r}; its columns are {list_values(columns)}")
    if not 0.0 < choices.epsilon < float("inf"):
        raise InvalidInput(f"epsilon must be a number above 0, got {choices.epsilon!r}")
    if not 0.0 <= choices.slack <= 1.0:
        raise InvalidInput(f"the largest difference must be between 0 and 1, got {choices.slack!r}")
    _ = choices.settings
    return choices


class Guide:
    """A file and its table, from which choices become a run with everything beside it."""

    def __init__(self, data: str, given: Mapping[str, Any]) -> None:
        self.table = Table.read(data, given)
        self.columns = self.table.columns
        if len(self.columns) < 2:
            raise InvalidInput(f"{data!r} has one column only; a label and at least one feature are needed")
        self.suggestion = suggested(data, self.columns)

    def same_run(self, choices: Choices) -> dict[str, str]:
        """Return the run as a command, a TOML file and a Python script."""
        given = self.table.given
        return {
            "command": choices.command(given),
            "toml": to_toml(choices.configuration(given)),
            "script": choices.script(given),
        }

    def outlooks(self, choices: Choices) -> list[str]:
        """Return what to expect at the chosen epsilon and at customary ones, a line each."""
        frame = self.table.frame
        units = code_ids(frame[choices.privacy_id])[1] if choices.privacy_id else len(frame)
        wanted = sorted({*EPSILONS, choices.epsilon})
        return [outlook(replace(choices, epsilon=epsilon), self.columns, max(units, 2)) for epsilon in wanted]

    def train(self, choices: Choices, watch: Watch | None = None) -> Result:
        """Train the run, and write the report, the command, the TOML file and the script into its folder.

        The report shows released values alone: everything in the folder is covered by the guarantee.
        """
        check(choices, self.columns)
        refuse_folder(choices.out, force=None)
        settings, same = choices.settings, self.same_run(choices)
        table = self.table.with_label(choices.label)
        classifier, session = session_for(table.frame, settings)
        command = shlex.split(same["command"])
        folder = table.new_run(
            choices.out, settings=settings, schema=None, plan=session.plan, command=command
        )
        write_whole(folder.path / "command.txt", same["command"] + "\n")
        write_whole(folder.path / "train.toml", same["toml"] + "\n")
        write_whole(folder.path / "train.py", same["script"])
        result = train_run(folder, classifier, session, watch=watch)
        page = released_report(folder, classifier, notes=result.messages)
        page.to_html(folder.path / "report.html")
        return result


def outlook(choices: Choices, columns: Sequence[str], n_units: int) -> str:
    """Return the accuracy and the certificate's width to expect, from made-up rows, as a line of text.

    Groups are taken to be two of equal size; nothing of the file but its size and the names of its columns is used.
    """
    used = {choices.label, choices.privacy_id, *choices.groups, *choices.leave_out}
    positive = int(choices.positive) if choices.positive.isdecimal() else choices.positive
    schema = Schema(
        {name: Number(-5, 5) for name in columns if name not in used} or {"x": Number(-5, 5)},
        label=choices.label,
        classes=[positive, "other class"] if choices.positive else [0, 1],
        groups={name: Category(["a", "b"]) for name in choices.groups},
    )
    found = expected(n_units, choices.settings, schema, most=_MOST_MADE_UP)
    rehearsal, width = found["rehearsal"], found["certificate_half_width"]
    known = "" if width is None else f"; rates of groups are known to about +-{short(width)}"
    return (
        f"epsilon {choices.epsilon:g}: accuracy {rehearsal['accuracy']:.3f} on made-up rows "
        f"({rehearsal['accuracy_without']:.3f} without privacy){known}"
    )


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
    columns = guide.columns
    click.echo(f"The columns are: {', '.join(columns)}")

    def asked(name: str, question: str, convert: Callable[[str], Any], shown: str = "") -> None:
        nonlocal choices
        if name in given:
            return
        default = shown or str(getattr(choices, name))
        choices = replace(choices, **{name: click.prompt(question, default=default, value_proc=convert)})

    asked("label", "Which column should be predicted", lambda text: _column(text, columns))
    asked(
        "privacy_id",
        "Who is protected: type rows, or the column that identifies people with several rows",
        lambda text: "" if text.strip().lower() in ("rows", "") else _column(text, columns),
        choices.privacy_id or "rows",
    )
    asked(
        "groups",
        "Which columns form the groups to compare (separated by commas; none)",
        lambda text: _columns(text, columns),
        ",".join(choices.groups) or "none",
    )
    if not choices.groups and "kind" not in given:
        choices = replace(choices, kind="none")
    elif "kind" not in given:
        choices = replace(choices, kind="parity" if choices.kind == "none" else choices.kind)
        numbered = list(KINDS)
        for place, name in enumerate(numbered, start=1):
            click.echo(f"  {place}. {KINDS[name]}")
        asked(
            "kind",
            "Which constraint",
            lambda text: _numbered(text, numbered),
            str(numbered.index(choices.kind) + 1),
        )
    if choices.kind == "opportunity":
        asked("positive", "Which class", str.strip, choices.positive or "1")
    if choices.kind != "none":
        asked("slack", "Largest difference between a group and the others (0.05 is 5 points)", _number)
    if "epsilon" not in given:
        click.echo("Privacy budget (smaller is more private):")
        for line in guide.outlooks(choices):
            click.echo(f"  {line}")
    asked("epsilon", "Epsilon", _number)
    asked("out", "Folder for the results", str.strip)
    return check(choices, columns)


def _column(text: str, columns: Sequence[str]) -> str:
    if text.strip() not in columns:
        raise click.BadParameter(f"{text.strip()!r} is no column")
    return text.strip()


def _columns(text: str, columns: Sequence[str]) -> tuple[str, ...]:
    if text.strip().lower() in ("none", ""):
        return ()
    return tuple(_column(part, columns) for part in text.split(","))


def _numbered(text: str, names: Sequence[str]) -> str:
    if text.strip() in names:
        return text.strip()
    if not text.strip().isdecimal() or not 1 <= int(text) <= len(names):
        raise click.BadParameter(f"type a number from 1 to {len(names)}")
    return names[int(text) - 1]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number") from None
