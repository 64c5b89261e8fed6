"""Public tables with a public `Schema`, and the encoding that follows from it alone.

``tables.json`` describes each data set: its files, where they are published, and a schema in the format that
`Schema.from_dict` reads, so that nothing about the encoding is learned from rows. ``data_home``, of each
loader, is the folder that holds the named files; None: see `ratewise.datasets.files`.

Adult (UCI, Becker and Kohavi 1996), ACSEmployment (US Census Bureau; task of Ding et al. 2021), Default of
Credit Card Clients (UCI, Yeh 2009), German Credit (UCI, Hofmann 1994), Parkinsons Telemonitoring (UCI, Tsanas
and Little 2009), heart disease (BRFSS 2015), Student Performance (UCI, Cortez and Silva 2008), Nursery (UCI,
Rajkovic et al. 1989).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.data.schema import Schema
from ratewise.datasets.files import KnownFile, locate
from ratewise.exceptions import InvalidInput


class Published(NamedTuple):
    """The description of a data set: the page that publishes it, its files, their columns if unnamed."""

    home: str
    files: tuple[KnownFile, ...]
    header: list[str] | None
    schema: Schema


@functools.cache
def published(name: str) -> Published:
    """Return what ``tables.json`` says about a data set."""
    text = resources.files("ratewise.datasets").joinpath("tables.json").read_text(encoding="utf-8")
    found = json.loads(text)[name]
    files = tuple(KnownFile(**file) for file in found["files"])
    return Published(found["home"], files, found.get("header"), Schema.from_dict(found["schema"]))


def feature_names(schema: Schema) -> tuple[str, ...]:
    """Return the names of the encoded features: numbers first, then ``column=value``."""
    hot = (f"{column}={value}" for column, values in schema.categories.items() for value in values)
    return (*schema.feature_bounds, *hot)


def encode(frame: Any, schema: Schema) -> npt.NDArray[np.float32]:
    """Return the features (n, d): numbers within their bounds, then zeros and ones for categories."""
    X = np.zeros((len(frame), len(feature_names(schema))), dtype=np.float32)
    for place, (column, (low, high)) in enumerate(schema.feature_bounds.items()):
        X[:, place] = np.clip(frame[column].to_numpy(dtype=np.float64), low, high)
    rows, first = np.arange(len(frame)), len(schema.feature_bounds)
    for column, values in schema.categories.items():
        X[rows, first + codes(frame[column], values, column)] = 1.0
        first += len(values)
    return X


def codes(column: Any, values: tuple[Any, ...], name: str) -> npt.NDArray[np.intp]:
    """Return the place of each entry among the values; an entry that is none of them is an error."""
    found = np.asarray(pandas().Index(list(values)).get_indexer(column), dtype=np.intp)
    if (found < 0).any():
        raise InvalidInput(
            f"{int((found < 0).sum())} rows of column {name!r} hold none of its {len(values)} known values; "
            "the file is not the published one"
        )
    return found


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Rows of a public data set with its public schema; made by the loaders.

    `frame` has the columns as published, label included; `X` the encoded features; `y` the labels, values of
    `classes`; `sensitive` the sensitive columns, with values of `group_values`. `feature_bounds`, of shape
    (2, d), are the public lower and upper bounds of the encoded features.
    """

    frame: Any
    X: npt.NDArray[np.float32]
    y: npt.NDArray[Any]
    sensitive: Any
    schema: Schema
    feature_names: tuple[str, ...]
    feature_bounds: npt.NDArray[np.float64]
    classes: tuple[Any, ...]
    group_values: dict[str, tuple[Any, ...]]

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        groups = ", ".join(self.schema.groups)
        return f"<Table {self.schema.name}: {len(self)} rows, {self.X.shape[1]} features, groups by {groups}>"

    @property
    def data(self) -> Any:
        """The published columns without the label, as in scikit-learn's bunches."""
        return self.frame.drop(columns=self.schema.label)

    @property
    def target(self) -> Any:
        """The published label column, as in scikit-learn's bunches."""
        return self.frame[self.schema.label]


def table(frame: Any, y: Any, sensitive: Mapping[str, Any], schema: Schema) -> Table:
    """Return a checked table: labels and groups hold known values only."""
    classes, group_values, names = tuple(schema.classes), schema.group_values, feature_names(schema)
    labels = np.asarray(classes)[codes(y, classes, schema.label)]
    groups = {name: np.asarray(v)[codes(sensitive[name], v, name)] for name, v in group_values.items()}
    bounds = [*schema.feature_bounds.values(), *[(0.0, 1.0)] * (len(names) - len(schema.feature_bounds))]
    bounds_of = np.array(bounds, dtype=np.float64).reshape(-1, 2).T
    X, known = encode(frame, schema), pandas().DataFrame(groups)
    return Table(frame, X, labels, known, schema, names, bounds_of, classes, group_values)


def pandas() -> Any:
    """Return pandas, or say how to get it."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("the loaders of public data sets need pandas: pip install pandas") from None
    return pd


def _read(name: str, data_home: Any, files: slice = slice(None), **options: Any) -> Any:
    """Return the rows of a data set; `files` are the forms of its file of which the first is taken."""
    about = published(name)
    path = locate(about.files[files], about.home, data_home)
    return pandas().read_csv(path, **({"names": about.header} if about.header else {}), **options)


def load_adult(data_home: Any = None) -> Table:
    """Return Adult, each person once: training and test files joined, rows with a missing value dropped.

    45,222 rows. Label 1: income above 50K. Sensitive: "sex" (no feature) and "race" (a feature too). Files:
    ``adult/adult.data`` and ``adult/adult.test``.
    """
    # the second file starts with a remark
    parts = [
        _read("adult", data_home, slice(i, i + 1), skipinitialspace=True, na_values="?", skiprows=i) for i in (0, 1)
    ]
    frame = pandas().concat(parts, ignore_index=True).dropna().reset_index(drop=True)
    high = frame["label"].str.rstrip(".").map({"<=50K": 0, ">50K": 1})
    return table(frame, high, frame, published("adult").schema)


def load_acs_employment(data_home: Any = None) -> Table:
    """Return ACSEmployment for Massachusetts, 2015 to 2018: 277,677 persons, label 1 for employed.

    Sensitive: "sex" and "race" (the codes 1 to 9 of RAC1P, as text), features too. File:
    ``acs/acs_employment_MA_2015_2018.csv.gz``, the 16 columns of the task, YEAR and EMPLOYED, missing codes
    as 0. The Census Bureau publishes the survey in another form, so this file is not fetched.
    """
    frame = _read("acs_employment", data_home)
    groups = {"sex": frame["SEX"].map({1: "male", 2: "female"}), "race": frame["RAC1P"].astype(str)}
    return table(frame, frame["EMPLOYED"], groups, published("acs_employment").schema)


def load_credit_card(data_home: Any = None) -> Table:
    """Return Default of Credit Card Clients: 30,000 rows, label 1 for a default.

    Sensitive: "sex" (no feature). Amounts, in New Taiwan dollars, are clipped to round numbers. File:
    ``credit-card/UCI_Credit_Card.csv``.
    """
    frame, schema = _read("credit_card", data_home), published("credit_card").schema
    return table(frame, frame[schema.label], {"sex": frame["SEX"].map({1: "male", 2: "female"})}, schema)


def load_german(data_home: Any = None) -> Table:
    """Return German Credit: 1,000 rows, label 1 for a good risk.

    Sensitive: "sex" (no feature) and "age_group". File: ``german/german.data``.
    """
    frame = _read("german", data_home, sep=" ")
    sex = frame["status"].map({"A91": "male", "A92": "female", "A93": "male", "A94": "male", "A95": "female"})
    groups = {"sex": sex, "age_group": frame["age"].le(25).map({True: "up to 25", False: "above 25"})}
    return table(frame, frame["risk"].map({1: 1, 2: 0}), groups, published("german").schema)


def load_parkinsons(data_home: Any = None) -> Table:
    """Return Parkinsons Telemonitoring: 5,875 recordings of 42 subjects, label 1 for a high UPDRS score.

    Sensitive: "sex" (no feature). Privacy for one row protects one recording, not a subject. Bounds are those
    of the scale for the motor score, and for voice measures well above what clinics call pathological. File:
    ``parkinsons/parkinsons_updrs.data``.
    """
    frame = _read("parkinsons", data_home)
    # the total UPDRS that published work calls high, the documented median of the study
    high = frame["total_UPDRS"].gt(27.576).astype(int)
    return table(frame, high, {"sex": frame["sex"].map({0: "male", 1: "female"})}, published("parkinsons").schema)


def load_heart(data_home: Any = None, *, label: str = "HeartDiseaseorAttack") -> Table:
    """Return the heart disease indicators of BRFSS 2015: 253,680 interviews, sensitive "sex" (a feature too).

    The label is "HeartDiseaseorAttack" (two classes) or "Diabetes" (three: none, before, diabetes); the other
    one is a feature. File: ``heart/heart_disease_health_indicators_BRFSS2015.csv`` or the same with ``.gz``.
    """
    names = {"HeartDiseaseorAttack": "heart", "Diabetes": "heart_diabetes"}
    name = names[_validate.one_of(tuple(names), label=label)]
    frame = _read(name, data_home).astype(int)
    return table(frame, frame[label], {"sex": frame["Sex"].map({0: "female", 1: "male"})}, published(name).schema)


def load_student(data_home: Any = None, *, subject: str = "por") -> Table:
    """Return Student Performance: 649 pupils in Portuguese, or 395 in mathematics; sensitive "sex".

    Three classes of the final grade. The two subjects share pupils. Files: ``student/student-por.csv`` and
    ``student/student-mat.csv``, with commas: UCI's own files use semicolons, so they are not fetched.
    """
    place = ("por", "mat").index(_validate.one_of(("por", "mat"), subject=subject))
    frame = _read("student", data_home, slice(place, place + 1))
    grade = pandas().cut(frame["G3"], [-1, 9, 13, 20], labels=["fail", "pass", "good"])
    return table(frame, grade, frame, published("student").schema)


def load_nursery(data_home: Any = None) -> Table:
    """Return Nursery: 12,960 rows, five classes (one of two rows only), sensitive "finance" (no feature).

    File: ``nursery/nursery.data``.
    """
    frame = _read("nursery", data_home, dtype=str)
    return table(frame, frame["class"], frame, published("nursery").schema)
