"""Per-row clipped gradient sums with one ordinary backward.

::

    clipper = PerRowClipper(module)
    with clipper.recording():
        losses = loss(module(x), y)             # one per row
    sums = clipper.clipped_sum(losses, clip)    # sensitive: not yet private
    # add noise of std sigma * clip, once, before anything leaves

Layers whose per-row gradients have a closed form compute what they always compute, with their parameters detached:
autograd then forms input gradients only. When the backward reaches such a layer, its input and output gradient become
a share (`ratewise.torch.gradients`). Any other use of a parameter sees one copy per row, whose gradient is that of the row.
The norm of each row's gradient is bounded by the cheapest way, and the clipped sum is one weighted product per layer.

The guarantee holds for the computed value. Clipping uses upper bounds of norms that include rounding, and
bounds the magnitude of the terms that cancel within a row as well, so that rounding in the sum is bounded
too. A row whose gradient is not finite adds nothing. See docs/guarantees.md, "Sensitivity of the computed
value".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    combined,
    norms_and_magnitudes,
    small,
    wide_device,
    widen,
)
from ratewise.torch.isolation import Batched, check_module, run_by_row

Tensors = tuple[Tensor, ...]
Attributes = dict[str, Any]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_ABSENT = object()
_ROOM = 2.0**-40  # for the rounding of weights
_SMALLEST_WEIGHT = 2.0**-100  # a row that would have to be scaled down further adds nothing


class _Tape:
    """The shares of one backward, by parameter."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.anchor = torch.zeros((), device=parameters[0].device, requires_grad=True)
        self._trainable = {id(parameter) for parameter in parameters}
        self.shares: dict[int, list[Share]] = {}
        self._rows: int | None = None

    def start(self, rows: int) -> None:
        self._rows = rows
        self.shares = {key: [] for key in self._trainable}

    def take(self) -> dict[int, list[Share]]:
        """Hand over what was written; nothing stays here."""
        taken, self.shares, self._rows = self.shares, {}, None
        return taken

    def arrive(self, layer: str, gradient: Tensor) -> None:
        """Refuse a gradient whose first axis is not the rows."""
        if self._rows is None:
            raise UnsupportedCombination(
                f"layer {layer!r} met an ordinary backward, which adds rows up before they can be clipped; "
                "use the criterion that make_private returned, or PerRowClipper.clipped_sum"
            )
        if gradient.dim() == 0 or gradient.shape[0] != self._rows:
            raise UnsupportedCombination(
                f"layer {layer!r} works on {tuple(gradient.shape)} while there are {self._rows} losses; the "
                "first axis must be the rows in every layer (batch_first=True for sequences)"
            )

    def add(self, parameter: nn.Parameter | None, make: Callable[[], Share]) -> None:
        """Keep one share of a trainable parameter; those of frozen ones are never formed."""
        if parameter is not None and id(parameter) in self._trainable:
            self.shares[id(parameter)].append(make())


class _Passage(torch.autograd.Function):
    """Runs a tapped layer forward, and lets it see its output gradient on the way back.

    The anchor requires a gradient, so that the backward comes by even where the input needs none.
    """

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, x: Tensor, layer: TappedLayer) -> Tensor:
        ctx.layer = layer
        out, kept = layer.run(x)
        ctx.save_for_backward(*kept)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer, kept, gradient = ctx.layer, ctx.saved_tensors, gradients[0]
        layer.tape.arrive(layer.name, gradient)
        return None, layer.back(gradient, kept, ctx.needs_input_grad[1]), None


class TappedLayer(ABC):
    """One layer while it is recorded."""

    least_axes = 2

    def __init__(self, layer: Any, name: str, tape: _Tape) -> None:
        self.layer, self.name, self.tape = layer, name, tape

    def __call__(self, input: Tensor) -> Tensor:
        """Compute what the layer computes; the argument has the name that PyTorch gives it."""
        if input.dim() < self.least_axes:
            raise UnsupportedCombination(
                f"layer {self.name!r} got an input of {input.dim()} axes, which has no axis for rows; "
                "give it whole batches, rows first"
            )
        out: Tensor = _Passage.apply(self.tape.anchor, self.cast(input), self)  # type: ignore[no-untyped-call]
        return out

    def cast(self, x: Tensor) -> Tensor:
        """Return the input in the precision that autocast asks for."""
        if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
            return x.to(torch.get_autocast_dtype(x.device.type))
        return x

    def detached(self, name: str, like: Tensor) -> Tensor | None:
        """Return a parameter in the precision of the input, outside autograd's view."""
        parameter: Tensor | None = getattr(self.layer, name)
        if parameter is None:
            return None
        parameter = parameter.detach()
        return parameter.to(like.dtype) if torch.is_autocast_enabled(like.device.type) else parameter

    @abstractmethod
    def run(self, x: Tensor) -> tuple[Tensor, Tensors]:
        """Return the output, and what the way back needs."""

    @abstractmethod
    def back(self, gradient: Tensor, kept: Tensors, needs_input: bool) -> Tensor | None:
        """Write down the shares, and return the input gradient."""


class TappedLinear(TappedLayer):
    """``nn.Linear`` on (rows, ..., inputs)."""

    def run(self, x: Tensor) -> tuple[Tensor, Tensors]:
        """Return the product."""
        weight = self.detached("weight", x)
        assert weight is not None  # noqa: S101 - a linear layer has one
        return functional.linear(x, weight, self.detached("bias", x)), (x, weight)

    def back(self, gradient: Tensor, kept: Tensors, needs_input: bool) -> Tensor | None:
        """Share: outer products over positions; the bias adds up the output gradients."""
        x, weight = kept
        left = gradient.reshape(gradient.shape[0], -1, gradient.shape[-1])
        right = x.reshape(x.shape[0], -1, x.shape[-1])
        self.tape.add(self.layer.weight, lambda: small(Outer(left, right, weight.shape)))
        self.tape.add(self.layer.bias, lambda: Dense(widen(left).sum(1)))
        return gradient @ weight if needs_input else None


class TappedEmbedding(TappedLayer):
    """``nn.Embedding`` on (rows, ...) ids."""

    least_axes = 1

    def cast(self, x: Tensor) -> Tensor:
        """Return the ids; one that is not in the table counts as the nearest that is, without an error."""
        return x.clamp(0, self.layer.num_embeddings - 1)

    def run(self, x: Tensor) -> tuple[Tensor, Tensors]:
        """Look up the vectors."""
        return functional.embedding(x, self.layer.weight.detach()), (x,)

    def back(self, gradient: Tensor, kept: Tensors, needs_input: bool) -> None:  # noqa: ARG002
        """Share: one-hot outer products; the padding id learns nothing."""
        ids = kept[0].reshape(kept[0].shape[0], -1).long()
        right = gradient.reshape(*ids.shape, gradient.shape[-1])
        if self.layer.padding_idx is not None:
            right = right.masked_fill((ids == self.layer.padding_idx)[:, :, None], 0.0)
        self.tape.add(self.layer.weight, lambda: OneHot(ids, right, self.layer.weight.shape))


class TappedConvolution(TappedLayer):
    """``nn.Conv1d``, ``nn.Conv2d`` and ``nn.Conv3d``, in every padding mode."""

    least_axes = 3

    def __init__(self, layer: Any, name: str, tape: _Tape) -> None:
        super().__init__(layer, name, tape)
        self.least_axes = layer.weight.dim()
        around = tuple(layer._reversed_padding_repeated_twice)  # (last axis before, last axis after, ...)
        even = all(before == after for before, after in zip(around[::2], around[1::2], strict=True))
        self._pad_first = around if layer.padding_mode != "zeros" or not even else ()
        padding = (0,) * len(layer.stride) if self._pad_first else around[::-2]
        self._geometry = Geometry(layer.stride, padding, layer.dilation, layer.groups)

    def __call__(self, input: Tensor) -> Tensor:
        """Pad where the convolution itself cannot, then convolve."""
        if self._pad_first and input.dim() == self.least_axes:
            mode = self.layer.padding_mode
            input = functional.pad(input, self._pad_first, mode="constant" if mode == "zeros" else mode)
        return super().__call__(input)

    def run(self, x: Tensor) -> tuple[Tensor, Tensors]:
        """Return the convolution."""
        weight = self.detached("weight", x)
        assert weight is not None  # noqa: S101 - a convolution has one
        return self._geometry.forward(x, weight, self.detached("bias", x)), (x, weight)

    def back(self, gradient: Tensor, kept: Tensors, needs_input: bool) -> Tensor | None:
        """Share: a convolution's; the bias adds up the output gradients."""
        x, weight = kept
        share = Convolved(x, gradient, widen(weight), self._geometry)
        self.tape.add(self.layer.weight, lambda: small(share))
        self.tape.add(self.layer.bias, lambda: Dense(widen(gradient).flatten(2).sum(2)))
        return self._geometry.input_gradient(gradient, x, weight) if needs_input else None


class TappedGroupNorm(TappedLayer):
    """``nn.GroupNorm``, in float32 at least, and ``nn.InstanceNorm1d`` to ``3d`` as one group per channel.

    Rows are normalised by themselves, so a batch of N rows with C channels is one row of N * C channels to
    the backward kernel. Its weight gradient then IS the N per-row gradients, at no cost.
    """

    def __init__(self, layer: Any, name: str, tape: _Tape) -> None:
        super().__init__(layer, name, tape)
        for axes, kind in enumerate((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), start=3):
            if isinstance(layer, kind):
                self.least_axes = axes

    def cast(self, x: Tensor) -> Tensor:
        """Return at least float32, whatever autocast asks for."""
        return widen(x)

    def _sizes(self, x: Tensor) -> tuple[int, int, int, int]:
        groups = getattr(self.layer, "num_groups", x.shape[1])
        return x.shape[0], x.shape[1], math.prod(x.shape[2:]), groups

    def run(self, x: Tensor) -> tuple[Tensor, Tensors]:
        """Return the normalised input."""
        rows, channels, positions, groups = self._sizes(x)
        weight, bias = self.layer.weight.detach(), self.layer.bias.detach()
        if x.numel() == 0:
            return torch.empty_like(x), ()
        x = x.contiguous()
        out, mean, scale = torch.native_group_norm(
            x, weight, bias, rows, channels, positions, groups, self.layer.eps
        )
        return out, (x, mean, scale)

    def back(self, gradient: Tensor, kept: Tensors, needs_input: bool) -> Tensor | None:
        """Share: the per-row gradients themselves, one number per channel."""
        x, mean, scale = kept
        rows, channels, positions, groups = self._sizes(x)
        dx, weight, bias = torch.ops.aten.native_group_norm_backward(
            gradient.reshape(1, rows * channels, positions),
            x.reshape(1, rows * channels, positions),
            mean.reshape(1, -1),
            scale.reshape(1, -1),
            self.layer.weight.detach().repeat(rows),
            1, rows * channels, positions, rows * groups, [needs_input, True, True],
        )  # fmt: skip
        self.tape.add(self.layer.weight, lambda: Dense(weight.reshape(rows, channels)))
        self.tape.add(self.layer.bias, lambda: Dense(bias.reshape(rows, channels)))
        return dx.reshape(x.shape) if needs_input else None


_KNOWN: dict[type[nn.Module], type[TappedLayer]] = {
    nn.Linear: TappedLinear,
    nn.Embedding: TappedEmbedding,
    nn.Conv1d: TappedConvolution,
    nn.Conv2d: TappedConvolution,
    nn.Conv3d: TappedConvolution,
    nn.GroupNorm: TappedGroupNorm,
    nn.InstanceNorm1d: TappedGroupNorm,
    nn.InstanceNorm2d: TappedGroupNorm,
    nn.InstanceNorm3d: TappedGroupNorm,
}


def closed_form(layer: nn.Module) -> type[TappedLayer] | None:
    """Return how to tap a layer, or None if no closed form is known for what it computes.

    Exact types count, and subclasses that add nothing but a constructor or a description; whatever else a
    subclass or an instance defines may change what it computes. A weight that is itself computed (weight
    norm, parametrisations) has no closed form.
    """
    for known, tapped in _KNOWN.items():
        if isinstance(layer, known) and _computes_like(layer, known):
            owned = isinstance(layer._parameters.get("weight"), nn.Parameter) and not layer._modules
            return tapped if owned else None
    return None


_HARMLESS = {"__init__", "__doc__", "__module__", "__qualname__", "__annotations__", "__constants__"} | {
    "extra_repr", "reset_parameters", "__firstlineno__", "__static_attributes__", "__parameters__",
}  # fmt: skip


def _computes_like(layer: nn.Module, known: type[nn.Module]) -> bool:
    """Return whether neither a subclass nor the instance changes what the known type computes."""
    kinds = type(layer).__mro__
    own = {name for kind in kinds[: kinds.index(known)] for name in vars(kind)}
    replaced = {name for name in layer.__dict__ if callable(getattr(known, name, None))}
    return own <= _HARMLESS and not replaced


class RowwiseModule:
    """A module that runs on each row separately while it is recorded.

    Layers with a closed form write their share of the per-row gradients on the tape. Every other use of a
    trainable parameter, wherever it occurs in the module, sees one copy per row; the gradient of a copy is
    the gradient of the row.

    Parameters
    ----------
    module : nn.Module
    parameters : dict of str to Parameter
        The trainable parameters.
    tape : _Tape
    """

    def __init__(self, module: nn.Module, parameters: dict[str, nn.Parameter], tape: _Tape) -> None:
        self._module, self._parameters, self._tape = module, parameters, tape
        self._own: Attributes = {}
        self._calls: dict[nn.Module, _LayerCall] = {}
        trainable = {id(parameter) for parameter in parameters.values()}
        for name, layer in module.named_modules():
            tapped = closed_form(layer)
            if tapped is not None and any(id(p) in trainable for p in layer.parameters(recurse=False)):
                self._calls[layer] = _LayerCall(layer, tapped(_Original(layer), name, tape))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let calls of the module run on each row separately, its hooks included."""
        if nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]
            raise UnsupportedCombination(
                "hooks for all modules are registered, and would see whole batches; remove them and register "
                "hooks on single modules"
            )
        names = ("forward", *_HOOKS)
        self._own = {name: self._module.__dict__.get(name, _ABSENT) for name in names}
        without_hooks: Attributes = {name: OrderedDict() for name in _HOOKS}
        with _replaced(self._module, {"forward": self._forward, **without_hooks}):
            yield

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        rows = _rows([leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)])
        with _replaced(self._module, self._own):
            if rows == 0:
                return _of_no_rows(self._module, args, kwargs)
            before = [parameter._version for parameter in self._parameters.values()]
            copies = {
                name: _Copies.apply(self._tape.anchor, rows, parameter, name, self._tape)  # type: ignore[no-untyped-call]
                for name, parameter in self._parameters.items()
            }
            token = torch.zeros(rows, device=self._tape.anchor.device)
            found = run_by_row(self._one_row, (token, copies, args, kwargs), "module")
        if before != [parameter._version for parameter in self._parameters.values()]:
            raise UnsupportedCombination(
                "module changes its own parameters in forward, which would release rows without noise; "
                "compute the changed weight from the parameter instead (torch.nn.utils.parametrize)"
            )
        return found

    def _one_row(self, token: Tensor, copies: dict[str, Tensor], args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map(
            lambda leaf: leaf.unsqueeze(0) if isinstance(leaf, Tensor) else leaf, (args, kwargs)
        )
        for layer, call in self._calls.items():
            call.token = token
            layer.__dict__["forward"] = call
        try:
            return torch.func.functional_call(self._module, copies, args, kwargs)
        finally:
            for layer, call in self._calls.items():
                call.token = None
                del layer.__dict__["forward"]


class _LayerCall:
    """The forward of a layer with a closed form, called on one row inside `torch.func.vmap`."""

    def __init__(self, layer: nn.Module, tapped: TappedLayer) -> None:
        self._layer, self._tapped = layer, tapped
        # these treat every axis but the last as positions, so that no axis needs to be the rows
        self._positions = isinstance(tapped, TappedLinear | TappedEmbedding)
        self.token: Tensor | None = None

    def __call__(self, input: Tensor) -> Tensor:
        """Compute what the layer computes; the argument has the name that PyTorch gives it."""
        axes = input.dim()
        if axes >= self._tapped.least_axes and axes > 0 and input.shape[0] == 1:
            return self._on_batch(input.squeeze(0)).unsqueeze(0)
        if self._positions and axes + 1 >= self._tapped.least_axes:
            return self._on_batch(input)
        # several pictures of one row, for example: through the copies of the parameters
        found: Tensor = type(self._layer).forward(self._layer, input)
        return found

    def _on_batch(self, row: Tensor) -> Tensor:
        found: Tensor = Batched.apply(self.token, row, self._tapped)  # type: ignore[no-untyped-call]
        return found


class _Copies(torch.autograd.Function):
    """One parameter seen as one copy per row; the backward brings one gradient per row."""

    @staticmethod
    def forward(
        ctx: Any, _anchor: Tensor, rows: int, parameter: nn.Parameter, name: str, tape: _Tape
    ) -> Tensor:
        ctx.parameter, ctx.name, ctx.tape = parameter, name, tape
        return parameter.detach().expand(rows, *parameter.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        gradient = gradients[0]
        ctx.tape.arrive(ctx.name, gradient)
        ctx.tape.add(ctx.parameter, lambda: Dense(widen(gradient)))
        return None, None, None, None, None


class _Original:
    """A layer with its own parameters, also while copies stand in their place."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer, self._held = layer, dict(layer._parameters)

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__["_held"]
        return held[name] if name in held else getattr(self.__dict__["_layer"], name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # so that isinstance answers for the layer
        return type(self._layer)


@torch.no_grad()
def _of_no_rows(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Return the output of no rows, from one row of zeros: a module may not know an empty batch."""
    one = tree_map(
        lambda leaf: leaf.new_zeros(1, *leaf.shape[1:]) if isinstance(leaf, Tensor) else leaf, (args, kwargs)
    )
    return tree_map(lambda leaf: leaf[:0], module(*one[0], **one[1]))


def _rows(tensors: Sequence[Tensor]) -> int:
    lengths = {tensor.shape[0] if tensor.dim() else -1 for tensor in tensors}
    if len(lengths) != 1 or -1 in lengths:
        raise UnsupportedCombination(
            f"every tensor given to the module must have the rows as its first axis; got {sorted(lengths)}"
        )
    return lengths.pop()


@contextmanager
def _replaced(module: nn.Module, attributes: Attributes) -> Iterator[None]:
    """Set attributes of a module for a while."""
    before = {name: module.__dict__.get(name, _ABSENT) for name in attributes}
    _set(module, attributes)
    try:
        yield
    finally:
        _set(module, before)


def _set(module: nn.Module, attributes: Attributes) -> None:
    for name, value in attributes.items():
        module.__dict__.pop(name, None)
        if value is not _ABSENT:
            module.__dict__[name] = value


def clipping_slack(most_rows: float) -> float:
    """Return by how much rounding can raise the sensitivity of `PerRowClipper.clipped_sum`, relative to the clip.

    Replacing a row by one that adds nothing moves the computed sum over at most `most_rows` rows by at most
    ``clip * (1 + clipping_slack(most_rows))``. Sums of several batches, in float64, count as one.

    >>> round(clipping_slack(1000), 3)
    0.019
    """
    double = 2.0 * LONGEST_SUM * 2.0**-53 * DOUBLE_CANCELLATION * (most_rows + 1.0)
    return BLOCK_SLACK + double


class PerRowClipper:
    """Clipped sums of per-row gradients of a module, with one ordinary backward.

    Guarantee: replacing a row by one that adds nothing (``scale_rows`` 0) moves the returned sums, as computed
    and over all trainable parameters together, by at most ``clip * (1 + clipping_slack(rows))`` in L2 norm.
    That is the sensitivity for which noise is to be drawn. No content of a row raises an error: a row of which a loss or a
    gradient is not finite, or too large for its norm to be computed, adds nothing. Sums and norms are raw:
    nothing here is released or recorded, and nothing is kept after `clipped_sum`.

    The module is untouched outside `recording`: no hook, no wrapper, the same ``state_dict``.

    Parameters
    ----------
    module : torch.nn.Module
        The first axis of inputs and outputs is the rows. While it is recorded, the module runs on each row
        separately (`ratewise.torch.isolation`), so rows cannot influence each other's outputs; a module that
        cannot be run so is refused. Linear, convolution, embedding, group and instance norm are
        clipped in closed form; other uses of parameters need one gradient per row in memory.

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
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.parameters: list[nn.Parameter] = list(named.values())
        self._names = list(named)
        self._tape = _Tape(self.parameters)
        self._rowwise = RowwiseModule(module, named, self._tape)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the forward passes that run inside; elsewhere the module is as it always was."""
        trainable = [id(p) for p in self.module.parameters() if p.requires_grad]
        if trainable != [id(p) for p in self.parameters]:
            raise InvalidInput(
                "module has other trainable parameters than when it was made private; build it anew"
            )
        with self._rowwise.recording():
            yield

    def clipped_sum(
        self,
        losses: Tensor,
        clip: float | None,
        *,
        scale_rows: Tensor | None = None,
        units: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the sum over rows of ``g_i * min(1, clip / |g_i|)``, one tensor per parameter.

        Tensors are in float64, or in the type of the gradients where all rows were added in one block.

        A row with a non-finite gradient adds nothing. A row whose gradient is a difference of far larger terms
        (`ratewise.torch.gradients.single_cancellation`) is scaled further down than to the clip.

        Parameters
        ----------
        losses : tensor of shape (rows,)
            One loss per row, from one recorded forward; an empty batch gives zeros. Loss ``i`` must be
            computed from row ``i`` of the outputs only (`ratewise.torch.isolation.map_rows` ensures it).
        clip : float or None
            Largest norm of one row's gradient over all parameters together. None adds up without a clip:
            the sum then has no bound and cannot be made private.
        scale_rows : tensor of shape (rows,), optional
            What each row's gradient is multiplied with BEFORE the clip; the bound stays ``clip``.
        units : tensor of shape (rows,), optional
            Number of the privacy unit of each row, from 0. The clip then bounds the sum of the norms of a
            unit's rows, hence the norm of what the unit adds. By default every row is a unit.

        Raises
        ------
        InvalidInput
            If `clip` is None and the sum is not finite. ``grad`` fields are never touched.
        """
        bound = None if clip is None else _validate.positive(clip=clip)
        _check_losses(losses)
        if losses.shape[0] == 0:
            return [_zeros(parameter) for parameter in self.parameters]
        scales = _scales(losses, scale_rows)
        try:
            with torch.no_grad():
                return self._sums(self._backward(losses), scales, bound, units)
        finally:
            self._tape.take()

    def _backward(self, losses: Tensor) -> dict[int, list[Share]]:
        """Run one backward without touching ``grad``, and return what the layers wrote down."""
        if not losses.requires_grad:
            raise InvalidInput("losses do not depend on the module; compute them inside recording()")
        self._tape.start(losses.shape[0])
        inputs = [self._tape.anchor, *self.parameters]
        direct = torch.autograd.grad(losses, inputs, torch.ones_like(losses), allow_unused=True)[1:]
        outside = [name for name, got in zip(self._names, direct, strict=True) if got is not None]
        if outside:
            raise UnsupportedCombination(
                f"parameter {outside[0]!r} reaches the losses other than through its layer inside recording()"
                ", where rows cannot be told apart; call the layer (tie weights by sharing the parameter), "
                "and model.train() before a loop of your own"
            )
        return {key: combined(parts) for key, parts in self._tape.take().items()}

    def _sums(
        self, shares: dict[int, list[Share]], scales: Tensor, clip: float | None, units: Tensor | None
    ) -> list[Tensor]:
        weights = scales if clip is None else _weights(list(shares.values()), scales, clip, units)
        # a share is dropped as soon as it is summed, so that sums take the place of shares
        totals = [_total(shares.pop(id(parameter)), parameter, weights) for parameter in self.parameters]
        if clip is None and not all(bool(torch.isfinite(total).all()) for total in totals):
            raise InvalidInput(
                "a row's loss or gradient is not finite, and without a clip it reaches the sum; check the "
                "loss for divisions and logarithms of zero, and the features for values that are not finite"
            )
        return totals


def _check_losses(losses: Tensor) -> None:
    if losses.dim() != 1:
        raise InvalidInput(
            f"losses must be one number per row, got shape {tuple(losses.shape)}; use reduction='none'"
        )


def _weights(
    shares: Sequence[Sequence[Share]], scales: Tensor, clip: float, units: Tensor | None = None
) -> Tensor:
    """Return what each row's gradient is multiplied with; 0 for a row that is not finite.

    The weight brings norm and magnitude, as `norms_and_magnitudes` bounds them, to the clip at most.
    """
    bounds = [norms_and_magnitudes(parts) for parts in shares if parts]
    if not bounds:
        return torch.zeros_like(scales)
    norms, magnitudes = (
        torch.linalg.vector_norm(torch.stack(one), dim=0) for one in zip(*bounds, strict=True)
    )
    lengths = torch.maximum(norms, magnitudes) * scales.abs()
    if units is not None:
        finite = torch.isfinite(magnitudes) & torch.isfinite(lengths)
        lengths = _unit_lengths(torch.where(finite, lengths, 0.0), units)
    weights = scales * (clip * (1.0 - _ROOM) / lengths).clamp(max=1.0)
    # infinite magnitudes may leave finite norms; and float32 has few digits below the smallest weight
    counts = torch.isfinite(magnitudes) & torch.isfinite(weights) & (weights.abs() >= _SMALLEST_WEIGHT)
    return torch.where(counts, weights, 0.0)


def _unit_lengths(lengths: Tensor, units: Tensor) -> Tensor:
    """Return for each row the sum of the lengths of its unit's rows, rounded up."""
    places = units.to(lengths.device)
    totals = lengths.new_zeros(len(lengths)).index_add_(0, places, lengths)
    return totals[places] * (1.0 + len(lengths) * 2.0**-52)


def _scales(losses: Tensor, scale_rows: Tensor | None) -> Tensor:
    device = wide_device(losses)
    if scale_rows is None:
        return torch.ones(losses.shape[0], dtype=torch.float64, device=device)
    if scale_rows.shape != losses.shape:
        raise InvalidInput(
            f"scale_rows must be one number per row, got shape {tuple(scale_rows.shape)} for "
            f"{losses.shape[0]} rows"
        )
    return scale_rows.detach().to(device, torch.float64)


def _total(shares: Sequence[Share], parameter: nn.Parameter, weights: Tensor) -> Tensor:
    if not shares:
        return _zeros(parameter)
    total = shares[0].weighted(weights)
    for share in shares[1:]:
        total += share.weighted(weights)
    return total


def _zeros(parameter: nn.Parameter) -> Tensor:
    """Return a sum of no rows."""
    return torch.zeros(parameter.shape, dtype=torch.float64, device=wide_device(parameter))
