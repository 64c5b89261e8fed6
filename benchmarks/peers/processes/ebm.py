"""Explainable boosting machines (interpret-core): private with a budget, else not."""

from interpret.glassbox import ExplainableBoostingClassifier
from interpret.privacy import DPExplainableBoostingClassifier
from serve import serve


def fit(rows, request):
    """Fit on raw columns with the public bounds; bins are in the model's budget."""
    numbers, categories = request["numbers"], list(request["categories"])
    columns = [*numbers, *categories]

    def features(table):
        return table[columns].astype(dict.fromkeys(categories, str)).astype(dict.fromkeys(numbers, float))

    options = {
        "feature_types": ["continuous"] * len(numbers) + ["nominal"] * len(categories),
        "n_jobs": 1,
        "random_state": request["seed"],
        **request["settings"],
    }
    if request["epsilon"] is None:
        model = ExplainableBoostingClassifier(interactions=0, **options)
    else:
        model = DPExplainableBoostingClassifier(
            epsilon=request["epsilon"],
            delta=request["delta"],
            composition="gdp",
            privacy_bounds={place: tuple(bounds) for place, bounds in enumerate(numbers.values())},
            **options | {"random_state": None},  # it draws its noise from a secure source
        )
    model.fit(features(rows), rows["y"])
    return lambda table: model.predict_proba(features(table)), request["epsilon"]


serve(fit)
