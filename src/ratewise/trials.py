"""How many trials a private selection makes, and of what: both drawn without a look at the data.

>>> rng = np.random.default_rng(0)
>>> [draw_number(10.0, 1.0, rng) for _ in range(8)]
[10, 3, 1, 1, 16, 24, 9, 13]
>>> Configurations({"steps": [100, 200], "momentum": [0.5, 0.9]}).finite
True
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ratewise import _validate
from ratewise.accounting.selection import stopping_parameter
from ratewise.exceptions import InvalidInput, InvalidType

SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}


def shape_of(trials: Any) -> float:
    """Return the shape of the law of the number of trials, from its name or as a number."""
    if isinstance(trials, str):
        return SHAPES[_validate.one_of(tuple(SHAPES), trials=trials, hint="or a number, the shape")]
    return _validate.non_negative(trials=trials)


def draw_number(mean: float, shape: float, rng: np.random.Generator) -> int:
    """Draw the number of trials: a truncated negative binomial, or Poisson for an infinite shape.

    With stopping parameter g, ``P(R = j + 1) / P(R = j) = (1 - g) (j + shape) / (j + 1)`` from j = 1 on.
    """
    left = float(rng.random())
    if math.isinf(shape):
        number, chance = 0, math.exp(-mean)
    else:
        g = stopping_parameter(mean, shape)
        number = 1
        chance = (1 - g) / -math.log(g) if shape == 0 else shape * (1 - g) / math.expm1(-shape * math.log(g))
    while left >= chance > 0:
        left -= chance
        chance *= mean / (number + 1) if math.isinf(shape) else (1 - g) * (number + shape) / (number + 1)
        number += 1
    return number


class Configurations:
    """What a trial draws from: a list of settings, or a mapping of each parameter to a list or a law.

    Parameters
    ----------
    given : list of mappings, or mapping
        A list: each of its settings is as likely. A mapping: each parameter is drawn by itself, from its
        list, or from its law (anything with ``rvs(random_state=...)``, such as ``scipy.stats.loguniform``).
    """

    def __init__(self, given: Any) -> None:
        if isinstance(given, Mapping):
            self._lists: list[dict[str, Any]] = []
            self._laws = {_name(name): _law(name, values) for name, values in given.items()}
        elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
            self._lists, self._laws = [_setting(item) for item in given], {}
        else:
            raise InvalidType(
                f"configurations must be a list of settings or a mapping, got {type(given).__name__}"
            )
        if not self._lists and not self._laws:
            raise InvalidInput("configurations must hold at least one setting, got none")

    @property
    def finite(self) -> bool:
        """Whether every parameter comes from a list."""
        return all(isinstance(law, list) for law in self._laws.values())

    @property
    def names(self) -> set[str]:
        """Names of all parameters."""
        return {*self._laws, *(name for setting in self._lists for name in setting)}

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """Return one setting."""
        if self._lists:
            return dict(self._lists[int(rng.integers(len(self._lists)))])
        return {name: _drawn(law, rng) for name, law in self._laws.items()}

    def __len__(self) -> int:
        if self._lists:
            return len(self._lists)
        return math.prod(len(law) for law in self._laws.values() if isinstance(law, list))

    def variants(self, of: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield a setting for each combination of the named parameters; others take some value of theirs.

        Raises
        ------
        InvalidInput
            One of the named parameters comes from a law, so that its values cannot be listed.
        """
        seen: set[str] = set()
        for setting in self._lists or self._combinations(of):
            key = repr(sorted((name, repr(value)) for name, value in setting.items() if name in of))
            if key not in seen:
                seen.add(key)
                yield dict(setting)

    def _combinations(self, of: Collection[str]) -> Iterator[dict[str, Any]]:
        for name in of:
            if name in self._laws and not isinstance(self._laws[name], list):
                raise InvalidInput(
                    f"{name} decides what a trial costs and must be given as a list of values, "
                    f"got the law {self._laws[name]!r}"
                )
        rng = np.random.default_rng(0)
        some = {name: [_drawn(law, rng)] for name, law in self._laws.items() if name not in of}
        lists = {**some, **{name: law for name, law in self._laws.items() if name in of}}
        for values in itertools.product(*lists.values()):
            yield dict(zip(lists, values, strict=True))


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidType(f"a parameter's name must be text, got {name!r}")
    return name


def _law(name: Any, values: Any) -> Any:
    if hasattr(values, "rvs"):
        return values
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray) or not len(values):
        raise InvalidType(f"{name} must have a list of values or a law with rvs(), got {values!r}")
    return list(values)


def _setting(item: Any) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise InvalidType(f"a setting must map parameters to values, got {item!r}")
    return {_name(name): value for name, value in item.items()}


def _drawn(law: Any, rng: np.random.Generator) -> Any:
    if isinstance(law, list):
        return law[int(rng.integers(len(law)))]
    found = law.rvs(random_state=np.random.default_rng(int(rng.integers(2**63))))
    return found.item() if isinstance(found, np.generic) else found
