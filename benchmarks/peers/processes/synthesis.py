"""AIM and MST (OpenDP with Private-PGM): a private synthetic table, written in place of predictions.

OpenDP selects and measures marginals; the model is fitted and sampled by `graphical`. Numbers are cut at values that many
rows have and at quantiles of the other training rows, **which no budget covers**: this favours the methods. The columns are
integers when the mechanism reads them, with all values declared, so delta is only used to convert zCDP.
"""

import graphical
import numpy as np
import opendp.extras.mbi._mst as mst
import opendp.prelude as dp
import polars as pl
from mbi import junction_tree
from opendp._internal import _make_transformation
from opendp.mod import OpenDPException
from serve import serve

BINS = 20
ROUND_ITERATIONS, FINAL_ITERATIONS = 100, 1000  # mbi takes 1000
dp.enable_features("contrib")
junction_tree.hypothetical_model_size = graphical.model_size


def mst_scores(input_domain, input_metric, queries, model):
    """Return distances of marginals from the model: sums of absolute differences, as in the paper on MST.

    OpenDP 0.16 takes the norm of a matrix, its largest column sum. The sensitivity is that of one count in both.
    """

    def scores(exact):
        return [float(np.abs(exact[q] - np.asarray(model.project(q).values)).sum()) for q in queries]

    return _make_transformation(
        input_domain,
        input_metric,
        dp.vector_domain(dp.atom_domain(T="f64", nan=False)),
        dp.linf_distance(T="f64", monotonic=False),
        function=scores,
        stability_map=lambda distances: max(distances.values()),
    )


mst._make_mst_scores = mst_scores
# OpenDP lowers a share of the budget by one unit in the last place, which is less than the rounding of the sum of all shares
mst.prior = lambda share: share * (1.0 - 1e-12)


def rho_for(epsilon, delta):
    """Return the largest rho of zCDP that implies (epsilon, delta)."""
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)

    def fits(rho):
        gaussian = dp.m.make_gaussian(*space, scale=(0.5 / rho) ** 0.5)
        return dp.c.make_zCDP_to_approxDP(gaussian).map(1.0).epsilon(delta) <= epsilon

    low, high = 1e-6, 100.0
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def released(frame, keys, algorithm, rho):
    """Return the contingency table. OpenDP's own split of rho may exceed rho by its rounding: then a little less is asked."""
    for attempt in range(8):
        share = rho * (1.0 - 1e-3 * attempt)
        context = dp.Context.compositor(
            data=frame.lazy(), privacy_unit=dp.unit_of(contributions=1), privacy_loss=dp.loss_of(rho=share)
        )
        try:
            return context.query(rho=share).contingency_table(keys=keys, algorithm=algorithm).release()
        except OpenDPException as problem:
            if "insufficient budget" not in str(problem):
                raise
    raise RuntimeError("OpenDP refuses its own split of the budget")


def cut(values, low, high):
    """Return the bins of a column as the bin of each row and the mean of each bin."""
    distinct, counts = np.unique(values, return_counts=True)
    common = distinct[counts >= len(values) / BINS]
    others = values[~np.isin(values, common)]
    bins = np.linspace(0, 1, max(2, BINS - len(common)) + 1)[1:-1]
    inner = np.quantile(others, bins, method="lower") if len(others) else []
    edges = np.unique([*inner, *common, *np.nextafter(common, np.inf)])
    edges = edges[(edges > low) & (edges < high)]
    used, code = np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)
    return code, np.array([values[code == place].mean() for place in range(len(used))])


def fit(rows, request):
    """Release marginals; the "predictor" writes the synthetic table as an array of floats (rows, columns)."""
    codes, sizes, middles = {}, {}, {}
    for name, (low, high) in request["numbers"].items():
        values = np.clip(rows[name].to_numpy(dtype=float), low, high)
        codes[name], middles[name] = cut(values, low, high)
        sizes[name] = len(middles[name])
    for name, values in request["categories"].items():
        place = {str(value): code for code, value in enumerate(values)}
        codes[name], sizes[name] = rows[name].astype(str).map(place).to_numpy(), len(values)
    for name, size in (("y", request["classes"]), ("group", request["groups"])):
        if size:
            codes[name], sizes[name] = rows[name].to_numpy(), size
    short = {name: f"c{place}" for place, name in enumerate(codes)}
    frame = pl.DataFrame({short[name]: pl.Series(code, dtype=pl.Int64) for name, code in codes.items()})
    settings = dict(request["settings"])
    mechanism = {"aim": dp.mbi.AIM, "mst": dp.mbi.MST}[settings.pop("mechanism")]
    algorithm = mechanism(estimator=graphical.estimator(ROUND_ITERATIONS), **settings)
    keys = {short[name]: list(range(size)) for name, size in sizes.items()}
    found = released(frame, keys, algorithm, rho_for(request["epsilon"], request["delta"]))
    estimate = graphical.estimator(FINAL_ITERATIONS)
    model = estimate(found.model.domain, found.marginals.flatten(), potentials=found.model.potentials)
    drawn = graphical.sampled(model, len(rows), np.random.default_rng(request["seed"]))
    # OpenDP adds the value "missing" to every column: rows that have it are left out
    made = pl.DataFrame({name: found.keys[name].gather(drawn[name]) for name in keys}).drop_nulls()

    def table(_):
        columns = []
        for name in codes:
            code = made[short[name]].to_numpy()
            columns.append(middles[name][code] if name in middles else code)
        return np.column_stack(columns)

    return table, request["epsilon"]


serve(fit)
