"""Data for examples and benchmarks: synthetic people with known rates, and public data sets with schemas.

`census_like` draws people from a known distribution. Each ``load_...`` finds the files of a published data
set (in the folder given, in $RATEWISE_DATA, in the cache, or from its home page, by checksum) and returns a
`Table`: a data frame, and features, labels and groups encoded by a schema that is written down here, so that
nothing about the encoding is learned from rows.

>>> sorted(LOADERS)
['acs_employment', 'adult', 'celeba', 'credit_card', 'german', 'heart', 'nursery', 'parkinsons', 'student', 'utkface']
"""

from ratewise.datasets.faces import Images, load_celeba, load_utkface
from ratewise.datasets.files import DataCorrupt, DataNotFound
from ratewise.datasets.people import People, census_like
from ratewise.datasets.tables import (
    Table,
    load_acs_employment,
    load_adult,
    load_credit_card,
    load_german,
    load_heart,
    load_nursery,
    load_parkinsons,
    load_student,
)

__all__ = [
    "LOADERS",
    "DataCorrupt",
    "DataNotFound",
    "Images",
    "People",
    "Table",
    "census_like",
    "load_acs_employment",
    "load_adult",
    "load_celeba",
    "load_credit_card",
    "load_german",
    "load_heart",
    "load_nursery",
    "load_parkinsons",
    "load_student",
    "load_utkface",
]

LOADERS = {name.removeprefix("load_"): globals()[name] for name in __all__ if name.startswith("load_")}
