"""Private-PGM's estimation, projection and sampling in NumPy, in place of those of mbi 1.1.

The results are those of the same definitions. mbi compiles each of them for every model, which takes seconds per marginal and
minutes per round of AIM. Its `synthetic_data` also fills the rows of all columns in one order, which makes columns with a
common neighbour depend on each other; rows are drawn independently here. Everything is computed from released values.
"""

import functools
import itertools
import math

import networkx as nx
import numpy as np
from mbi import CliqueVector, Factor, MarkovRandomField, junction_tree
from mbi.estimation import minimum_variance_unbiased_total


class Product:
    """A product of tables over the columns of a node, and its sums to the columns of each: two tables at a time, small ones first.

    `parts` are the columns of each table by key. All tables have their columns in the order of `rank`.
    """

    def __init__(self, sizes, rank, node, parts):
        self.sizes, self.columns = sizes, dict(parts)
        self.merges, left = [], list(parts)
        while len(left) > 1:
            one, other = min(itertools.combinations(left, 2), key=self._union_size)
            both = tuple(sorted({*self.columns[one], *self.columns[other]}, key=rank.get))
            name = len(self.merges), "merged"
            self.columns[name] = both
            self.merges.append((one, other, name))
            left = [each for each in left if each not in (one, other)] + [name]
        self.top, self.node = (left[0] if left else None), node

    def _union_size(self, pair):
        return math.prod(self.sizes[name] for name in {*self.columns[pair[0]], *self.columns[pair[1]]})

    def spread(self, table, columns, onto):
        """Return a table in the shape of one over more columns, with sizes of 1."""
        return table.reshape([self.sizes[name] if name in columns else 1 for name in onto])

    def __call__(self, tables):
        """Return the product of exp(table) over the columns of the node, with a maximum of 1."""
        found = dict(tables)
        for one, other, name in self.merges:
            onto = self.columns[name]
            found[name] = self.spread(found.pop(one), self.columns[one], onto) + self.spread(
                found.pop(other), self.columns[other], onto
            )
        shape = [self.sizes[name] for name in self.node]
        if self.top is None:
            return np.ones(shape)
        total = np.broadcast_to(self.spread(found[self.top], self.columns[self.top], self.node), shape)
        return np.exp(total - total.max())

    def sums(self, table):
        """Return the sums of a table over the columns of the node, by key."""
        if self.top is None:
            return {}
        found = {self.top: summed(table, self.node, self.columns[self.top])}
        for one, other, name in reversed(self.merges):
            whole = found.pop(name)
            for part in (one, other):
                found[part] = summed(whole, self.columns[name], self.columns[part])
        return found


def summed(table, columns, kept):
    """Return the sum of a table over the columns that are not kept; the order stays."""
    runs = [
        (keep, [size for _, size in run])
        for keep, run in itertools.groupby(zip(columns, table.shape, strict=True), key=lambda pair: pair[0] in kept)
    ]
    shape = [size for keep, sizes in runs if keep for size in sizes]
    after = 1
    for keep, sizes in reversed(runs):
        size = math.prod(sizes)
        if keep:
            after *= size
        else:  # faster than a sum over an axis
            table = (np.ones((1, size)) @ table.reshape(-1, size, after))[:, 0]
    return table.reshape(shape)


class Tree:
    """A junction tree of cliques. Its tables have their columns from the smallest to the largest."""

    def __init__(self, domain, cliques):
        tree, self.order = junction_tree.make_junction_tree(domain, cliques)
        # parts of the graph that share no column are independent: they are joined by an empty separator
        tree.add_edges_from(itertools.pairwise(next(iter(part)) for part in list(nx.connected_components(tree))))
        self.sizes = {name: domain[name] for name in domain.attributes}
        self.rank = {name: rank for rank, name in enumerate(sorted(self.sizes, key=self.sizes.get))}
        renamed = {node: self.sorted(node) for node in tree.nodes}
        self.links = {renamed[node]: [renamed[other] for other in tree.neighbors(node)] for node in tree.nodes}
        self.nodes = list(self.links)
        self.home = {clique: self.holding(clique) for clique in cliques}
        root, *_ = self.nodes
        self.parents, stack = {root: None}, [root]  # parents first
        while stack:
            node = stack.pop()
            for other in self.links[node]:
                if other not in self.parents:
                    self.parents[other] = node
                    stack.append(other)
        parts = {node: {} for node in self.nodes}
        for clique, node in self.home.items():
            parts[node][clique] = self.sorted(clique)
        for node, parent in self.parents.items():
            if parent is not None:
                parts[parent]["from", node] = self.shared(node, parent)
        self.products = {node: Product(self.sizes, self.rank, node, parts[node]) for node in self.nodes}

    def sorted(self, names):
        """Return names of columns in the order of tables."""
        return tuple(sorted(names, key=self.rank.get))

    def shared(self, node, other):
        """Return the columns of both nodes."""
        return tuple(name for name in node if name in other)

    def holding(self, names):
        """Return the smallest node that has all these columns, or None."""
        nodes = [node for node in self.nodes if set(names) <= set(node)]
        return min(nodes, key=lambda node: math.prod(self.sizes[name] for name in node), default=None)

    def oriented(self, table, names):
        """Return a table over columns in some order in the order of tables."""
        return table.transpose([names.index(name) for name in self.sorted(names)])

    def marginals(self, potentials):
        """Return the marginal of each clique, and of each node, of the model exp(sum of potentials), with sums of 1."""
        tables = {node: {} for node in self.nodes}
        for clique, values in potentials.items():
            tables[self.home[clique]][clique] = values
        beliefs, sent, answers, found = {}, {}, {}, {}
        for node, parent in reversed(self.parents.items()):
            beliefs[node] = self.products[node](tables[node])
            if parent is not None:
                sent[node] = summed(beliefs[node], node, self.shared(node, parent))
                with np.errstate(divide="ignore"):
                    tables[parent]["from", node] = np.log(sent[node])
        for node, parent in self.parents.items():
            if parent is None:
                beliefs[node] /= beliefs[node].sum()
            else:
                ratio = np.divide(answers[node], sent[node], out=np.zeros_like(sent[node]), where=sent[node] > 0)
                beliefs[node] *= self.products[node].spread(ratio, self.shared(node, parent), node)
            for key, table in self.products[node].sums(beliefs[node]).items():
                if key in self.home:
                    found[key] = table
                else:
                    answers[key[1]] = table
        return found, beliefs


class Model(MarkovRandomField):
    """A fitted model with projections by its junction tree: to columns of one node, and to pairs of columns."""

    @classmethod
    def of(cls, tree, domain, potentials, total):
        """Return the model of potentials."""
        found, beliefs = tree.marginals(potentials)
        tables = [
            CliqueVector(domain, list(potentials), {c: cls._factor(tree, domain, v, c) for c, v in each.items()})
            for each in (potentials, {clique: total * table for clique, table in found.items()})
        ]
        model = cls(potentials=tables[0], marginals=tables[1], total=total)
        for name, value in (("tree", tree), ("beliefs", beliefs), ("pairs", {})):
            object.__setattr__(model, name, value)
        return model

    @staticmethod
    def _factor(tree, domain, table, names):
        order = tree.sorted(names)
        return Factor(domain.project(names), table.transpose([order.index(name) for name in names]))

    def project(self, attrs):
        """Return the marginal of some columns."""
        names = (attrs,) if isinstance(attrs, str) else tuple(attrs)
        node = self.tree.holding(names)
        if node is not None:
            table = summed(self.beliefs[node], node, names)
        else:
            first, second = self.tree.sorted(names)
            if first not in self.pairs:
                self.pairs[first] = dict(self._pairs(first, self.tree.holding((first,))))
            table = self.pairs[first][second]
        return self._factor(self.tree, self.domain, self.total * table, names)

    def _pairs(self, first, node, before=None, carried=None):
        """Yield the columns that share no node with a column, each with the joint table of both.

        `carried` is the joint table of the column and of those that `node` shares with the node `before`, which separate them.
        """
        tree = self.tree

        def joint(names):
            if first in node:
                columns = tree.sorted({first, *names})
                return np.moveaxis(summed(self.beliefs[node], node, columns), columns.index(first), 0)
            given = tree.shared(node, before)
            columns = tree.sorted({*given, *names})
            table = summed(self.beliefs[node], node, columns)
            below = summed(table, columns, given)
            weights = np.divide(carried, below, out=np.zeros_like(carried), where=below > 0)
            labels = [[len(tree.rank), *map(tree.rank.get, each)] for each in (given, columns, names)]
            return np.einsum(weights, labels[0], table, labels[1][1:], labels[2])

        if first not in node:
            for name in set(node).difference(before):
                table = joint((name,))
                yield name, table if tree.rank[first] < tree.rank[name] else table.T
        for other in tree.links[node]:
            if other != before:
                shared = tree.shared(node, other)
                yield from self._pairs(first, other, node, None if first in shared else joint(shared))


def estimator(iterations):
    """Return an estimator for OpenDP: mirror descent on the weighted squares of the measurements."""

    def estimate(domain, measurements, *, potentials=None):
        groups = {}
        for each in measurements:
            groups.setdefault(tuple(each.clique), []).append(each)
        tree = Tree(domain, list(groups))
        weights = {c: sum(1.0 / float(m.stddev) ** 2 for m in group) for c, group in groups.items()}
        asked = {}  # measurements of one marginal, weighted by their variances
        for c, group in groups.items():
            mean = sum(np.asarray(m.noisy_measurement) / float(m.stddev) ** 2 for m in group) / weights[c]
            asked[c] = tree.oriented(mean.reshape([domain[name] for name in c]), c)
        total = float(minimum_variance_unbiased_total(measurements))
        before = {} if potentials is None else {tuple(c): potentials.arrays[c].values for c in potentials.cliques}
        theta = {
            c: tree.oriented(np.asarray(before[c], dtype=float), c) if c in before else np.zeros(table.shape)
            for c, table in asked.items()
        }

        def fitted(theta):
            found = tree.marginals(theta)[0]
            apart = {c: total * found[c] - asked[c] for c in asked}
            return apart, 0.5 * sum(weights[c] * np.sum(table**2) for c, table in apart.items())

        (apart, value), growth = fitted(theta), 2.0
        step = 1.0 / (total * max(weights.values()))
        for _ in range(iterations):
            trial = {c: theta[c] - step * weights[c] * apart[c] for c in theta}
            there, lower = fitted(trial)
            fall = sum(weights[c] * np.sum(apart[c] * (apart[c] - there[c])) for c in theta)
            if lower <= value - 0.5 * fall:
                theta, apart, value, step = trial, there, lower, growth * step
            else:
                step, growth = 0.5 * step, 1.1
        return Model.of(tree, domain, theta, total)

    return estimate


def model_size(domain, cliques):
    """Return what `mbi.junction_tree.hypothetical_model_size` returns (the MB of a junction tree) in a tenth of its time."""
    near = {name: {name} for name in domain.attributes}
    for clique in cliques:
        for name in clique:
            near[name].update(clique)
    size = functools.cache(lambda names: math.prod(domain[name] for name in names))
    pairs = {frozenset((name, other)) for name, each in near.items() for other in each if other != name}
    nodes, left = [], dict.fromkeys(near)
    if len(pairs) == len(near) - 1 and nx.is_tree(nx.Graph({name: near[name] - {name} for name in near})):
        nodes, left = list(pairs), {}
    while left:
        name = min(left, key=lambda each: size(frozenset(near[each])))
        del left[name]
        node = frozenset(near[name])
        if not any(node <= other for other in nodes):
            nodes.append(node)
        for other in node - {name}:
            near[other] = (near[other] | node) - {name}
    return sum(map(size, nodes)) * 8 / 2**20


def sampled(model, rows, rng):
    """Return independent rows of a model: a mapping of columns to codes."""
    columns = {}
    for name in reversed(model.tree.order):
        near = {other for node in model.tree.nodes if name in node for other in node}
        given = tuple(other for other in columns if other in near)
        table = np.asarray(model.project((*given, name)).values)
        weights = np.maximum(table[tuple(columns[other] for other in given)], 0.0) if given else table
        ladder = np.cumsum(np.broadcast_to(weights, (rows, table.shape[-1])), axis=1)
        draws = rng.random(rows) * ladder[:, -1]
        columns[name] = np.minimum((draws[:, None] > ladder).sum(axis=1), table.shape[-1] - 1)
    return columns
