"""The published files, where they are at hand: rows, shares and bounds as their descriptions say."""

import os
from pathlib import Path

import numpy as np
import pytest

from ratewise.datasets import LOADERS

FOLDER = Path(os.environ.get("RATEWISE_DATA", Path(__file__).parents[3] / "shared" / "data"))

# rows, features, share of the most frequent class: the last two from the data's descriptions
EXPECTED = {
    "acs_employment": (277_677, {}),
    "adult": (45_222, {0: 45_222 - 11_208}),
    "credit_card": (30_000, {1: 6_636}),
    "german": (1_000, {1: 700}),
    "heart": (253_680, {1: 23_893}),
    "nursery": (12_960, {"not_recom": 4_320, "recommend": 2, "very_recom": 328}),
    "parkinsons": (5_875, {1: 2_934}),
    "student": (649, {}),
}

if FOLDER.is_dir():

    @pytest.mark.parametrize("name", EXPECTED)
    def test_rows_and_schema_agree(name):
        found = LOADERS[name](FOLDER)
        rows, counts = EXPECTED[name]
        assert len(found) == rows == len(found.frame) == len(found.sensitive)
        for value, count in counts.items():
            assert (found.y == value).sum() == count
        low, high = found.feature_bounds
        assert found.X.shape == (rows, len(found.feature_names))
        assert (low.astype(np.float32) <= found.X).all()
        assert (high.astype(np.float32) >= found.X).all()
        assert set(found.y.tolist()) == set(found.classes)
        for column, values in found.group_values.items():
            assert set(found.sensitive[column]) == set(values)

    def test_three_classes_of_diabetes():
        found = LOADERS["heart"](FOLDER, label="Diabetes")
        assert [int((found.y == k).sum()) for k in found.classes] == [213_703, 4_631, 35_346]
        assert not any(name.startswith("Diabetes") for name in found.feature_names)

    def test_faces():
        found = LOADERS["utkface"](FOLDER)
        assert [int((found.y == k).sum()) for k in found.classes] == [4_372, 5_406]
        races = [int((found.sensitive["race"] == race).sum()) for race in found.group_values["race"]]
        assert races == [5_265, 405, 1_553, 1_452, 1_103]
        assert found.images([0], size=16).shape == (1, 3, 16, 16)
