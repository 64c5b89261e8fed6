"""The PyTorch engine: any network whose rows do not mix, one backward per step.

`clipping` holds the numeric heart (per-row clipped sums), `networks` ready-made networks. `trainer` is the
loop, `estimator` the classifier with scikit-learn's manners, `private` the parts for a loop of one's own,
`distributed` and `checkpoint` what longer runs need.
Needs ``pip install ratewise[torch]``.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:  # pragma: no cover - a test runs it in a fresh interpreter
    raise ImportError("ratewise.torch needs PyTorch: pip install ratewise[torch]") from error

from ratewise.torch.clipping import PerRowClipper
from ratewise.torch.data import DatasetRows, TensorRows
from ratewise.torch.defaults import network_plan
from ratewise.torch.distributed import Processes, ProcessLost, join
from ratewise.torch.estimator import TorchRateConstrainedClassifier
from ratewise.torch.networks import MLP, ResNet, SmallCNN, TransformerEncoder, resnet16
from ratewise.torch.private import make_private
from ratewise.torch.sampling import share_of
from ratewise.torch.shards import ShardedRows, shards_from_parquet
from ratewise.torch.trainer import Trainer

__all__ = [
    "MLP",
    "DatasetRows",
    "PerRowClipper",
    "ProcessLost",
    "Processes",
    "ResNet",
    "ShardedRows",
    "SmallCNN",
    "TensorRows",
    "TorchRateConstrainedClassifier",
    "Trainer",
    "TransformerEncoder",
    "join",
    "make_private",
    "network_plan",
    "resnet16",
    "shards_from_parquet",
    "share_of",
]
