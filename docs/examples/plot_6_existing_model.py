"""
Decision rules for an existing model
====================================

A model from elsewhere gives scores. ``postprocess`` chooses thresholds under a constraint from private rows.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

from ratewise import demographic_parity, postprocess
from ratewise.datasets import census_like

public, people, others = (census_like(n, random_state=seed) for seed, n in enumerate((5_000, 20_000, 20_000)))
scale = public.feature_bounds[1]
scorer = LogisticRegression(max_iter=1000).fit(public.X / scale, public.y)


def scores(rows):
    """Return the probability of a high income by the existing model."""
    return scorer.predict_proba(rows.X / scale)[:, 1]


def gap(predicted):
    """Return the difference of positive rates between men and women."""
    women = others.sensitive["sex"] == "Female"
    return abs(predicted[women].mean() - predicted[~women].mean())


found = {"one threshold of .5": (scores(others) > 0.5).astype(int)}
for epsilon in (0.1, 1.0):
    rule = postprocess(
        scores(people),
        people.y,
        demographic_parity("sex", max_gap=0.05),
        sensitive_features=people.sensitive,
        classes=[0, 1],
        group_values={"sex": ["Female", "Male"]},
        epsilon=epsilon,
        delta=1e-5,
        group_aware=True,
    )
    found[f"rule, epsilon {epsilon}"] = rule.predict(scores(others), others.sensitive)
    print(rule.certificate_.summary)

figure, axes = plt.subplots(2, 1, figsize=(6, 4), layout="constrained")
axes[0].barh(list(found), [gap(each) for each in found.values()], color="#2166ac")
axes[0].axvline(0.05, color="black", linewidth=1)
axes[0].locator_params(axis="x", nbins=5)
axes[0].set(xlabel="gap on unseen people (line: bound)")
axes[1].barh(list(found), [np.mean(each == others.y) for each in found.values()], color="#2166ac")
axes[1].set(xlabel="accuracy", xlim=(0.7, 0.9), xticks=(0.7, 0.8, 0.9))
