"""Schools: Student Performance (UCI, Cortez and Silva 2008) and Nursery (UCI, Rajkovic et al. 1989)."""

from __future__ import annotations

from typing import Any

from ratewise import _validate
from ratewise.datasets.files import KnownFile, locate
from ratewise.datasets.schema import Schema, Table, pandas, table

STUDENT_HOME = "https://archive.ics.uci.edu/dataset/320/student+performance (with commas as separators)"
STUDENT = {
    "por": KnownFile(
        "student/student-por.csv", "df7e729d2607d75f3be2fec41fc164cef6b435b1abea19dd9f21a01a91bbc585"
    ),
    "mat": KnownFile(
        "student/student-mat.csv", "32aa42f475b45f0e3bff3ad59df73c7e2f40818d5a92ae6e4d77e3494897ef0a"
    ),
}
NURSERY_HOME = "https://archive.ics.uci.edu/dataset/76/nursery"
NURSERY = KnownFile(
    "nursery/nursery.data",
    "8e0389c3dd37590248a921c2726d869ee96b817761a35eb8416afa24f31f931d",
    "https://archive.ics.uci.edu/static/public/76/nursery.zip",
)

_ANSWERS = ("schoolsup", "famsup", "paid", "activities", "nursery", "higher", "internet", "romantic")
_JOBS = ("at_home", "health", "other", "services", "teacher")
STUDENT_SCHEMA = Schema(
    name="student",
    numbers={
        "age": (15, 22),
        **dict.fromkeys(("Medu", "Fedu", "failures"), (0, 4)),
        **dict.fromkeys(("traveltime", "studytime"), (1, 4)),
        **dict.fromkeys(("famrel", "freetime", "goout", "Dalc", "Walc", "health"), (1, 5)),
        "absences": (0, 93),
        **dict.fromkeys(("G1", "G2"), (0, 20)),
    },
    categories={
        "school": ("GP", "MS"),
        "address": ("R", "U"),
        "famsize": ("GT3", "LE3"),
        "Pstatus": ("A", "T"),
        "Mjob": _JOBS,
        "Fjob": _JOBS,
        "reason": ("course", "home", "other", "reputation"),
        "guardian": ("father", "mother", "other"),
        **dict.fromkeys(_ANSWERS, ("no", "yes")),
    },
    label="G3",
    classes=("fail", "pass", "good"),
    sensitive={"sex": ("F", "M")},
    unit="one pupil in one subject",
    note="final grades 0-9 fail, 10-13 pass, 14-20 good; sex is no feature",
)

NURSERY_COLUMNS = (
    *("parents", "has_nurs", "form", "children", "housing", "finance", "social", "health", "class"),
)
_FINANCES = ("convenient", "inconv")
NURSERY_SCHEMA = Schema(
    name="nursery",
    numbers={},
    categories={
        "parents": ("usual", "pretentious", "great_pret"),
        "has_nurs": ("proper", "less_proper", "improper", "critical", "very_crit"),
        "form": ("complete", "completed", "incomplete", "foster"),
        "children": ("1", "2", "3", "more"),
        "housing": ("convenient", "less_conv", "critical"),
        "social": ("nonprob", "slightly_prob", "problematic"),
        "health": ("recommended", "priority", "not_recom"),
    },
    label="class",
    classes=("not_recom", "recommend", "very_recom", "priority", "spec_prior"),
    sensitive={"finance": _FINANCES},
    unit="one combination of attributes",
    note="a full grid of attribute values, not a sample of people; finance is no feature",
)


def load_student(data_home: Any = None, *, subject: str = "por") -> Table:
    """Return Student Performance: 649 pupils in Portuguese, or 395 in mathematics; sensitive "sex".

    Three classes of the final grade. The two subjects share pupils.

    Parameters
    ----------
    data_home : str or path, optional
        Folder that holds ``student/student-por.csv`` and ``student/student-mat.csv``, with commas: UCI's own
        files use semicolons, so they are not fetched.
    subject : "por" or "mat"
    """
    file = STUDENT[_validate.one_of(("por", "mat"), subject=subject)]
    frame = pandas().read_csv(locate([file], STUDENT_HOME, data_home))
    grade = pandas().cut(frame["G3"], [-1, 9, 13, 20], labels=list(STUDENT_SCHEMA.classes))
    return table(frame, grade, {"sex": frame["sex"]}, STUDENT_SCHEMA)


def load_nursery(data_home: Any = None) -> Table:
    """Return Nursery: 12,960 rows, five classes (one of two rows only), sensitive "finance" (no feature).

    Parameters
    ----------
    data_home : str or path, optional
        Folder that holds ``nursery/nursery.data``.
    """
    path = locate([NURSERY], NURSERY_HOME, data_home)
    frame = pandas().read_csv(path, names=list(NURSERY_COLUMNS), dtype=str)
    return table(frame, frame["class"], {"finance": frame["finance"]}, NURSERY_SCHEMA)
