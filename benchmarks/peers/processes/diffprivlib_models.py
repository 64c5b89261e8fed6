"""diffprivlib: logistic regression, naive Bayes or a random forest; pure epsilon."""

import numpy as np
from diffprivlib.models import GaussianNB, LogisticRegression, RandomForestClassifier
from serve import one_hot, serve


def fit(rows, request):
    """Fit on columns within [0, 1] by the public bounds, so that nothing is read off the rows.

    The model "standardised" is the logistic regression on numbers standardised by raw means and deviations, **which no
    budget covers**, and rows cut to norm 4.
    """
    settings = dict(request["settings"])
    kind = settings.pop("model", "logistic")
    X, epsilon, seed = one_hot(rows, request), request["epsilon"], request["seed"]
    count = len(request["numbers"])
    mean, deviation = X.mean(axis=0), np.maximum(X.std(axis=0), 1e-3)
    mean[count:], deviation[count:] = 0.0, 1.0
    if kind == "logistic":
        norm = (len(request["numbers"]) + len(request["categories"])) ** 0.5
        model = LogisticRegression(epsilon=epsilon, data_norm=norm, max_iter=500, random_state=seed, **settings)
    elif kind == "standardised":
        model = LogisticRegression(epsilon=epsilon, data_norm=4.0, max_iter=500, random_state=seed, **settings)
    elif kind == "bayes":
        model = GaussianNB(epsilon=epsilon, bounds=(0.0, 1.0), random_state=seed, **settings)
    else:
        classes = list(range(request["classes"]))
        model = RandomForestClassifier(
            epsilon=epsilon, bounds=(0.0, 1.0), classes=classes, random_state=seed, **settings
        )

    def features(table):
        encoded = one_hot(table, request)
        return (encoded - mean) / deviation if kind == "standardised" else encoded

    model.fit(features(rows), rows["y"])

    def predict(table):
        chances = np.zeros((len(table), request["classes"]))
        chances[:, model.classes_] = model.predict_proba(features(table))
        return chances

    return predict, epsilon


serve(fit)
