"""The PyTorch engine: any network whose rows do not mix, one backward per step.

`clipping` holds the numeric heart (per-row clipped sums), `networks` ready-made networks.
Needs ``pip install ratewise[torch]``.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:  # pragma: no cover - a test runs it in a fresh interpreter
    raise ImportError("ratewise.torch needs PyTorch: pip install ratewise[torch]") from error

from ratewise.torch.clipping import PerRowClipper
from ratewise.torch.networks import MLP, ResNet, SmallCNN, TransformerEncoder, resnet16

__all__ = ["MLP", "PerRowClipper", "ResNet", "SmallCNN", "TransformerEncoder", "resnet16"]
