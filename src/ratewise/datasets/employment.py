"""ACSEmployment (US Census Bureau; task of Ding et al. 2021): employed or not, by sex or race."""

from __future__ import annotations

from typing import Any

from ratewise.datasets.files import KnownFile, locate
from ratewise.datasets.schema import Schema, Table, pandas, table

HOME = "https://www.census.gov/programs-surveys/acs/microdata.html (Massachusetts, 1-Year, 2015 to 2018)"
FILE = KnownFile(
    "acs/acs_employment_MA_2015_2018.csv.gz",
    "8d3afe673de2a491f9fb1d6bdd855adc0e65fee0f07b3e8ef2eaa847e773671f",
)
RACES = tuple(str(code) for code in range(1, 10))

# codes of the survey's data dictionary, with 0 for "not asked"
SCHEMA = Schema(
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
    sensitive={"sex": ("male", "female"), "race": RACES},
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
    frame = pandas().read_csv(locate([FILE], HOME, data_home))
    groups = {"sex": frame["SEX"].map({1: "male", 2: "female"}), "race": frame["RAC1P"].astype(str)}
    return table(frame, frame["EMPLOYED"], groups, SCHEMA)
