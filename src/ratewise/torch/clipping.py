"""Per-row clipped gradient sums with one ordinary backward.

::

    clipper = PerRowClipper(module)
    with clipper.recording():
        losses = loss(module(x), y)             # one per row
    sums = clipper.clipped_sum(losses, clip)    # sensitive: not yet private
    # add noise of std sigma * clip, once, before anything leaves

Layer by layer, while the backward runs, input and output gradient are kept; the norm of each row's gradient
is taken by the cheaper of two ways; the clipped sum is one weighted product per layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ratewise import _validate
from ratewise.exceptions import InvalidInput, UnsupportedCombination
from ratewise.torch.fallback import TappedModule
from ratewise.torch.layers import closed_form
from ratewise.torch.shares import Share, combined, squared_norms
from ratewise.torch.validation import check_module

# What rounding may take: norms are right to about 1e-6 in float32, and no row may pass the clip by it.
_HAIR = {torch.float32: 4e-6, torch.float64: 1e-12}


class PerRowClipper:
    """Clipped sums of per-row gradients of a module, with one ordinary backward.

    Guarantee: what one row adds to the returned sums, over all trainable parameters together, has norm at
    most ``clip`` (up to 1e-5 of it, in float32), and depends on no other row. So adding or removing a row
    moves the sums by at most ``clip``: that is the sensitivity for which noise is to be drawn. Sums and
    norms are raw: nothing here is released, nothing is booked, and nothing is kept after `clipped_sum`.

    The module is untouched outside `recording`: no hook, no wrapper, the same ``state_dict``.

    Parameters
    ----------
    module : torch.nn.Module
        Any module in which the first axis of inputs is the rows and rows do not mix. Linear, convolution,
        embedding, group, layer and instance norm are clipped in closed form; other modules with parameters
        of their own through ``torch.func``, slower. Batch norm is refused. Other mixing is found on the
        first batch, from gradients: mixing of inputs before any trainable layer leaves no trace there and
        is the caller's to rule out (`ratewise.torch.engine` runs made-up rows for that).

    Attributes
    ----------
    parameters : list of torch.nn.Parameter
        The trainable ones, in the module's order, shared ones once.
    last_norms : None
        Per-row norms are private and never stay.

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
        self.last_norms: Tensor | None = None
        self._names = list(named)
        self._tape = _Tape(self.parameters)
        self._taps = dict(_taps(module, "", self._tape))
        self._rows_checked = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the forward passes that run inside; elsewhere the module is as it always was."""
        trainable = [id(p) for p in self.module.parameters() if p.requires_grad]
        if trainable != [id(p) for p in self.parameters]:
            raise InvalidInput(
                "module has other trainable parameters than when it was made private; build it anew"
            )
        before = {layer: layer.__dict__.get("forward") for layer in self._taps}
        for layer, tap in self._taps.items():
            layer.forward = tap
        try:
            yield
        finally:
            for layer, forward in before.items():
                layer.__dict__.pop("forward", None)
                if forward is not None:
                    layer.forward = forward

    def clipped_sum(
        self, losses: Tensor, clip: float | None, *, scale_rows: Tensor | None = None
    ) -> list[Tensor]:
        """Return the sum over rows of ``g_i * min(1, clip / |g_i|)``, one tensor per trainable parameter.

        Parameters
        ----------
        losses : tensor of shape (rows,)
            One loss per row, from one recorded forward; an empty batch gives zeros.
        clip : float or None
            Largest norm of one row's gradient over all parameters together. None adds up without a clip:
            the sum then has no bound and cannot be made private.
        scale_rows : tensor of shape (rows,), optional
            What each row's gradient is multiplied with BEFORE the clip; the bound stays ``clip``.

        Raises
        ------
        InvalidInput
            If a gradient is not finite. Nothing is returned then; ``grad`` fields are never touched.
        """
        bound = None if clip is None else _validate.positive(clip=clip)
        _check_losses(losses)
        if losses.shape[0] == 0:
            return [torch.zeros_like(parameter) for parameter in self.parameters]
        scales = _scales(losses, scale_rows)
        _check_finite(losses.detach())
        try:
            self._check_rows_apart(losses)
            with torch.no_grad():
                return self._sums(self._backward(losses), scales, bound)
        finally:
            self._tape.take()

    def detach(self) -> None:
        """Forget the module; the clipper cannot record any more."""
        self._taps.clear()
        self._tape.take()
        self.parameters = []

    def _backward(self, losses: Tensor, *, probe: bool = False) -> dict[int, list[Share]]:
        """Run one backward without touching ``grad``, and return what the layers wrote down."""
        if not losses.requires_grad:
            raise InvalidInput("losses do not depend on the module; compute them inside recording()")
        self._tape.start(losses.shape[0], probe=probe)
        asked = torch.ones_like(losses)
        if probe:
            asked[1:] = 0.0
        inputs = [self._tape.anchor, *self.parameters]
        direct = torch.autograd.grad(losses, inputs, asked, retain_graph=probe, allow_unused=True)[1:]
        outside = [name for name, got in zip(self._names, direct, strict=True) if got is not None]
        if outside:
            raise UnsupportedCombination(
                f"parameter {outside[0]!r} reaches the losses other than through its layer inside recording()"
                ", where rows cannot be told apart; call the layer (tie weights by sharing the parameter), "
                "and model.train() before a loop of your own"
            )
        return {key: combined(parts) for key, parts in self._tape.take().items()}

    def _check_rows_apart(self, losses: Tensor) -> None:
        """Once: the first row's loss must reach nothing but the first row of every layer's output."""
        if not self._rows_checked and losses.shape[0] > 1:
            self._backward(losses, probe=True)
            self._rows_checked = True

    def _sums(self, shares: dict[int, list[Share]], scales: Tensor, clip: float | None) -> list[Tensor]:
        weights = scales if clip is None else scales * self._factors(shares, scales, clip)
        # a share is dropped as soon as it is summed, so that sums take the place of shares
        totals = [_total(shares.pop(id(parameter)), parameter, weights) for parameter in self.parameters]
        if clip is None:
            _check_finite(*totals)
        return totals

    def _factors(self, shares: dict[int, list[Share]], scales: Tensor, clip: float) -> Tensor:
        squares = sum(squared_norms(parts) for parts in shares.values() if parts)
        norms = torch.as_tensor(squares, dtype=scales.dtype, device=scales.device).clamp(min=0).sqrt()
        norms = norms * scales.abs()
        _check_finite(norms)
        hair = max(_HAIR[parameter.dtype] for parameter in self.parameters)
        return (clip * (1 - hair) / norms).clamp(max=1.0)


class _Tape:
    """The shares of one backward, by parameter."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.anchor = torch.zeros((), device=parameters[0].device, requires_grad=True)
        self._trainable = {id(parameter) for parameter in parameters}
        self.shares: dict[int, list[Share]] = {}
        self._rows: int | None = None
        self._probe = False

    def start(self, rows: int, *, probe: bool) -> None:
        self._rows, self._probe = rows, probe
        self.shares = {key: [] for key in self._trainable}

    def take(self) -> dict[int, list[Share]]:
        """Hand over what was written; nothing stays here."""
        taken, self.shares, self._rows = self.shares, {}, None
        return taken

    def arrive(self, layer: str, gradient: Tensor) -> bool:
        """Refuse a gradient whose first axis is not the rows; return whether shares are wanted."""
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
        # 0 times an overflow is not a number: it mixes nothing, and the true backward refuses it
        if self._probe and bool(gradient[1:].nan_to_num(0.0, 0.0, 0.0).count_nonzero()):
            raise UnsupportedCombination(
                f"layer {layer!r} gives the loss of one row something of other rows, so rows have no "
                "gradient of their own; keep the rows on the first axis and do not mix them "
                "(batch_first=True for sequences, opacus' ModuleValidator.fix(module) for batch norm)"
            )
        return not self._probe

    def add(self, parameter: nn.Parameter | None, make: Callable[[], Share]) -> None:
        """Keep one share of a trainable parameter; those of frozen ones are never formed."""
        if parameter is not None and id(parameter) in self._trainable:
            self.shares[id(parameter)].append(make())


def _taps(module: nn.Module, name: str, tape: _Tape) -> Iterator[tuple[Any, Any]]:
    """Yield every module that is to be tapped, with its tap; frozen ones are left alone.

    A parameter that a child owns too is the child's affair: should the parent use it by itself after all,
    the backward finds out. Lists of parameters are no layers: they belong to the module that holds them.
    """
    lists = [child for child in module.children() if isinstance(child, nn.ParameterList | nn.ParameterDict)]
    below = {id(p) for child in module.children() if child not in lists for p in child.parameters()}
    held = [p for part in (module, *lists) for p in part.parameters(recurse=False)]
    if any(p.requires_grad and id(p) not in below for p in held):
        tapped = closed_form(module) or TappedModule
        yield module, tapped(module, name, tape)
        return
    for key, child in module.named_children():
        yield from _taps(child, f"{name}.{key}" if name else key, tape)


def _check_losses(losses: Tensor) -> None:
    if losses.dim() != 1:
        raise InvalidInput(
            f"losses must be one number per row, got shape {tuple(losses.shape)}; use reduction='none'"
        )


def _check_finite(*values: Tensor) -> None:
    if not all(bool(torch.isfinite(value).all()) for value in values):
        raise InvalidInput(
            "a row's loss or gradient is not finite, so it cannot be clipped; check the loss for divisions "
            "and logarithms of zero, and the features for values that are not finite"
        )


def _scales(losses: Tensor, scale_rows: Tensor | None) -> Tensor:
    dtype = torch.float32 if losses.device.type == "mps" else torch.float64
    if scale_rows is None:
        return torch.ones(losses.shape[0], dtype=dtype, device=losses.device)
    if scale_rows.shape != losses.shape:
        raise InvalidInput(
            f"scale_rows must be one number per row, got shape {tuple(scale_rows.shape)} for "
            f"{losses.shape[0]} rows"
        )
    return scale_rows.detach().to(dtype)


def _total(shares: Sequence[Share], parameter: nn.Parameter, weights: Tensor) -> Tensor:
    if not shares:
        return torch.zeros_like(parameter)
    total = shares[0].weighted(weights)
    for share in shares[1:]:
        total = total + share.weighted(weights)
    return total
