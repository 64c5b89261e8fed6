"""scikit-learn's own checks, all of them, with and without privacy."""

import pytest
from sklearn.utils.estimator_checks import check_estimator

from ratewise import RateConstrainedClassifier

# scikit-learn's toy data come without declared classes and are few, which is said in warnings that its checks
# do not expect
pytestmark = [
    pytest.mark.filterwarnings("ignore::ratewise.PrivacyLeakWarning"),
    pytest.mark.filterwarnings("ignore:.*rows are too few:ratewise.RatewiseWarning"),
]

# skipped by scikit-learn itself unless SCIPY_ARRAY_API is set, for every estimator
SKIPPED = {"check_array_api_input"}


@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(RateConstrainedClassifier(), id="default"),
        pytest.param(RateConstrainedClassifier(epsilon=None), id="not private"),
        pytest.param(
            RateConstrainedClassifier(histogram="laplace", neighbours="replace_one", steps=20, l2=0.01),
            id="replace-one",
        ),
        pytest.param(
            RateConstrainedClassifier(
                epsilon=None, fit_intercept=False, averaging="polynomial", row_norm=None
            ),
            id="no intercept",
        ),
    ],
)
def test_scikit_learns_checks_pass_whole(estimator):
    results = check_estimator(estimator, on_fail="raise", on_skip=None)
    assert len(results) > 40
    assert {result["check_name"] for result in results if result["status"] != "passed"} <= SKIPPED
    assert not any(result["expected_to_fail"] for result in results)
