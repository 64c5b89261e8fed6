"""Health: Parkinsons Telemonitoring (UCI, Tsanas and Little 2009) and heart disease (BRFSS 2015), by sex."""

from __future__ import annotations

from typing import Any

from ratewise import _validate
from ratewise.datasets.files import KnownFile, locate
from ratewise.datasets.schema import Schema, Table, pandas, table

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
PARKINSONS_SCHEMA = Schema(
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
    return Schema(
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
