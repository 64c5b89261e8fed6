"""Credit: Default of Credit Card Clients (UCI, Yeh 2009) and German Credit (UCI, Hofmann 1994), by sex."""

from __future__ import annotations

from typing import Any

from ratewise.datasets.files import KnownFile, locate
from ratewise.datasets.schema import Schema, Table, pandas, table

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
CREDIT_CARD_SCHEMA = Schema(
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


GERMAN_SCHEMA = Schema(
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
    sensitive={"sex": ("male", "female"), "age": ("up to 25", "above 25")},
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
    """Return German Credit: 1,000 rows, label 1 for a good risk, sensitive "sex" (no feature) and "age".

    Parameters
    ----------
    data_home : str or path, optional
        Folder that holds ``german/german.data``.
    """
    path = locate([GERMAN], GERMAN_HOME, data_home)
    frame = pandas().read_csv(path, sep=" ", names=list(GERMAN_COLUMNS))
    sex = frame["status"].map({"A91": "male", "A92": "female", "A93": "male", "A94": "male", "A95": "female"})
    age = frame["age"].le(25).map({True: "up to 25", False: "above 25"})
    return table(frame, frame["risk"].map({1: 1, 2: 0}), {"sex": sex, "age": age}, GERMAN_SCHEMA)
