"""Modules that have no per-row gradient are refused, by name and with the remedy, before anything runs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination

_FIX = "replace it, for example with opacus.validators.ModuleValidator.fix(module)"


def check_module(module: nn.Module) -> None:
    """Refuse a module in which one row can reach another row's gradient, or whose precision is too low."""
    if not isinstance(module, nn.Module):
        raise InvalidType(f"module must be a torch.nn.Module, got {type(module).__name__}")
    for name, layer in module.named_modules():
        reason = _why_not(layer)
        if reason:
            raise UnsupportedCombination(f"layer {name or 'module'!r} ({type(layer).__name__}) {reason}")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise InvalidInput(f"parameter {name!r} has no shape yet; run the module once on made-up rows")
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise InvalidInput(
                f"parameter {name!r} has type {parameter.dtype}; keep parameters in float32 or float64, "
                "where clipping holds its promise, and use torch.autocast for speed"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInput("module has no trainable parameter; set requires_grad on what is to be learned")


def _why_not(layer: nn.Module) -> str:
    """Return why a layer has no per-row gradient, or nothing."""
    if isinstance(layer, _BatchNorm):
        return f"mixes the rows of a batch, so no row has a gradient of its own; {_FIX}"
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        return "keeps running statistics of private rows; build it with track_running_stats=False"
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and _trains(layer):
        return f"hides its products from per-row clipping; {_FIX}"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (layer.max_norm or layer.scale_grad_by_freq):
        return "lets rows change each other's gradient; build it without max_norm and scale_grad_by_freq"
    if isinstance(layer, nn.EmbeddingBag) and _trains(layer):
        return "has no rows of its own; use nn.Embedding and add up over the bag"
    return ""


def _trains(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters())
