"""Run by the interpreter of the environment of AIM and MST: models of random graphs, beside sums over all cells."""

import itertools
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "peers" / "processes"))

import graphical
from mbi import Domain, LinearMeasurement, junction_tree


def summed(table, names, kept):
    """Return a sum of a table over all columns, with the columns that are kept in their order."""
    table = table.sum(axis=tuple(axis for axis, name in enumerate(names) if name not in kept))
    return table.transpose(np.argsort(np.argsort([names.index(name) for name in kept])))


rng = np.random.default_rng(0)
for trial in range(15):  # graphs of one and of several parts, trees and others
    names = [f"c{place}" for place in range(rng.integers(2, 7))]
    domain = Domain.fromdict({name: int(rng.integers(2, 5)) for name in names})
    density = rng.choice([0.1, 0.3, 0.6])
    cliques = [*zip(names), *(pair for pair in itertools.permutations(names, 2) if rng.random() < density / 2)]
    cliques = list({frozenset(clique): clique for clique in cliques}.values())
    assert np.isclose(graphical.model_size(domain, cliques), junction_tree.hypothetical_model_size(domain, cliques))
    potentials = {clique: rng.normal(0.0, 2.0, [domain[name] for name in clique]) for clique in cliques}
    table = sum(
        values.transpose(np.argsort([names.index(name) for name in clique])).reshape(
            [domain[name] if name in clique else 1 for name in names]
        )
        for clique, values in potentials.items()
    )
    table = 1000.0 * np.exp(table) / np.exp(table).sum()
    tree = graphical.Tree(domain, cliques)
    oriented = {clique: tree.oriented(values, clique) for clique, values in potentials.items()}
    model = graphical.Model.of(tree, domain, oriented, 1000.0)
    for kept in (*zip(names), *itertools.permutations(names, 2)):
        assert np.allclose(np.asarray(model.project(kept).values), summed(table, names, kept))
    if trial < 5:
        rows = graphical.sampled(model, 100_000, rng)
        for kept in itertools.combinations(names, 2):
            counts = np.zeros([domain[name] for name in kept])
            np.add.at(counts, (rows[kept[0]], rows[kept[1]]), 0.01)
            assert np.abs(counts - summed(table, names, kept)).max() < 10.0
    measured = [
        LinearMeasurement(summed(table, names, clique).ravel(), clique, stddev=1.0)
        for clique in model.potentials.cliques
    ]
    found = graphical.estimator(500)(domain, measured)
    for clique in cliques:  # what is fitted is what the model projects to, and what was measured
        fitted = np.asarray(found.marginals.arrays[clique].values)
        assert np.allclose(fitted, np.asarray(found.project(clique).values))
        assert np.abs(fitted - summed(table, names, clique)).max() < 20.0
