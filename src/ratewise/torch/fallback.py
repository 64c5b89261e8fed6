"""Any other module, right but slower: each row runs with a copy of the parameters of its own.

``torch.func.vmap`` runs the module on one row at a time, as a batch of one. Rows cannot mix, because no row
sees another. The gradient of a row's copy is the row's gradient, formed for this module only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ratewise.exceptions import UnsupportedCombination
from ratewise.torch.layers import Tape
from ratewise.torch.shares import Dense, widen


class _Copies(torch.autograd.Function):
    """One parameter seen as one copy per row; the backward brings one gradient per row."""

    @staticmethod
    def forward(
        ctx: Any, _anchor: Tensor, rows: int, parameter: nn.Parameter, name: str, tape: Tape
    ) -> Tensor:
        ctx.parameter, ctx.name, ctx.tape = parameter, name, tape
        return parameter.detach().expand(rows, *parameter.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        gradient = gradients[0]
        if ctx.tape.arrive(ctx.name, gradient):
            ctx.tape.add(ctx.parameter, lambda: Dense(widen(gradient)))
        return None, None, None, None, None


class _Original(nn.Module):
    """A module under its own forward, also while that forward is replaced."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._own_forward = inner.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward that the module had."""
        return self._own_forward(*args, **kwargs)


class TappedModule:
    """A whole module, children included, while it is recorded."""

    def __init__(self, module: nn.Module, name: str, tape: Tape) -> None:
        self.name, self.tape = name, tape
        self._original = _Original(module)
        self._trainable = {key: p for key, p in self._original.named_parameters() if p.requires_grad}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the module computes, row by row."""
        rows = self._rows(tree_leaves([args, kwargs]))
        if rows == 0:
            return self._original(*args, **kwargs)
        copies = {
            key: _Copies.apply(self.tape.anchor, rows, parameter, self.name, self.tape)  # type: ignore[no-untyped-call]
            for key, parameter in self._trainable.items()
        }
        mapped = (
            dict.fromkeys(copies, 0),
            tuple(_axis(value) for value in args),
            {key: _axis(value) for key, value in kwargs.items()},
        )
        run: Callable[..., Any] = torch.func.vmap(self._one_row, in_dims=mapped, randomness="different")
        try:
            return run(copies, args, kwargs)
        except RuntimeError as problem:
            if "atching rule" not in str(problem) and "vmap" not in str(problem):
                raise
            raise UnsupportedCombination(
                f"module {self.name!r} has parameters of its own and no closed form, and PyTorch cannot run "
                "it row by row (torch.func.vmap); build it of layers with a closed form, such as those of "
                "opacus.layers"
            ) from problem

    def _one_row(self, copies: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = tuple(_alone(value) for value in args)
        kwargs = {key: _alone(value) for key, value in kwargs.items()}
        out = torch.func.functional_call(self._original, copies, args, kwargs)
        if isinstance(out, tuple | list):
            return tuple(self._row_of(part) for part in out)
        return self._row_of(out)

    def _row_of(self, out: Any) -> Tensor:
        if not isinstance(out, Tensor) or out.dim() == 0 or out.shape[0] != 1:
            raise UnsupportedCombination(
                f"module {self.name!r} does not answer a batch of one row with one row, so its per-row "
                "gradients are not defined; return tensors whose first axis is the rows"
            )
        return out[0]

    def _rows(self, values: list[Any]) -> int:
        lengths = {value.shape[0] if value.dim() else -1 for value in values if isinstance(value, Tensor)}
        if len(lengths) != 1 or -1 in lengths:
            raise UnsupportedCombination(
                f"module {self.name!r} has parameters of its own and no closed form, so every tensor it is "
                f"given must have the rows as its first axis; got first axes {sorted(lengths)}"
            )
        return int(lengths.pop())


def _axis(value: Any) -> Any:
    return tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, value)


def _alone(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.unsqueeze(0) if isinstance(leaf, Tensor) else leaf, value)
