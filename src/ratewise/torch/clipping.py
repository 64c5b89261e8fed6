"""Per-row clipped gradient sums with one ordinary backward.

::

    clipper = PerRowClipper(module)
    with clipper.recording():
        losses = loss(module(x), y)             # one per row
    sums = clipper.clipped_sum(losses, clip)    # sensitive: not yet private
    # add noise of std sigma * clip, once, before anything leaves

Layers with a closed form run with their parameters detached; when the backward reaches one, its input and output
gradient become a share (`ratewise.torch.gradients`). Any other use of a parameter sees one copy per row.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from ratewise import _validate
from ratewise.exceptions import InvalidInput, UnsupportedCombination
from ratewise.torch.gradients import (
    BLOCK_SLACK,
    DOUBLE_CANCELLATION,
    LONGEST_SUM,
    Convolved,
    Dense,
    Geometry,
    OneHot,
    Outer,
    Share,
    bounds,
    combined,
    small,
    wide_device,
    widen,
)
from ratewise.torch.isolation import KEEPS, Batched, check_module, isolated_backward, of_rows, run_by_row

_ROOM = 2.0**-40  # for the rounding of weights
_SMALLEST_WEIGHT = 2.0**-100  # a row that would have to be scaled down further adds nothing


def clipping_slack(most_rows: float) -> float:
    """Return by how much rounding can raise the sensitivity of `PerRowClipper.clipped_sum`, relative to the clip.

    Replacing a row by one that adds nothing moves the computed sum over at most `most_rows` rows by at most
    ``clip * (1 + clipping_slack(most_rows))``. Sums of several batches, in float64, count as one.

    >>> round(clipping_slack(1000), 3)
    0.019
    """
    return BLOCK_SLACK + 2.0 * LONGEST_SUM * 2.0**-53 * DOUBLE_CANCELLATION * (most_rows + 1.0)


class PerRowClipper:
    """Clipped sums of per-row gradients of a module, with one ordinary backward.

    Guarantee: replacing a row by one that adds nothing (``scale_rows`` 0) moves the returned sums, as computed
    and over all trainable parameters together, by at most ``clip * (1 + clipping_slack(rows))`` in L2 norm.
    No content of a row raises an error: a row of which a loss or a gradient is not finite, or too large for its norm
    to be computed, adds nothing. Nothing is released, recorded, or kept after `clipped_sum`.

    Parameters
    ----------
    module : torch.nn.Module
        The first axis of inputs and outputs is the rows. While it is recorded, the module runs on each row
        separately (`ratewise.torch.isolation`); one that cannot be run so is refused. Linear, convolution,
        embedding and group norm are clipped in closed form; other uses of parameters need one gradient per row
        in memory. Outside `recording` the module is untouched.

    Attributes
    ----------
    parameters : list of torch.nn.Parameter
        The trainable ones, in the module's order, shared ones once.

    Examples
    --------
    >>> import torch
    >>> module = torch.nn.Linear(3, 1, bias=False)
    >>> clipper = PerRowClipper(module)
    >>> with clipper.recording():
    ...     losses = module(torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.5, 0.0]])).squeeze(1)
    >>> [total] = clipper.clipped_sum(losses, clip=1.0)
    >>> total.round(decimals=3)
    tensor([[0.6000, 0.5000, 0.8000]])
    """

    def __init__(self, module: nn.Module) -> None:
        check_module(module)
        self.module = module
        self._named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.parameters: list[nn.Parameter] = list(self._named.values())
        # requires a gradient, so that the backward reaches layers whose input needs none
        self._anchor = torch.zeros((), device=self.parameters[0].device, requires_grad=True)
        self._token: Tensor | None = None  # one entry per row, while rows run
        self._rows: int | None = None  # of the backward that runs
        self._shares: dict[int, list[Share]] = {}
        self._layers: dict[nn.Module, _Tapped] = {}
        for name, layer in module.named_modules():
            rule = _closed_form(layer)
            if rule is _linear or (rule is not None and any(p.requires_grad for p in layer.parameters())):
                self._layers[layer] = _Tapped(layer, name, self, rule)

    @contextmanager
    def recording(self) -> Iterator[Callable[..., Any]]:
        """Let calls of the module run on each row separately, hooks included, and record them.

        Yields a function that does this too, for modules of classes with a ``__call__`` of their own.
        """
        trainable = [id(p) for p in self.module.parameters() if p.requires_grad]
        if trainable != [id(p) for p in self.parameters]:
            raise InvalidInput("module has other trainable parameters than when it was made private; build it anew")
        if nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]
            raise UnsupportedCombination(
                "hooks for all modules are registered, and would see whole batches; remove them and register "
                "hooks on single modules"
            )
        own = type(self.module).__call__ is not nn.Module.__call__
        with _called_as(self.module, self._refuse_call if own else self._forward):
            yield self._forward

    def _refuse_call(self, *_args: Any, **_kwargs: Any) -> Any:
        raise UnsupportedCombination(
            f"{type(self.module).__name__} has a __call__ of its own, which would see whole batches; call what "
            "recording() returns: with clipper.recording() as run: run(x)"
        )

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        lengths = {tensor.shape[0] if tensor.dim() else -1 for tensor in tensors}
        if len(lengths) != 1 or -1 in lengths:
            raise UnsupportedCombination(
                f"every tensor given to the module must have the rows as its first axis; got {sorted(lengths)}"
            )
        rows = lengths.pop()
        if rows == 0:  # a module may not know an empty batch
            args, kwargs = _on_tensors(lambda leaf: leaf.new_zeros(1, *leaf.shape[1:]), (args, kwargs))
            return tree_map(lambda leaf: leaf[:0], self._forward(*args, **kwargs))
        # rows share a clone, so that nothing that a module writes into its copy reaches the parameter
        clones = {name: parameter.detach().clone() for name, parameter in self._named.items()}
        fixed = [*self.module.parameters(), *clones.values()]
        before = [tensor._version for tensor in fixed]
        copies = {name: self._copies(name, clone, rows) for name, clone in clones.items()}
        token = torch.zeros(rows, device=self._anchor.device)
        with _called_as(self.module, None):
            found = run_by_row(self._one_row, (token, copies, args, kwargs), "module")
        if any(of_rows(tensor) for tensor in (*self.module.parameters(), *self.module.buffers())):
            raise UnsupportedCombination(f"module {KEEPS}")
        if before != [tensor._version for tensor in fixed]:
            raise UnsupportedCombination(
                "module changes its own parameters in forward, which would release rows without noise; "
                "compute the changed weight from the parameter instead (torch.nn.utils.parametrize)"
            )
        return found

    def _copies(self, name: str, clone: Tensor, rows: int) -> Any:
        """Return one copy of a parameter per row; the backward brings one gradient per row."""

        def rule(_x: None) -> tuple[Tensor, _Back]:
            return clone.expand(rows, *clone.shape), lambda gradient, _: self._keep(
                self._named[name], lambda: Dense(widen(gradient))
            )

        return _Passage.apply(self._anchor, None, name, self, rule)  # type: ignore[no-untyped-call]

    def _one_row(self, token: Tensor, copies: dict[str, Tensor], args: Any, kwargs: Any) -> Any:
        args, kwargs = _on_tensors(lambda leaf: leaf.unsqueeze(0), (args, kwargs))
        # a layer may have been changed since
        taps = {layer: tapped for layer, tapped in self._layers.items() if _closed_form(layer) is tapped.rule}
        self._token = token
        for layer, tapped in taps.items():
            layer.__dict__["forward"] = tapped
        try:
            return torch.func.functional_call(self.module, copies, args, kwargs)
        finally:
            self._token = None
            for layer in taps:
                del layer.__dict__["forward"]

    def clipped_sum(
        self,
        losses: Tensor,
        clip: float | None,
        *,
        scale_rows: Tensor | None = None,
        units: Tensor | None = None,
        padding: int = 0,
    ) -> list[Tensor]:
        """Return the sum over rows of ``g_i * min(1, clip / |g_i|)``, one tensor per parameter.

        Tensors are in float64, or in the type of the gradients where all rows were added in one block. A row whose
        gradient is a difference of far larger terms is scaled further down than to the clip. ``grad`` fields are
        never touched.

        Parameters
        ----------
        losses : tensor of shape (rows,)
            One loss per row, from one recorded forward; an empty batch gives zeros. Loss ``i`` must be
            computed from row ``i`` of the outputs only (`ratewise.torch.isolation.map_rows` ensures it).
        clip : float or None
            Largest norm of one row's gradient over all parameters together. None adds up without a clip: the
            sum then cannot be made private, and one that is not finite is an error.
        scale_rows : tensor of shape (rows,), optional
            What each row's gradient is multiplied with BEFORE the clip; the bound stays ``clip``.
        units : tensor of shape (rows,), optional
            Number of the privacy unit of each row, from 0. The clip then bounds the sum of the norms of a
            unit's rows, hence the norm of what the unit adds. By default every row is a unit.
        padding : int
            Number of last rows that add nothing.
        """
        bound = None if clip is None else _validate.positive(clip=clip)
        if losses.dim() != 1:
            raise InvalidInput(
                f"losses must be one number per row, got shape {tuple(losses.shape)}; use reduction='none'"
            )
        scales = torch.ones_like(losses) if scale_rows is None else scale_rows
        if scales.shape != losses.shape:
            raise InvalidInput(
                f"scale_rows must be one number per row, got shape {tuple(scales.shape)} for {len(losses)} rows"
            )
        counted = len(losses) - min(_validate.count(at_least=0, padding=padding), len(losses))
        scales = scales.detach().to(wide_device(losses), torch.float64)
        scales = torch.where(torch.arange(len(losses), device=scales.device) < counted, scales, 0.0)
        try:
            # in the precision that `ratewise.torch.gradients` counts on, also if the caller chose another
            with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
                shares = self._backward(losses) if len(losses) else {}
                weights = scales if bound is None else _weights(list(shares.values()), scales, bound, units)
                weights = weights[: max(1, counted)]
                # a share is dropped as soon as it is summed, so that sums take the place of shares
                totals = [_total(shares.pop(id(p), None), p, weights) for p in self.parameters]
        finally:
            self._shares, self._rows = {}, None
        if bound is None and not all(bool(torch.isfinite(total).all()) for total in totals):
            raise InvalidInput(
                "a row's loss or gradient is not finite, and without a clip it reaches the sum; check the "
                "loss for divisions and logarithms of zero, and the features for values that are not finite"
            )
        return totals

    def _backward(self, losses: Tensor) -> dict[int, Share]:
        """Run one backward without touching ``grad``, and return the share of each parameter."""
        if not losses.requires_grad:
            raise InvalidInput("losses do not depend on the module; compute them inside recording()")
        self._rows, self._shares = losses.shape[0], {id(p): [] for p in self.parameters}
        inputs = [self._anchor, *self.parameters]
        with isolated_backward(len(losses)):
            direct = torch.autograd.grad(losses, inputs, torch.ones_like(losses), allow_unused=True)[1:]
        outside = [name for name, got in zip(self._named, direct, strict=True) if got is not None]
        if outside:
            raise UnsupportedCombination(
                f"parameter {outside[0]!r} reaches the losses other than through its layer inside recording()"
                ", where rows cannot be told apart; call the layer (tie weights by sharing the parameter), "
                "and model.train() before a loop of your own"
            )
        shares, self._shares = self._shares, {}
        return {key: combined(parts) for key, parts in shares.items() if parts}

    def _arrive(self, layer: str, gradient: Tensor) -> None:
        """Refuse a gradient whose first axis is not the rows."""
        if self._rows is None:
            raise UnsupportedCombination(
                f"layer {layer!r} met an ordinary backward, which adds rows up before they can be clipped; "
                "use the criterion that make_private returned, or PerRowClipper.clipped_sum"
            )
        if gradient.shape[0] != self._rows:
            raise UnsupportedCombination(
                f"layer {layer!r} works on {tuple(gradient.shape)} while there are {self._rows} losses; the "
                "first axis must be the rows in every layer (batch_first=True for sequences)"
            )

    def _keep(self, parameter: nn.Parameter | None, make: Callable[[], Share]) -> None:
        """Keep one share of a trainable parameter; those of frozen ones are never formed."""
        if parameter is not None and id(parameter) in self._shares:
            self._shares[id(parameter)].append(make())


def _on_tensors(change: Callable[[Tensor], Tensor], values: Any) -> Any:
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, values)


@contextmanager
def _called_as(module: nn.Module, function: Callable[..., Any] | None) -> Iterator[None]:
    """Let a call of the module, with its hooks, be a call of the function; with None, what it always is."""
    before = module.__dict__.pop("_compiled_call_impl", None)
    module.__dict__["_compiled_call_impl"] = function
    try:
        yield
    finally:
        del module.__dict__["_compiled_call_impl"]
        if before is not None:
            module.__dict__["_compiled_call_impl"] = before


def _weights(shares: Sequence[Share], scales: Tensor, clip: float, units: Tensor | None = None) -> Tensor:
    """Return what each row's gradient is multiplied with; 0 for a row that is not finite.

    The weight brings norm and magnitude, as `bounds` bounds them, to the clip at most.
    """
    if not shares:
        return torch.zeros_like(scales)
    found = zip(*(bounds(share) for share in shares), strict=True)
    norms, magnitudes = (torch.linalg.vector_norm(torch.stack(one), dim=0) for one in found)
    lengths = torch.maximum(norms, magnitudes) * scales.abs()
    if units is not None:  # the sum of the lengths of the unit's rows, rounded up
        finite = torch.isfinite(magnitudes) & torch.isfinite(lengths)
        units, lengths = units.to(lengths.device), torch.where(finite, lengths, 0.0)
        totals = torch.zeros_like(lengths).index_add_(0, units, lengths)
        lengths = totals[units] * (1.0 + len(lengths) * 2.0**-52)
    weights = scales * (clip * (1.0 - _ROOM) / lengths).clamp(max=1.0)
    # infinite magnitudes may leave finite norms; and float32 has few digits below the smallest weight
    counts = torch.isfinite(magnitudes) & torch.isfinite(weights) & (weights.abs() >= _SMALLEST_WEIGHT)
    return torch.where(counts, weights, 0.0)


def _total(share: Share | None, parameter: nn.Parameter, weights: Tensor) -> Tensor:
    if share is not None:
        return share.weighted(weights)
    return torch.zeros(parameter.shape, dtype=torch.float64, device=wide_device(parameter))


# ----------------------------------------------------------------------------- layers with a closed form


class _Passage(torch.autograd.Function):
    """Runs a layer forward on a batch, and lets it see its output gradient on the way back.

    The rule returns the output, and a function of the output gradient and of whether the input gradient is needed,
    which keeps shares and returns the input gradient.
    """

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, x: Tensor | None, name: str, clipper: PerRowClipper, rule: Any) -> Tensor:
        ctx.name, ctx.clipper = name, clipper
        ctx.save_for_backward(x)
        out, ctx.back = rule(x)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.clipper._arrive(ctx.name, gradients[0])
        _ = ctx.saved_tensors  # an error if it was written to since
        back, ctx.back = ctx.back, None  # what it holds is freed as soon as it was used
        return None, back(gradients[0], ctx.needs_input_grad[1]), None, None, None


class _Tapped:
    """The forward of a layer with a closed form; parameters are held here while copies stand in their place."""

    def __init__(self, layer: Any, name: str, clipper: PerRowClipper, rule: _Rule) -> None:
        self.layer, self.name, self.clipper, self.rule = layer, name, clipper, rule
        self.weight, self.bias = layer.weight, getattr(layer, "bias", None)
        self._any_position = rule in (_linear, _embedding)  # the first axis of an input may be positions
        self._least_axes = 1 if rule is _embedding else layer.weight.dim() if rule is _convolution else 2

    def __call__(self, input: Tensor) -> Tensor:
        """Compute what the layer computes for one row, inside `torch.func.vmap`."""
        if input.dim() >= self._least_axes and input.shape[0] == 1:
            return self._of_rows(input.squeeze(0)).unsqueeze(0)
        if self._any_position:
            return self._of_rows(input)
        # several pictures of one row, for example: through the copies of the parameters
        found: Tensor = type(self.layer).forward(self.layer, input)
        return found

    def _of_rows(self, row: Tensor) -> Tensor:
        found: Tensor = Batched.apply(self.clipper._token, row, self.on_batch)  # type: ignore[no-untyped-call]
        return found

    def on_batch(self, x: Tensor) -> Tensor:
        """Compute what the layer computes for all rows."""
        if self.rule is _embedding:  # an id that is not in the table counts as the nearest that is
            x = x.clamp(0, self.layer.num_embeddings - 1)
        elif self.rule is _group_norm:
            x = widen(x)
        elif torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
            x = x.to(torch.get_autocast_dtype(x.device.type))
        rule, clipper = partial(self.rule, self), self.clipper
        out: Tensor = _Passage.apply(clipper._anchor, x, self.name, clipper, rule)  # type: ignore[no-untyped-call]
        return out

    def detached(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias in the precision of the input, outside autograd's view."""
        kind = like.dtype if torch.is_autocast_enabled(like.device.type) else self.weight.dtype
        return self.weight.detach().to(kind), None if self.bias is None else self.bias.detach().to(kind)

    def keep(self, weight: Callable[[], Share], bias: Callable[[], Share]) -> None:
        """Keep the shares of weight and bias, where these exist and are trained."""
        self.clipper._keep(self.weight, weight)
        self.clipper._keep(self.bias, bias)


def _linear(tapped: _Tapped, x: Tensor) -> tuple[Tensor, _Back]:
    weight, bias = tapped.detached(x)

    def back(gradient: Tensor, needs_input: bool) -> Tensor | None:
        left, right = (side.reshape(len(side), -1, side.shape[-1]) for side in (gradient, x))
        tapped.keep(lambda: small(Outer(left, right, weight.shape)), lambda: Dense(widen(left).sum(1)))
        return _aligned(gradient) @ _columns(weight) if needs_input else None

    out = functional.linear(_aligned(x), weight, bias)
    return torch.ops.aten._unsafe_view(out, out.shape), back  # what counts as no view may be written to


def _aligned(x: Tensor) -> Tensor:
    """Return the same numbers with every row beginning at a multiple of 64 bytes.

    Kernels for products round by the alignment of rows; the numbers of a row must not depend on its place.
    """
    missing = -x.shape[-1] % (64 // x.element_size())
    return functional.pad(x, (0, missing))[..., : x.shape[-1]] if missing else x


def _columns(matrix: Tensor) -> Tensor:
    """Return a right factor whose rows, or else its columns, begin at multiples of 64 bytes."""
    whole = matrix.shape[-1] % (64 // matrix.element_size()) == 0
    return matrix if whole else _aligned(matrix.mT.contiguous()).mT


def _embedding(tapped: _Tapped, ids: Tensor) -> tuple[Tensor, _Back]:
    def back(gradient: Tensor, _needs_input: bool) -> None:
        flat = ids.reshape(len(ids), -1).long()
        right = gradient.reshape(*flat.shape, gradient.shape[-1])
        if tapped.layer.padding_idx is not None:
            right = right.masked_fill((flat == tapped.layer.padding_idx)[:, :, None], 0.0)
        tapped.clipper._keep(tapped.weight, lambda: OneHot(flat, right, tapped.weight.shape))

    return tapped.weight.detach()[ids.long()], back


def _convolution(tapped: _Tapped, x: Tensor) -> tuple[Tensor, _Back]:
    layer, (weight, bias) = tapped.layer, tapped.detached(x)
    padding = tuple(layer._reversed_padding_repeated_twice)[::-2]
    geometry = Geometry(layer.stride, padding, layer.dilation, layer.groups)

    def back(gradient: Tensor, needs_input: bool) -> Tensor | None:
        share = Convolved(x, gradient, widen(weight), geometry)
        tapped.keep(lambda: small(share), lambda: Dense(widen(gradient).flatten(2).sum(2)))
        return geometry.backward(gradient, x, weight, of_input=True) if needs_input else None

    return geometry.forward(x, weight, bias), back


def _group_norm(tapped: _Tapped, x: Tensor) -> tuple[Tensor, _Back]:
    """Normalise in float32 at least, whatever autocast asks for.

    Rows are normalised by themselves, so a batch of N rows with C channels is one row of N * C channels to
    the backward kernel. Its weight gradient then IS the N per-row gradients, at no cost.
    """
    x, (rows, channels), groups = x.contiguous(), x.shape[:2], tapped.layer.num_groups
    pixels = math.prod(x.shape[2:])
    out, mean, scale = torch.native_group_norm(x, *tapped.detached(x), rows, channels, pixels, groups, tapped.layer.eps)

    def back(gradient: Tensor, needs_input: bool) -> Tensor | None:
        flat = 1, rows * channels, pixels
        dx, weight, bias = torch.ops.aten.native_group_norm_backward(
            gradient.reshape(flat), x.reshape(flat), mean.reshape(1, -1), scale.reshape(1, -1),
            tapped.weight.detach().repeat(rows), *flat, rows * groups, [needs_input, True, True],
        )  # fmt: skip
        tapped.keep(lambda: Dense(weight.reshape(rows, channels)), lambda: Dense(bias.reshape(rows, channels)))
        return dx.reshape(x.shape) if needs_input else None

    return out, back


_Back = Callable[[Tensor, bool], Tensor | None]  # takes the output gradient, returns that of the input
_Rule = Callable[[_Tapped, Tensor], tuple[Tensor, _Back]]
_RULES: dict[type[nn.Module], _Rule] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    nn.GroupNorm: _group_norm,
}


def _closed_form(layer: nn.Module) -> _Rule | None:
    """Return the rule of a layer, or None if no closed form is known for what it computes.

    Exact types count: a subclass of the layer or of a parameter, a method of the instance or one that was put into the
    class from another file, a weight that is itself computed (weight norm, parametrisations) or another padding than
    with zeros on both sides changes what is computed.
    """
    kind, file = type(layer), vars(sys.modules[type(layer).__module__])
    replaced = any(callable(getattr(kind, name, None)) for name in vars(layer)) or any(
        isinstance(one, FunctionType) and one.__globals__ is not file for one in vars(kind).values()
    )
    own = [parameter for parameter in layer._parameters.values() if parameter is not None]
    owned = "weight" in layer._parameters and not layer._modules and all(type(one) is nn.Parameter for one in own)
    around = getattr(layer, "_reversed_padding_repeated_twice", ())
    even = getattr(layer, "padding_mode", "zeros") == "zeros" and around[::2] == around[1::2]
    return _RULES.get(kind) if owned and even and not replaced else None
