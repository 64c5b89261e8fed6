"""Faces: UTKFace (Zhang, Song and Qi 2017) and CelebA (Liu et al. 2015), in their authors' layouts.

Pictures are decoded on demand, by Pillow: ``images(rows, size)`` returns them as an array. Neither set may be
passed on, so neither is fetched.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ratewise import _validate
from ratewise.datasets.files import DataNotFound, find
from ratewise.datasets.tables import codes, pandas

UTKFACE_HOME = "https://susanqq.github.io/UTKFace/"
CELEBA_HOME = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
UTKFACE_PLACES = (
    *("faces/UTKFace", "faces/crop_part1", "faces/utkface_crop_part1.zip"),
    *("utkface/UTKFace", "utkface/crop_part1", "UTKFace"),
)
GENDERS = ("male", "female")
RACES = ("White", "Black", "Asian", "Indian", "other")
AGES = ("0-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "70-79", "80+")
_NAME = re.compile(r"(\d+)_([01])_([0-4])_\d*\.jpg\.chip\.jpg$")


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Pictures of a public data set, decoded on demand; made by the loaders.

    `frame` has one row per picture: its file and what is known of it. `feature_bounds` hold for every entry
    of `images`.
    """

    name: str
    frame: Any
    y: npt.NDArray[Any]
    sensitive: Any
    classes: tuple[Any, ...]
    group_values: dict[str, tuple[Any, ...]]
    read: Callable[[str], bytes]
    feature_bounds: tuple[float, float] = (0.0, 255.0)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"<Images {self.name}: {len(self)} pictures, groups by {', '.join(self.group_values)}>"

    def images(self, rows: Iterable[int] | None = None, size: int = 64) -> npt.NDArray[np.uint8]:
        """Return pictures of the given rows (default: all) as an array (n, 3, size, size) of bytes."""
        side = _validate.count(size=size)
        try:
            from PIL import Image
        except ImportError:
            raise ImportError("pictures need Pillow: pip install pillow") from None
        chosen = list(range(len(self)) if rows is None else rows)
        files = self.frame["file"].to_numpy()
        found = np.empty((len(chosen), 3, side, side), dtype=np.uint8)
        for place, row in enumerate(chosen):
            with Image.open(io.BytesIO(self.read(str(files[row])))) as picture:
                small = picture.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
                found[place] = np.asarray(small).transpose(2, 0, 1)
        return found


def load_utkface(data_home: Any = None, *, label: str = "gender") -> Images:
    """Return UTKFace, as the authors lay it out: files ``age_gender_race_date.jpg.chip.jpg``.

    The whole set or its first part, as a folder or a zip; files whose name lacks a field are left out. Column
    ``content`` tells equal pictures apart from others: split by it, or copies may land on both sides. Of
    "gender", "age" (nine classes of ten years) and "race", one is the label and the others are sensitive
    columns. Places: ``faces/UTKFace/``, ``faces/crop_part1/`` or ``faces/utkface_crop_part1.zip``.
    """
    values = {"gender": GENDERS, "age": AGES, "race": RACES}
    _validate.one_of(tuple(values), label=label)
    names, read = _listing(_found(UTKFACE_PLACES, UTKFACE_HOME, data_home))
    matched = [(name, found) for name in names if (found := _NAME.search(name))]
    parts = np.array([found.groups() for _, found in matched], dtype=int).reshape(-1, 3)
    frame = pandas().DataFrame({"file": [name for name, _ in matched], "age": parts[:, 0]})
    frame["gender"], frame["race"] = np.array(GENDERS)[parts[:, 1]], np.array(RACES)[parts[:, 2]]
    frame["content"] = [hashlib.sha1(read(name)).hexdigest() for name in frame["file"]]  # noqa: S324
    bands = np.array(AGES)[np.minimum(parts[:, 0] // 10, len(AGES) - 1)]
    return _images("utkface", frame, frame.assign(age=bands), label, values, read)


def load_celeba(data_home: Any = None, *, label: str = "Smiling") -> Images:
    """Return CelebA, as the authors lay it out; sensitive "gender" (attribute Male).

    The label is one of the forty attributes. Column ``partition`` of the frame is the authors' split: 0
    training, 1 validation, 2 test. Places: ``celeba/img_align_celeba/``, ``celeba/list_attr_celeba.txt`` and
    ``celeba/list_eval_partition.txt``.
    """
    attributes, split, pictures = (
        _found((f"celeba/{name}",), CELEBA_HOME, data_home)
        for name in ("list_attr_celeba.txt", "list_eval_partition.txt", "img_align_celeba")
    )
    frame = pandas().read_csv(attributes, sep=r"\s+", skiprows=1)
    _validate.one_of(tuple(frame.columns), label=label)
    frame = frame.eq(1).astype(int).rename_axis("file").reset_index()
    parts = pandas().read_csv(split, sep=r"\s+", names=["file", "partition"])
    frame = frame.merge(parts, on="file", validate="one_to_one")
    columns = frame.assign(gender=np.array(GENDERS[::-1])[frame["Male"].to_numpy()])
    values: dict[str, tuple[Any, ...]] = {label: (0, 1), "gender": GENDERS}
    return _images("celeba", frame, columns, label, values, lambda name: (pictures / name).read_bytes())


def _images(
    name: str, frame: Any, columns: Any, label: str, values: dict[str, tuple[Any, ...]], read: Callable[[str], bytes]
) -> Images:
    groups = {column: known for column, known in values.items() if column != label}
    y = np.asarray(values[label])[codes(columns[label], values[label], label)]
    return Images(name, frame, y, columns[list(groups)], values[label], groups, read)


def _found(places: tuple[str, ...], home: str, data_home: Any) -> Path:
    found = find(places, home, data_home)
    if isinstance(found, DataNotFound):
        raise found
    return found


def _listing(place: Path) -> tuple[list[str], Callable[[str], bytes]]:
    """Return the sorted names of the pictures in a folder or zip, and how to read one of them."""
    if place.is_dir():
        return sorted(path.name for path in place.iterdir()), lambda name: (place / name).read_bytes()
    archive = zipfile.ZipFile(place)
    return sorted(archive.namelist()), archive.read
