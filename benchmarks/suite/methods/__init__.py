"""The methods of the comparison, by name."""

from __future__ import annotations

from benchmarks.suite.methods import fermi, jagielski, others, ours, tran
from benchmarks.suite.methods.base import ATTRIBUTE, NOTHING, ROW, Method, Model

METHODS: dict[str, Method] = {
    "ours": Method(ours.ours, "ratewise, defaults", ROW, "slack"),
    "raco_100": Method(ours.paper, "RaCO-DP, tuned on test rows, T = 100", ROW, "slack"),
    "raco_1000": Method(ours.paper, "RaCO-DP, tuned on test rows, T = 1000", ROW, "slack"),
    "dp_sgd": Method(ours.unconstrained, "DP-SGD (ours, no limits)", ROW, "none"),
    "fermi": Method(fermi.full, "DP-FERMI, right form, full privacy", ROW, "weight"),
    "fermi_published": Method(fermi.published, "DP-FERMI, form of its curves", ATTRIBUTE, "weight"),
    "mitigation": Method(tran.mitigation, "Tran et al. 2021, mitigation", ROW, "weight"),
    "pfld": Method(tran.pfld, "Tran et al. 2021, PF-LD", ATTRIBUTE, "dual step"),
    "jagielski_post": Method(jagielski.postprocess, "Jagielski 2019, post-processing", ATTRIBUTE, "slack"),
    "jagielski_reductions": Method(jagielski.reductions, "Jagielski 2019, reductions", ATTRIBUTE, "slack"),
    "sgda": Method(ours.not_private, "SGDA, not private", NOTHING, "slack"),
    "sgd": Method(ours.plain, "SGD, not private, no limits", NOTHING, "none"),
    "fairlearn": Method(
        others.exponentiated_gradient, "Fairlearn, not private, randomised", NOTHING, "slack"
    ),
    "xgboost": Method(others.boosted_trees, "XGBoost, not private, no limits", NOTHING, "none"),
}

__all__ = ["METHODS", "Method", "Model"]
