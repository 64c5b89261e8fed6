"""The systems of the scoreboard, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers import external, fermi, jagielski, others, ours, tran
from benchmarks.peers.base import Fit, Model

ROWS = "rows"
PURE = "rows (delta 0)"
ATTRIBUTE = "attribute"
NOTHING = "none"

NONE, PARITY, ODDS, MISSES = "none", "demographic_parity", "equalized_odds", "false_negative_rate"
_WEIGHTS = tuple({"weight": weight} for weight in (0.5, 2.0, 8.0))
_AIM = {"mechanism": "aim", "queries": 2, "oneway_split": 0.1}
_MST = {"mechanism": "mst"}
_STEPS = (
    {"steps": 100, "learning_rate": 1.0},
    {"steps": 300, "learning_rate": 1.0, "batch": 4096},
    {"steps": 300, "learning_rate": 1.0, "batch": 8192, "temperature": 1.0},
    {"steps": 200, "learning_rate": 4.0, "batch": 2048, "clip": 1.0, "temperature": 1.0},
)


@dataclass(frozen=True)
class System:
    """A row of the scoreboard.

    Attributes
    ----------
    label : str
        As on the page.
    fit : Fit
    guarantee : str
        What its differential privacy protects.
    constraints : tuple of str
        What it can be asked for.
    settings : tuple of mappings
        Settings that are run. With several, the first split chooses the one of smallest **test** error among those that
        reach the bound on the test rows: tuning in favour of the system, never used for ours. A setting "weight" is
        passed as the weight of a penalty, in place of a bound.
    splits, large : int
        Splits that are run, and splits of the two tables of more than 200,000 rows.
    several_classes : bool
        Whether it takes more than two classes.
    binary_constraints : bool
        Whether its constraints need two classes.
    note : str
    """

    label: str
    fit: Fit
    guarantee: str = ROWS
    constraints: tuple[str, ...] = (NONE,)
    settings: tuple[Mapping[str, Any], ...] = ({},)
    splits: int = 10
    large: int = 10
    several_classes: bool = False
    binary_constraints: bool = False
    note: str = field(default="")

    @property
    def private(self) -> bool:
        """Whether there is a budget at all."""
        return self.guarantee != NOTHING

    def takes(self, table: str, family: str) -> bool:
        """Return whether it can be asked for a family of constraints (or "none") on a table."""
        several = self.several_classes and (family == NONE or not self.binary_constraints)
        return family in self.constraints and (table != "nursery" or several)

    @property
    def weighted(self) -> bool:
        """Whether its knob is a weight, so that one run serves all bounds."""
        return any("weight" in setting for setting in self.settings)


ALL = (NONE, PARITY, ODDS, MISSES)
METHODS: dict[str, System] = {
    "ours": System("ratewise, additive, schema declared", ours.ours, constraints=ALL, several_classes=True),
    "ours_undeclared": System(
        "ratewise, additive, nothing declared", ours.undeclared, constraints=ALL, several_classes=True
    ),
    "ours_linear": System("ratewise, linear", ours.linear, constraints=ALL, several_classes=True),
    "ours_network": System(
        "ratewise, network", ours.network, constraints=(NONE, PARITY), splits=3, large=3, several_classes=True,
        note="one hidden layer of 32 units, schema declared",
    ),
    "raco": System(
        "RaCO-DP (the paper), accounted", ours.paper, constraints=(PARITY, ODDS, MISSES), settings=_STEPS, several_classes=True,
        note="linear, Laplace histogram, soft rates, private standardisation; best of four settings",
    ),
    "fermi": System(
        "DP-FERMI", fermi.full, constraints=(PARITY, ODDS), settings=_WEIGHTS,
        note="the form of the method that protects whole rows; best of three weights",
    ),
    "mitigation": System(
        "Tran et al., mitigation", tran.mitigation, constraints=(PARITY, ODDS), settings=_WEIGHTS,
        note="best of three weights",
    ),
    "pfld": System(
        "Tran et al., PF-LD", tran.pfld, ATTRIBUTE, (PARITY, ODDS),
        tuple({"weight": weight} for weight in (0.02, 0.1, 0.5)), note="best of three dual steps",
    ),
    "jagielski_post": System(
        "Jagielski et al., post-processing", jagielski.postprocess, ATTRIBUTE, (ODDS,),
        note="predictions need the group and are randomised",
    ),
    "jagielski_reductions": System(
        "Jagielski et al., reductions", jagielski.reductions, ATTRIBUTE, (ODDS,), note="predictions are randomised",
    ),
    "dp_sgd": System(
        "DP-SGD", ours.paper, settings=_STEPS, several_classes=True,
        note="logistic regression, constant steps, private standardisation; best of four settings",
    ),
    "dp_ebm": System("DP-EBM, default", external.ebm),
    "dp_ebm_tuned": System(
        "DP-EBM, tuned", external.ebm, settings=tuple({"learning_rate": rate} for rate in (0.2, 0.5)),
        note="best of the learning rates .2 and .5",
    ),
    "dp_ebm_rule": System(
        "DP-EBM, then private post-processing", external.ebm_then_rule, constraints=(PARITY, ODDS, MISSES),
        settings=({"group_aware": True}, {"group_aware": False}),
        note="ratewise.postprocess with a fifth of epsilon; the better of thresholds with and without the group; predictions are randomised",
    ),
    "diffprivlib": System(
        "diffprivlib", external.diffprivlib, PURE,
        settings=tuple({"model": model} for model in ("logistic", "standardised", "bayes", "forest")), several_classes=True,
        note="best of logistic regression, the same with raw standardisation, naive Bayes and random forest",
    ),
    "aim": System(
        "AIM, then XGBoost (Fairlearn)", external.synthetic_then, constraints=(NONE, PARITY, ODDS),
        settings=(_AIM, {**_AIM, "max_depth": 3}), splits=3, large=3, several_classes=True, binary_constraints=True,
        note="OpenDP 0.16 with its default size of models, pairs of columns, a tenth of the budget for single columns (chosen among three settings on split 0 "
        "of Adult with an earlier estimator); best of two depths of XGBoost; up to 20 bins per number, at common values and quantiles of the raw training "
        "rows, not accounted; fitted and sampled by our own code, as that of mbi 1.1 takes minutes per round and makes columns depend on each other",
    ),
    "mst": System(
        "MST, then XGBoost (Fairlearn)", external.synthetic_then, constraints=(NONE, PARITY, ODDS),
        settings=tuple(
            {**_MST, **share, **depth} for share in ({}, {"oneway_split": 0.1}) for depth in ({}, {"max_depth": 3})
        ), splits=3, large=3, several_classes=True, binary_constraints=True,
        note="as AIM; best of half and a tenth of the budget for single columns and of two depths; pairs are chosen by sums of absolute differences, "
        "as in its paper (OpenDP 0.16 takes a matrix norm)",
    ),
    "logistic": System("logistic regression", others.logistic_regression, NOTHING, several_classes=True),
    "xgboost": System("XGBoost", others.boosted_trees, NOTHING, several_classes=True),
    "ebm": System("EBM, no pairs", external.ebm, NOTHING, splits=3, large=3, several_classes=True),
    "fairlearn": System(
        "Fairlearn, logistic regression", others.exponentiated_gradient, NOTHING, (PARITY, ODDS),
        note="predictions are randomised",
    ),
    "fairlearn_xgboost": System(
        "Fairlearn, XGBoost", others.exponentiated_gradient, NOTHING, (PARITY, ODDS), ({"base": "xgboost"},),
        note="predictions are randomised",
    ),
}  # fmt: skip

__all__ = ["METHODS", "Model", "System"]
