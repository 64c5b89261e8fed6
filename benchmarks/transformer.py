"""A small transformer whose attention is built of linear layers, for benchmarks and tests of networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class _Attention(nn.Module):
    """Self-attention built of linear layers, so that every product is seen."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.project(x).reshape(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value)
        return self.out(seen.transpose(1, 2).reshape(rows, length, width))  # type: ignore[no-any-return]


class _EncoderLayer(nn.Module):
    """Attention and two linear layers, each after a layer norm and around a shortcut."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.body = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.body(self.norm2(x))  # type: ignore[no-any-return]


class TransformerEncoder(nn.Module):
    """A small transformer encoder over token ids, averaged over positions into logits."""

    def __init__(
        self, vocabulary: int, num_classes: int, *, length: int = 128, width: int = 128, heads: int = 4,
        layers: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.Sequential(*(_EncoderLayer(width, heads, 4 * width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits of token ids (rows, positions)."""
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        x = self.layers(self.tokens(ids) + self.places(places))
        return self.head(self.norm(x).mean(1))  # type: ignore[no-any-return]
