"""The linear engine: what it accepts, what it refuses, how it predicts, what it costs."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse

from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.features import Features
from ratewise.linear import LinearEngine, LinearModel
from ratewise.plan import Plan
from ratewise.randomness import RandomStreams
from ratewise.scaling import Scaling
from ratewise.training import Training

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
LABELS = (X[:, 0] > 0).astype(int)


def plan(**changes):
    settings = {
        "n_rows": 40,
        "sampling_rate": 0.5,
        "steps": 30,
        "clip": 1.0,
        "gradient_noise": 0.5,
        **changes,
    }
    return Plan(**settings)


class TestInput:
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("store", [np.asarray, scipy.sparse.csr_array, lambda X: X.view(np.memmap)])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_nan_and_infinity_are_refused_without_naming_a_row(self, bad, store, dtype):
        wrong = X.astype(dtype)
        wrong[17, 1] = bad
        with pytest.raises(InvalidInput, match="finite") as refusal:
            LinearEngine(plan(), store(wrong), LABELS, 2)
        assert "17" not in str(refusal.value)

    def test_other_types_are_refused(self):
        with pytest.raises(InvalidType, match="float32 or float64"):
            LinearEngine(plan(), X.astype(int), LABELS, 2)

    @pytest.mark.parametrize(
        ("labels", "match"),
        [
            (LABELS[:5], "labels"),
            (LABELS.astype(float), "labels"),
            (LABELS + 1, "between 0 and 1"),
            (LABELS - 1, "labels"),
        ],
    )
    def test_labels_must_be_codes(self, labels, match):
        with pytest.raises(InvalidInput, match=match):
            LinearEngine(plan(), X, labels, 2)

    def test_cells_must_be_codes(self):
        with pytest.raises(InvalidInput, match="cells"):
            LinearEngine(plan(histogram_noise=1.0), X, LABELS, 2, cells=LABELS + 1, n_cells=2)
        with pytest.raises(InvalidInput, match="belong together"):
            LinearEngine(plan(histogram_noise=1.0), X, LABELS, 2, cells=LABELS)

    def test_rows_must_be_those_of_the_plan(self):
        with pytest.raises(InvalidInput, match="40 rows"):
            LinearEngine(plan(n_rows=41), X, LABELS, 2)

    def test_one_dimension_is_refused(self):
        with pytest.raises(InvalidInput, match="two dimensions"):
            LinearEngine(plan(), X[:, 0], LABELS, 2)

    def test_one_class_is_refused(self):
        with pytest.raises(InvalidInput, match="n_classes"):
            LinearEngine(plan(), X, np.zeros(40, dtype=int), 1)

    def test_rows_are_not_changed(self):
        before = X.copy()
        scaling = Scaling(-np.ones(3), np.ones(3))
        engine = LinearEngine(plan(row_norm=0.5), X, LABELS, 2, scaling=scaling)
        engine.sums(np.arange(40), np.ones(4), None)
        engine.model.scores(X, np.ones(4))
        np.testing.assert_array_equal(X, before)
        sparse = scipy.sparse.csr_array(X)
        scaling = Scaling(-np.ones(3), np.ones(3), "zero")
        LinearEngine(plan(), sparse, LABELS, 2, scaling=scaling).sums(np.arange(40), np.ones(4), None)
        np.testing.assert_array_equal(sparse.toarray(), before)


class TestScaling:
    @pytest.mark.parametrize(
        ("lower", "upper"), [([0.0], [1.0, 2.0]), ([2.0], [1.0]), ([np.nan], [1.0]), ([0.0], [np.inf])]
    )
    def test_bounds_must_make_sense(self, lower, upper):
        with pytest.raises(InvalidInput):
            Scaling(np.array(lower), np.array(upper))

    def test_origin_must_be_known(self):
        with pytest.raises(InvalidInput, match="origin"):
            Scaling(np.zeros(1), np.ones(1), "middle")

    def test_number_of_features_must_fit(self):
        with pytest.raises(InvalidInput, match="3"):
            Features(X, scaling=Scaling(np.zeros(2), np.ones(2)))

    def test_sparse_features_cannot_be_shifted(self):
        with pytest.raises(UnsupportedCombination, match="origin='zero'"):
            Features(scipy.sparse.csr_array(X), scaling=Scaling(-np.ones(3), np.ones(3)))
        with pytest.raises(UnsupportedCombination, match="include 0"):
            Features(scipy.sparse.csr_array(X), scaling=Scaling(np.ones(3), np.full(3, 2.0), "zero"))

    def test_sparse_and_dense_agree_about_zero(self):
        scaling = Scaling(-np.ones(3), np.full(3, 4.0), "zero")
        model = LinearModel(3, 2, scaling=scaling)
        theta = np.array([1.0, -2.0, 0.5, 0.1])
        np.testing.assert_allclose(model.scores(X, theta), model.scores(scipy.sparse.csr_array(X), theta))
        np.testing.assert_allclose(model.scores(X, theta), np.clip(X, -1, 4) / 4 @ theta[:3] + theta[3])

    def test_bounds_that_nearly_coincide_silence_a_feature(self):
        scaling = Scaling(np.zeros(3), np.array([1e-320, 1.0, 0.0]))
        scores = LinearModel(3, 2, scaling=scaling).scores(X, np.array([1.0, 1.0, 1.0, 0.0]))
        np.testing.assert_allclose(scores, np.clip(X[:, 1], 0, 1))


class TestModel:
    def test_binary(self):
        model, theta = LinearModel(3, 2), np.array([1.0, 0.0, 0.0, 0.0])
        assert model.n_parameters == 4
        np.testing.assert_array_equal(model.predictions(X, theta), LABELS)
        probabilities = model.probabilities(X, theta, temperature=2.0)
        np.testing.assert_allclose(probabilities[:, 1], 1 / (1 + np.exp(-2 * X[:, 0])))
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)

    def test_ties_go_to_the_lower_class(self):
        assert not LinearModel(3, 2).predictions(X, np.zeros(4)).any()
        assert not LinearModel(3, 4).predictions(X, np.zeros(16)).any()

    def test_engine_and_model_agree_on_ties(self):
        for n_classes in (2, 3):
            engine = LinearEngine(plan(histogram_noise=1.0), X, LABELS, n_classes, cells=LABELS, n_cells=2)
            _, counts = engine.sums(np.arange(40), np.zeros(engine.n_parameters), None)
            np.testing.assert_array_equal(counts[:, 0], np.bincount(LABELS))
            assert not counts[:, 1:].any()

    def test_three_classes(self):
        model = LinearModel(3, 3, intercept=False)
        theta = RNG.normal(size=9)
        np.testing.assert_allclose(model.scores(X, theta), X @ theta.reshape(3, 3).T)
        weights, bias = model.coefficients(theta)
        np.testing.assert_array_equal(weights, theta.reshape(3, 3))
        np.testing.assert_array_equal(bias, np.zeros(3))

    def test_row_norm_holds_in_prediction_too(self):
        model = LinearModel(3, 2, row_norm=0.5)
        shrunk = X * np.minimum(1, 0.5 / np.linalg.norm(X, axis=1))[:, None]
        theta = np.array([1.0, 2.0, 3.0, -0.1])
        np.testing.assert_allclose(model.scores(X, theta), shrunk @ theta[:3] - 0.1)

    def test_wrong_number_of_features_is_refused(self):
        with pytest.raises(InvalidInput, match="2 features"):
            LinearModel(3, 2).scores(X[:, :2], np.zeros(4))

    def test_scores_of_no_rows(self):
        assert LinearModel(3, 2).scores(np.empty((0, 3)), np.zeros(4)).shape == (0,)

    def test_rows_of_enormous_length_score_without_warning(self):
        long = np.array([[1e300, -1e300, 1.0]])
        assert LinearModel(3, 2).scores(long, np.array([1.0, 1.0, 2.0, 0.5]))[0] == pytest.approx(
            2.5, abs=2.0
        )
        assert LinearModel(3, 2).scores(long, np.array([1e10, 0.0, 0.0, 0.0]))[0] > 1e100
        probabilities = LinearModel(3, 3).probabilities(
            long, np.array([1e10, 0, 0, 0, 1e10, 0, 0, 0, 0, 0, 0, 0.0])
        )
        np.testing.assert_allclose(probabilities, [[0.5, 0.5, 0.0]])


class TestKeptRows:
    """Rows that are read often are prepared once."""

    SCALING = Scaling(-np.ones(3), np.ones(3), mean=np.full(3, 0.2), deviation=np.array([0.5, 2.0, 1e-3]))

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("largest", [1.0, 1e38])
    @pytest.mark.parametrize("scaling", [SCALING, Scaling(deviation=np.array([1e-300, 1.0, 1.0]))])
    def test_blocks_hold_the_same_numbers(self, dtype, largest, scaling):
        rows = X.astype(dtype)
        rows[3, 0] = largest
        before = rows.copy()
        sizes = {"clip": 1.0, "row_norm": 2.0, "scaling": scaling, "block_rows": 7}
        often, once = Features(rows, reads=100.0, **sizes), Features(rows, **sizes)
        assert often.scaling is None
        assert once.scaling is not None
        for piece in (np.arange(40)[::6], np.array([3]), np.empty(0, dtype=np.intp)):
            kept = often.gather(piece)
            for found, expected in zip(kept, once.gather(piece), strict=True):
                np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(rows, before)

    def test_only_small_tables_that_are_read_often_are_kept(self, monkeypatch):
        def kept(matrix, scaling=self.SCALING, reads=100.0):
            features = Features(matrix, scaling=scaling, reads=reads)
            return features.matrix is not matrix and features.scaling is None

        assert kept(X)
        assert kept(X.astype(np.float32), scaling=None)
        assert not kept(X, scaling=None)  # nothing to prepare
        assert not kept(X, reads=3.9)
        assert not kept(X.view(np.memmap))
        monkeypatch.setattr("ratewise.features._KEPT_BYTES", X.nbytes - 1)
        assert not kept(X)


class TestCost:
    def test_blocks_do_not_change_the_sums(self):
        rng = np.random.default_rng(1)
        wide = rng.normal(size=(40, 3)).astype(np.float32)
        table = rng.normal(size=(2, 3))
        sums = []
        for block_rows in (None, 1, 7):
            engine = LinearEngine(
                plan(histogram_noise=1.0, block_rows=block_rows), wide, LABELS, 3, cells=LABELS, n_cells=2
            )
            sums.append(engine.sums(np.arange(40), np.arange(12.0) / 10, table))
        for gradient, counts in sums[1:]:
            np.testing.assert_allclose(gradient, sums[0][0], rtol=1e-5)
            np.testing.assert_array_equal(counts, sums[0][1])

    @pytest.mark.parametrize("n_cells", [1, 42, 43, 63, 64, 65, 127, 128, 129, 20_000])
    @pytest.mark.parametrize("n_classes", [2, 3, 128])
    @pytest.mark.parametrize("store", [np.asarray, lambda rows: rows.view(np.memmap)])
    def test_few_bytes_hold_every_cell(self, n_cells, n_classes, store):
        """Around the limits of 8 and 16 bits: the last cell and class are where they belong."""
        cells = np.arange(40) % 3 * (n_cells - 1) // 2
        labels = np.arange(40) % 2 * (n_classes - 1)
        engine = LinearEngine(
            plan(histogram_noise=1.0), store(X), labels, n_classes, cells=cells, n_cells=n_cells
        )
        theta = np.zeros(engine.n_parameters)
        theta[-1] = 1.0  # the last class is predicted
        table = np.zeros((n_cells, n_classes))
        table[-1, -1] = 2.0
        gradient, counts = engine.sums(np.arange(40), theta, table)
        np.testing.assert_array_equal(counts[:, -1], np.bincount(cells, minlength=n_cells))
        assert counts.sum() == 40
        plain, _ = engine.sums(np.flatnonzero(cells < n_cells - 1), theta, table)
        free, _ = engine.sums(np.flatnonzero(cells < n_cells - 1), theta, None)
        if n_cells > 1:
            np.testing.assert_allclose(plain, free)
        assert not np.allclose(gradient, engine.sums(np.arange(40), theta, None)[0])

    @pytest.mark.parametrize("scaled", [False, True])
    def test_memory_mapped_rows_are_never_held_whole(self, tmp_path, scaled):
        n_rows, n_features = 200_000, 40
        stored = np.memmap(tmp_path / "rows", dtype=np.float32, mode="w+", shape=(n_rows, n_features))
        stored[:] = 0.5
        labels = np.zeros(n_rows, dtype=np.int8)
        labels[::2] = 1
        scaling = Scaling(np.zeros(n_features), np.ones(n_features)) if scaled else None
        tracemalloc.start()
        settings = plan(n_rows=n_rows, sampling_rate=0.1, steps=3)
        training = Training(settings, LinearEngine(settings, np.asarray(stored), labels, 2, scaling=scaling))
        for _ in training.run(RandomStreams.from_seed(0)):
            pass
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < stored.nbytes / 2
