"""Private-PGM's estimation, projection and sampling in NumPy, in place of those of mbi 1.1.

The results are those of the same definitions. mbi compiles each of them for every model, which takes seconds per marginal and
minutes per round of AIM. Its `synthetic_data` also fills the rows of all columns in one order, which makes columns with a
common neighbour depend on each other; rows are drawn independently here. Everything is computed from released values.
"""

import numpy as np
from mbi import CliqueVector, Factor, MarkovRandomField, junction_tree, marginal_oracles
from mbi.estimation import minimum_variance_unbiased_total


class Tree:
    """A junction tree of cliques, with sums and products of tables over the columns of its nodes."""

    def __init__(self, domain, cliques):
        tree, order = junction_tree.make_junction_tree(domain, [tuple(clique) for clique in cliques])
        self.domain, self.order = domain, order
        place = {name: number for number, name in enumerate(domain.attributes)}
        self.nodes = [tuple(sorted(node, key=place.get)) for node in tree.nodes]
        where = dict(zip(tree.nodes, range(len(self.nodes)), strict=True))
        self.home = {c: min(self._holding(c), key=lambda n: domain.size(self.nodes[n])) for c in cliques}
        self.parents, seen, stack = [], {0}, [next(iter(tree.nodes))]
        while stack:  # pairs (node, parent), parents first
            node = stack.pop()
            for other in tree.neighbors(node):
                if where[other] not in seen:
                    seen.add(where[other])
                    self.parents.append((where[other], where[node]))
                    stack.append(other)

    def _holding(self, clique):
        return [number for number, node in enumerate(self.nodes) if set(clique) <= set(node)]

    def _spread(self, table, attributes, node):
        """Return a table over some columns of a node in the shape of that node."""
        order = sorted(range(len(attributes)), key=lambda axis: node.index(attributes[axis]))
        sizes = [self.domain[name] if name in attributes else 1 for name in node]
        return table.transpose(order).reshape(sizes)

    def _summed(self, table, node, attributes):
        """Return a table of a node, summed to some of its columns, in their order."""
        kept = [name for name in node if name in attributes]
        table = table.sum(axis=tuple(axis for axis, name in enumerate(node) if name not in attributes))
        return table.transpose([kept.index(name) for name in attributes])

    def marginals(self, potentials, total):
        """Return the marginal of each clique of the model exp(sum of potentials)."""
        logs = [np.zeros([self.domain[name] for name in node]) for node in self.nodes]
        for clique, values in potentials.items():
            home = self.home[clique]
            logs[home] += self._spread(values, clique, self.nodes[home])
        beliefs = [np.exp(log - log.max()) for log in logs]
        sent = {}
        for child, parent in reversed(self.parents):
            shared = tuple(name for name in self.nodes[child] if name in self.nodes[parent])
            message = self._summed(beliefs[child], self.nodes[child], shared)
            message /= message.max()
            sent[child] = shared, message
            beliefs[parent] *= self._spread(message, shared, self.nodes[parent])
        for child, parent in self.parents:
            shared, message = sent[child]
            answer = self._summed(beliefs[parent], self.nodes[parent], shared)
            ratio = np.divide(answer, message, out=np.zeros_like(message), where=message > 0)
            beliefs[child] *= self._spread(ratio / ratio.max(), shared, self.nodes[child])
        beliefs = [belief * (total / belief.sum()) for belief in beliefs]
        return {c: self._summed(beliefs[n], self.nodes[n], c) for c, n in self.home.items()}


def estimator(iterations):
    """Return an estimator for OpenDP: mirror descent on the weighted squares of the measurements."""

    def estimate(domain, measurements, *, potentials=None):
        groups = {}
        for each in measurements:
            groups.setdefault(tuple(each.clique), []).append(each)
        cliques = list(groups)
        shapes = {c: [domain[name] for name in c] for c in cliques}
        weights = {c: sum(1.0 / float(m.stddev) ** 2 for m in group) for c, group in groups.items()}
        asked = {  # measurements of one marginal, weighted by their variances
            c: sum(np.asarray(m.noisy_measurement).reshape(shapes[c]) / float(m.stddev) ** 2 for m in group)
            / weights[c]
            for c, group in groups.items()
        }
        total = float(minimum_variance_unbiased_total(measurements))
        tree = Tree(domain, cliques)
        before = {} if potentials is None else {tuple(c): potentials.arrays[c].values for c in potentials.cliques}
        theta = {c: np.asarray(before.get(c, np.zeros(shapes[c])), dtype=float) for c in cliques}

        def loss(found):
            return 0.5 * sum(weights[c] * np.sum((found[c] - asked[c]) ** 2) for c in cliques)

        step, found = 1.0 / (total * max(weights.values())), tree.marginals(theta, total)
        value = loss(found)
        for _ in range(iterations):
            gradient = {c: weights[c] * (found[c] - asked[c]) for c in cliques}
            trial = {c: theta[c] - step * gradient[c] for c in cliques}
            there = tree.marginals(trial, total)
            fall = sum(np.sum(gradient[c] * (found[c] - there[c])) for c in cliques)
            if (lower := loss(there)) <= value - 0.5 * fall:
                theta, found, value, step = trial, there, lower, 1.1 * step
            else:
                step *= 0.5
        tables = [
            CliqueVector(domain, cliques, {c: Factor(domain.project(c), each[c]) for c in cliques})
            for each in (theta, found)
        ]
        return MarkovRandomField(potentials=tables[0], marginals=tables[1], total=total)

    return estimate


def marginal(potentials, clique, total=1.0, mesh=None, evidence=None):  # noqa: ARG001 - mbi's signature
    """Return one marginal of a model by variable elimination, as `mbi.marginal_oracles.variable_elimination` does."""
    domain, clique = potentials.domain, tuple(clique)
    code = {name: number for number, name in enumerate(domain.attributes)}

    def product(tables, attributes):
        parts = [part for names, values in tables for part in (values, [code[name] for name in names])]
        return np.einsum(*parts, [code[name] for name in attributes], optimize=len(tables) > 2)

    tables = []
    for factor in potentials.arrays.values():
        values = np.asarray(factor.values, dtype=float)
        tables.append((tuple(factor.domain.attributes), np.exp(values - values.max())))
    tables += [((name,), np.ones(domain[name])) for name in clique]
    cliques = [names for names, _ in tables] + [clique]
    for name in junction_tree.greedy_order(domain, cliques, elim=domain.invert(clique))[0]:
        touched = [each for each in tables if name in each[0]]
        if touched:
            tables = [each for each in tables if name not in each[0]]
            left = tuple(dict.fromkeys(other for names, _ in touched for other in names if other != name))
            values = product(touched, left)
            tables.append((left, values / values.max()))
    values = product(tables, clique)
    return Factor(domain.project(clique), values * (total / values.sum()))


def sampled(model, rows, rng):
    """Return independent rows of a model: a mapping of columns to codes."""
    tree = Tree(model.domain, [tuple(clique) for clique in model.cliques])
    columns = {}
    for name in reversed(tree.order):
        near = {other for node in tree.nodes if name in node for other in node}
        given = tuple(other for other in columns if other in near)
        table = np.asarray(marginal(model.potentials, (*given, name)).values)
        weights = np.maximum(table[tuple(columns[other] for other in given)], 0.0) if given else table
        ladder = np.cumsum(np.broadcast_to(weights, (rows, table.shape[-1])), axis=1)
        draws = rng.random(rows) * ladder[:, -1]
        columns[name] = np.minimum((draws[:, None] > ladder).sum(axis=1), table.shape[-1] - 1)
    return columns


def install():
    """Use `marginal` wherever mbi projects a model."""
    marginal_oracles.variable_elimination = marginal
