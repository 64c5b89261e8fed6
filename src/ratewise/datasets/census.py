"""Census tables: Adult (UCI, Becker and Kohavi 1996) and ACSEmployment (US Census Bureau; task of Ding et al. 2021)."""

from __future__ import annotations

from typing import Any

from ratewise.data.schema import Schema
from ratewise.datasets.files import KnownFile, locate
from ratewise.datasets.table import Table, described, pandas, table

# --------------------------------------------------------------------------------------------------- adult


HOME = "https://archive.ics.uci.edu/dataset/2/adult"
_ARCHIVE = "https://archive.ics.uci.edu/static/public/2/adult.zip"
TRAIN = KnownFile(
    "adult/adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", _ARCHIVE
)
TEST = KnownFile(
    "adult/adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", _ARCHIVE
)
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    "label",
)
SEXES = ("Female", "Male")
RACES = ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# values as the published description lists them
SCHEMA = described(
    name="adult",
    numbers={
        "age": (17, 90),
        "education-num": (1, 16),
        "capital-gain": (0, 99_999),
        "capital-loss": (0, 4_356),
        "hours-per-week": (1, 99),
    },
    categories={
        "workclass": _words(
            "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked"
        ),
        "education": _words(
            "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
            "1st-4th 10th Doctorate 5th-6th Preschool"
        ),
        "marital-status": _words(
            "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
            "Married-AF-spouse"
        ),
        "occupation": _words(
            "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
            "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
            "Armed-Forces"
        ),
        "relationship": _words("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
        "race": RACES,
        "native-country": _words(
            "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India "
            "Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico "
            "Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary "
            "Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong "
            "Holand-Netherlands"
        ),
    },
    label="label",
    classes=(0, 1),
    sensitive={"sex": SEXES, "race": RACES},
    note="1 is an income above 50K; sex and the sampling weight are no features",
)


def load_adult(data_home: Any = None) -> Table:
    """Return Adult, each person once: training and test files joined, rows with a missing value dropped.

    45,222 rows. Label 1: income above 50K. Sensitive: "sex" (no feature) and "race" (a feature too).

    Parameters
    ----------
    data_home : str or path, optional
        Folder that holds ``adult/adult.data`` and ``adult/adult.test``; see `ratewise.datasets.files`.
    """
    parts = [_read(TRAIN, 0, data_home), _read(TEST, 1, data_home)]
    return _table(pandas().concat(parts, ignore_index=True), SCHEMA)


def load_adult_doubled(data_home: Any = None) -> Table:
    """Return the table that several published curves call Adult: the clean training rows, each of them TWICE.

    60,324 rows. Any split puts copies of test rows into the training part, and a guarantee for one row covers
    half of what is held about a person. Only for comparison with such curves.
    """
    part = _read(TRAIN, 0, data_home)
    doubled = SCHEMA.replace(name="adult-doubled", unit="half of what is held about a person")
    return _table(pandas().concat([part, part], ignore_index=True), doubled)


def _read(file: KnownFile, skipped: int, data_home: Any) -> Any:
    found = pandas().read_csv(
        locate([file], HOME, data_home),
        names=list(COLUMNS),
        skipinitialspace=True,
        na_values="?",
        skiprows=skipped,
    )
    return found.dropna()


def _table(frame: Any, schema: Schema) -> Table:
    high = frame["label"].str.rstrip(".").map({"<=50K": 0, ">50K": 1})
    return table(frame, high, {"sex": frame["sex"], "race": frame["race"]}, schema)


# ---------------------------------------------------------------------------------------------- employment


ACS_HOME = "https://www.census.gov/programs-surveys/acs/microdata.html (Massachusetts, 1-Year, 2015 to 2018)"
ACS_FILE = KnownFile(
    "acs/acs_employment_MA_2015_2018.csv.gz",
    "8d3afe673de2a491f9fb1d6bdd855adc0e65fee0f07b3e8ef2eaa847e773671f",
)
ACS_RACES = tuple(str(code) for code in range(1, 10))

# codes of the survey's data dictionary, with 0 for "not asked"
ACS_SCHEMA = described(
    name="acs-employment",
    numbers={"AGEP": (0, 99)},
    categories={
        "SCHL": tuple(range(25)),
        "MAR": tuple(range(1, 6)),
        "RELP": tuple(range(18)),
        "DIS": (1, 2),
        "ESP": tuple(range(9)),
        "CIT": tuple(range(1, 6)),
        "MIG": tuple(range(4)),
        "MIL": tuple(range(5)),
        "ANC": (1, 2, 3, 4, 8),
        "NATIVITY": (1, 2),
        "DEAR": (1, 2),
        "DEYE": (1, 2),
        "DREM": (0, 1, 2),
        "SEX": (1, 2),
        "RAC1P": tuple(range(1, 10)),
    },
    label="EMPLOYED",
    classes=(0, 1),
    sensitive={"sex": ("male", "female"), "race": ACS_RACES},
    note="sex and race are features, as in the published task; the year is not",
)


def load_acs_employment(data_home: Any = None) -> Table:
    """Return ACSEmployment for Massachusetts, 2015 to 2018: 277,677 persons, label 1 for employed.

    Sensitive: "sex" and "race" (the codes 1 to 9 of RAC1P, as text), features too.

    Parameters
    ----------
    data_home : str or path, optional
        Folder that holds ``acs/acs_employment_MA_2015_2018.csv.gz``: the 16 columns of the task, YEAR and
        EMPLOYED, missing codes as 0. The Census Bureau publishes the survey in another form, so this file is
        not fetched.
    """
    frame = pandas().read_csv(locate([ACS_FILE], ACS_HOME, data_home))
    groups = {"sex": frame["SEX"].map({1: "male", 2: "female"}), "race": frame["RAC1P"].astype(str)}
    return table(frame, frame["EMPLOYED"], groups, ACS_SCHEMA)
