"""AIM and MST (OpenDP with Private-PGM): a private synthetic table, written in place of predictions.

Numbers are cut at quantiles of the training rows, **which no budget covers**: this favours the method. The columns are
integers when the mechanism reads them, with all values declared, so delta is only used to convert zCDP.
"""

import numpy as np
import opendp.prelude as dp
import polars as pl
from opendp.mod import OpenDPException
from serve import serve

BINS = 20
dp.enable_features("contrib")


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


def fit(rows, request):
    """Release marginals; the "predictor" writes the synthetic table as an array of floats (rows, columns)."""
    numbers, categories = request["numbers"], request["categories"]
    codes, sizes, edges = {}, {}, {}
    for name, (low, high) in numbers.items():
        values = np.clip(rows[name].to_numpy(dtype=float), low, high)
        inner = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))
        edges[name] = np.unique(np.concatenate([[low], inner, [high]]))
        sizes[name] = len(edges[name]) - 1
        codes[name] = np.clip(np.searchsorted(edges[name], values, side="right") - 1, 0, sizes[name] - 1)
        middles = [values[codes[name] == place] for place in range(sizes[name])]
        edges[name] = np.array([each.mean() if len(each) else 0.0 for each in middles])
    for name, values in categories.items():
        place = {str(value): code for code, value in enumerate(values)}
        codes[name], sizes[name] = rows[name].astype(str).map(place).to_numpy(), len(values)
    for name, size in (("y", request["classes"]), ("group", request["groups"])):
        if size:
            codes[name], sizes[name] = rows[name].to_numpy(), size
    short = {name: f"c{place}" for place, name in enumerate(codes)}
    frame = pl.DataFrame({short[name]: pl.Series(code, dtype=pl.Int64) for name, code in codes.items()})
    rho = rho_for(request["epsilon"], request["delta"])
    settings = dict(request["settings"])
    algorithm = {"aim": dp.mbi.AIM, "mst": dp.mbi.MST}[settings.pop("mechanism")](**settings)
    keys = {short[name]: list(range(size)) for name, size in sizes.items()}
    made = released(frame, keys, algorithm, rho).synthesize(rows=len(rows))

    def table(_):
        columns = []
        for name in codes:
            code = made[short[name]].fill_null(0).to_numpy()
            columns.append(edges[name][code] if name in edges else code)
        return np.column_stack(columns)

    return table, request["epsilon"]


serve(fit)
