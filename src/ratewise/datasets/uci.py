"""Tables on credit, health and schools.

Default of Credit Card Clients (UCI, Yeh 2009), German Credit (UCI, Hofmann 1994), Parkinsons Telemonitoring (UCI, Tsanas
and Little 2009), heart disease (BRFSS 2015), Student Performance (UCI, Cortez and Silva 2008), Nursery (UCI, Rajkovic et
al. 1989).
"""

from __future__ import annotations

from typing import Any

from ratewise import _validate
from ratewise.data.schema import Schema
from ratewise.datasets.files import KnownFile, locate
from ratewise.datasets.table import Table, described, pandas, table

# -------------------------------------------------------------------------------------------------- credit


CREDIT_CARD_HOME = "https://archive.ics.uci.edu/dataset/350/default+of+credit+card+clients"
CREDIT_CARD = KnownFile(
    "credit-card/UCI_Credit_Card.csv",
    "a0f0ab49d6326671d6cd83be5c88dcf18007025fe9a53ecd699119c871176ca1",
    "https://www.kaggle.com/api/v1/datasets/download/uciml/default-of-credit-card-clients-dataset",
)
GERMAN_HOME = "https://archive.ics.uci.edu/dataset/144/statlog+german+credit+data"
GERMAN = KnownFile(
    "german/german.data",
    "b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871",
    "https://archive.ics.uci.edu/static/public/144/statlog+german+credit+data.zip",
)

# Amounts in New Taiwan dollars, cut off at round numbers; delays in months, with the two codes (-2, 0) and
# those of education and marriage that occur beside the documented ones.
CREDIT_CARD_SCHEMA = described(
    name="credit-card",
    numbers={
        "LIMIT_BAL": (0, 1_000_000),
        "AGE": (18, 80),
        **{f"BILL_AMT{month}": (-100_000, 500_000) for month in range(1, 7)},
        **{f"PAY_AMT{month}": (0, 100_000) for month in range(1, 7)},
    },
    categories={
        "EDUCATION": tuple(range(7)),
        "MARRIAGE": tuple(range(4)),
        **{f"PAY_{month}": tuple(range(-2, 10)) for month in (0, 2, 3, 4, 5, 6)},
    },
    label="default.payment.next.month",
    classes=(0, 1),
    sensitive={"sex": ("male", "female")},
    unit="one client",
    note="1 is a default next month; sex is no feature",
)

GERMAN_COLUMNS = (
    *("checking", "months", "history", "purpose", "amount", "savings", "employment", "rate", "status"),
    *("debtors", "residence", "property", "age", "plans", "housing", "credits", "job", "liable"),
    *("telephone", "foreign", "risk"),
)


def _codes(attribute: int, *numbers: int) -> tuple[str, ...]:
    return tuple(f"A{attribute}{number}" for number in numbers)


GERMAN_SCHEMA = described(
    name="german",
    numbers={
        "months": (0, 72),
        "amount": (0, 20_000),
        "rate": (1, 4),
        "residence": (1, 4),
        "age": (18, 80),
        "credits": (1, 4),
        "liable": (1, 2),
    },
    categories={
        "checking": _codes(1, 1, 2, 3, 4),
        "history": _codes(3, 0, 1, 2, 3, 4),
        "purpose": _codes(4, *range(11)),
        "savings": _codes(6, 1, 2, 3, 4, 5),
        "employment": _codes(7, 1, 2, 3, 4, 5),
        "debtors": _codes(10, 1, 2, 3),
        "property": _codes(12, 1, 2, 3, 4),
        "plans": _codes(14, 1, 2, 3),
        "housing": _codes(15, 1, 2, 3),
        "job": _codes(17, 1, 2, 3, 4),
        "telephone": _codes(19, 1, 2),
        "foreign": _codes(20, 1, 2),
    },
    label="risk",
    classes=(0, 1),
    sensitive={"sex": ("male", "female"), "age_group": ("up to 25", "above 25")},
    note="1 is a good risk; personal status, which tells the sex, is no feature; age is",
)


def load_credit_card(data_home: Any = None) -> Table:
    """Return Default of Credit Card Clients: 30,000 rows, label 1 for a default.

    Sensitive: "sex" (no feature).

    Parameters
    ----------
    data_home : str or path, optional
        Folder that holds ``credit-card/UCI_Credit_Card.csv``.
    """
    frame = pandas().read_csv(locate([CREDIT_CARD], CREDIT_CARD_HOME, data_home))
    sex = frame["SEX"].map({1: "male", 2: "female"})
    return table(frame, frame[CREDIT_CARD_SCHEMA.label], {"sex": sex}, CREDIT_CARD_SCHEMA)


def load_german(data_home: Any = None) -> Table:
    """Return German Credit: 1,000 rows, label 1 for a good risk, sensitive "sex" (no feature) and "age_group".

    Parameters
    ----------
    data_home : str or path, optional
        Folder that holds ``german/german.data``.
    """
    path = locate([GERMAN], GERMAN_HOME, data_home)
    frame = pandas().read_csv(path, sep=" ", names=list(GERMAN_COLUMNS))
    sex = frame["status"].map({"A91": "male", "A92": "female", "A93": "male", "A94": "male", "A95": "female"})
    age = frame["age"].le(25).map({True: "up to 25", False: "above 25"})
    return table(frame, frame["risk"].map({1: 1, 2: 0}), {"sex": sex, "age_group": age}, GERMAN_SCHEMA)


# -------------------------------------------------------------------------------------------------- health


PARKINSONS_HOME = "https://archive.ics.uci.edu/dataset/189/parkinsons+telemonitoring"
PARKINSONS = KnownFile(
    "parkinsons/parkinsons_updrs.data",
    "f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39",
    "https://archive.ics.uci.edu/static/public/189/parkinsons+telemonitoring.zip",
)
HEART_HOME = "https://www.kaggle.com/datasets/alexteboul/heart-disease-health-indicators-dataset"
HEART = (
    KnownFile(
        "heart/heart_disease_health_indicators_BRFSS2015.csv.gz",
        "c7d3eef484fb971edf50571967b3109bb91a346d23af9cd24cbb722b4eff7e0c",
    ),
    KnownFile(
        "heart/heart_disease_health_indicators_BRFSS2015.csv",
        "953fb23bb131736d7879539a071d3f6d1eaae8d4867ab05335d0ba89b94d5f99",
        "https://www.kaggle.com/api/v1/datasets/download/alexteboul/heart-disease-health-indicators-dataset",
    ),
)

THRESHOLD = 27.576  # total UPDRS that published work calls high, the documented median of the study

# Bounds are those of the scale for the motor score, and for the voice measures well above
# what clinics call pathological (1% jitter, 4% shimmer); what lies beyond is cut off there.
PARKINSONS_SCHEMA = described(
    name="parkinsons",
    numbers={
        "age": (30, 90),
        "test_time": (-5, 220),
        "motor_UPDRS": (0, 108),
        "Jitter(%)": (0, 0.03),
        "Jitter(Abs)": (0, 2e-4),
        "Jitter:RAP": (0, 0.02),
        "Jitter:PPQ5": (0, 0.02),
        "Jitter:DDP": (0, 0.06),
        "Shimmer": (0, 0.15),
        "Shimmer(dB)": (0, 1.5),
        "Shimmer:APQ3": (0, 0.1),
        "Shimmer:APQ5": (0, 0.1),
        "Shimmer:APQ11": (0, 0.15),
        "Shimmer:DDA": (0, 0.3),
        "NHR": (0, 0.3),
        "HNR": (0, 40),
        "RPDE": (0, 1),
        "DFA": (0.4, 1),
        "PPE": (0, 0.8),
    },
    categories={},
    label="total_UPDRS",
    classes=(0, 1),
    sensitive={"sex": ("male", "female")},
    unit="one recording; a subject has about 140 of them",
    note=f"1 is a total UPDRS above {THRESHOLD}; sex is no feature",
)

_ANSWERS = (
    *("HighBP", "HighChol", "CholCheck", "Smoker", "Stroke", "PhysActivity", "Fruits", "Veggies"),
    *("HvyAlcoholConsump", "AnyHealthcare", "NoDocbcCost", "DiffWalk", "Sex"),
)
_HEART, _DIABETES = "HeartDiseaseorAttack", "Diabetes"


def _heart_schema(label: str) -> Schema:
    """Return the schema for one of the two labels; the other one is a feature."""
    answers = (*_ANSWERS, *((_HEART,) if label == _DIABETES else ()))
    diabetes = {} if label == _DIABETES else {_DIABETES: (0, 1, 2)}
    return described(
        name="heart" if label == _HEART else "heart-diabetes",
        numbers={
            **dict.fromkeys(answers, (0, 1)),
            "BMI": (12, 60),
            "MentHlth": (0, 30),
            "PhysHlth": (0, 30),
        },
        categories={
            **diabetes,
            "GenHlth": tuple(range(1, 6)),
            "Age": tuple(range(1, 14)),
            "Education": tuple(range(1, 7)),
            "Income": tuple(range(1, 9)),
        },
        label=label,
        classes=(0, 1) if label == _HEART else (0, 1, 2),
        sensitive={"sex": ("female", "male")},
        unit="one interview",
        note="sex is a feature",
    )


HEART_SCHEMAS = {label: _heart_schema(label) for label in (_HEART, _DIABETES)}


def load_parkinsons(data_home: Any = None) -> Table:
    """Return Parkinsons Telemonitoring: 5,875 recordings of 42 subjects, label 1 for a high UPDRS score.

    Sensitive: "sex" (no feature). Privacy for one row protects one recording, not a subject.

    Parameters
    ----------
    data_home : str or path, optional
        Folder that holds ``parkinsons/parkinsons_updrs.data``.
    """
    frame = pandas().read_csv(locate([PARKINSONS], PARKINSONS_HOME, data_home))
    high = frame["total_UPDRS"].gt(THRESHOLD).astype(int)
    sex = frame["sex"].map({0: "male", 1: "female"})
    return table(frame, high, {"sex": sex}, PARKINSONS_SCHEMA)


def load_heart(data_home: Any = None, *, label: str = _HEART) -> Table:
    """Return the heart disease indicators of BRFSS 2015: 253,680 interviews, sensitive "sex" (a feature too).

    Parameters
    ----------
    data_home : str or path, optional
        Folder that holds ``heart/heart_disease_health_indicators_BRFSS2015.csv`` or the same with ``.gz``.
    label : "HeartDiseaseorAttack" or "Diabetes"
        Two classes, or three (none, before, diabetes).
    """
    schema = HEART_SCHEMAS[_validate.one_of((_HEART, _DIABETES), label=label)]
    frame = pandas().read_csv(locate(HEART, HEART_HOME, data_home)).astype(int)
    sex = frame["Sex"].map({0: "female", 1: "male"})
    return table(frame, frame[label], {"sex": sex}, schema)


# ------------------------------------------------------------------------------------------------- schools


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

_SCHOOL_ANSWERS = ("schoolsup", "famsup", "paid", "activities", "nursery", "higher", "internet", "romantic")
_GRADES = ("fail", "pass", "good")
_JOBS = ("at_home", "health", "other", "services", "teacher")
STUDENT_SCHEMA = described(
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
        **dict.fromkeys(_SCHOOL_ANSWERS, ("no", "yes")),
    },
    label="G3",
    classes=_GRADES,
    sensitive={"sex": ("F", "M")},
    unit="one pupil in one subject",
    note="final grades 0-9 fail, 10-13 pass, 14-20 good; sex is no feature",
)

NURSERY_COLUMNS = (
    *("parents", "has_nurs", "form", "children", "housing", "finance", "social", "health", "class"),
)
_FINANCES = ("convenient", "inconv")
NURSERY_SCHEMA = described(
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
    grade = pandas().cut(frame["G3"], [-1, 9, 13, 20], labels=list(_GRADES))
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
