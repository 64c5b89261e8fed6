"""Networks in PyTorch, trained under differential privacy with constraints; each row runs separately.

`engine` implements the engine protocol of `ratewise.training.loop` with `clipping` (per-row clipped sums);
`estimator` is the classifier with the interface of scikit-learn, `make_private` returns the parts of a training
loop, `trainer` adds ledger, checkpoints and several processes to the training loop, and `networks` contains
networks. Needs ``pip install ratewise[torch]``.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:  # pragma: no cover - a test runs it in a fresh interpreter
    raise ImportError("ratewise.torch needs PyTorch: pip install ratewise[torch]") from error

from ratewise.torch.clipping import PerRowClipper
from ratewise.torch.distributed import Processes, ProcessLost, join, share_of
from ratewise.torch.engine import DatasetRows, TensorRows
from ratewise.torch.estimator import TorchRateConstrainedClassifier
from ratewise.torch.make_private import make_private
from ratewise.torch.networks import MLP, ResNet, SmallCNN, resnet16
from ratewise.torch.trainer import Trainer, network_plan

__all__ = [
    "MLP",
    "DatasetRows",
    "PerRowClipper",
    "ProcessLost",
    "Processes",
    "ResNet",
    "SmallCNN",
    "TensorRows",
    "TorchRateConstrainedClassifier",
    "Trainer",
    "join",
    "make_private",
    "network_plan",
    "resnet16",
    "share_of",
]
