"""Clipped sums against two oracles that share no code with them: one autograd call per row, and Opacus."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ratewise.torch import PerRowClipper
from ratewise.torch.clipping import clipping_slack
from ratewise.torch.gradients import Convolved, Geometry, small

# PyTorch says so of the oracle's convolutions
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
COMMON = settings(deadline=None, max_examples=40)
ROWS = st.sampled_from([1, 2, 3, 5])
SEED = st.integers(0, 2**20)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def losses_of(module, x):
    """One loss per row that weighs every output differently, large enough for some rows to be clipped."""
    out = module(x).flatten(1)
    weights = torch.cos(torch.arange(out.shape[1], dtype=out.dtype))
    return (out * weights).sum(1) + out.square().sum(1)


def trainable(module):
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def row_gradients(module, x):
    """The gradient of each row, one autograd call per row; dropout-free modules only."""
    wanted = trainable(module)
    for i in range(x.shape[0]):
        loss = losses_of(module, x[i : i + 1]).sum()
        got = torch.autograd.grad(loss, wanted, allow_unused=True)
        yield [torch.zeros_like(p) if g is None else g for p, g in zip(wanted, got, strict=True)]


def clipped(gradients, clip):
    """The clipped sum of given row gradients, norms in float64."""
    total = None
    for parts in gradients:
        norm = torch.sqrt(sum(part.double().square().sum() for part in parts))
        factor = min(1.0, clip / max(float(norm), 1e-300))
        scaled = [part.double() * factor for part in parts]
        total = scaled if total is None else [a + b for a, b in zip(total, scaled, strict=True)]
    return total


def middle_norm(gradients):
    norms = sorted(float(torch.sqrt(sum(p.double().square().sum() for p in parts))) for parts in gradients)
    return max(norms[len(norms) // 2], 1e-6)


def distance(got, want):
    """Difference of two lists of tensors, relative to the second."""
    top = torch.sqrt(sum((a.double() - b).square().sum() for a, b in zip(got, want, strict=True)))
    return float(top / torch.sqrt(sum(b.square().sum() for b in want)).clamp(min=1e-30))


def ours(module, x, clip):
    clipper = PerRowClipper(module)
    with clipper.recording():
        losses = losses_of(module, x)
    return clipper.clipped_sum(losses, clip)


def check(module, x, tolerance=1e-9):
    """The middle row sits on the clip: some rows are clipped and others are not."""
    rows = list(row_gradients(module, x))
    clip = 0.9 * middle_norm(rows)
    assert distance(ours(module, x, clip), clipped(rows, clip)) < tolerance
    plain = [torch.stack(parts).double().sum(0) for parts in zip(*rows, strict=True)]
    assert distance(ours(module, x, None), plain) < tolerance


def check_against_opacus(module, x):
    """In float32, as people train."""
    from opacus.grad_sample import GradSampleModule

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = GradSampleModule(copy.deepcopy(module), loss_reduction="sum")
        losses_of(wrapped, x).sum().backward()
    samples = [parameter.grad_sample for parameter in trainable(wrapped)]
    rows = [[sample[i] for sample in samples] for i in range(x.shape[0])]
    clip = 0.9 * middle_norm(rows)
    # norms are bounded from above, rounding included, so that clipped rows may be a little too short
    assert distance(ours(module, x, clip), clipped(rows, clip)) < 1e-4


@st.composite
def linear_case(draw, dtype=torch.float64, axes=(0, 1, 2)):
    torch.manual_seed(draw(SEED))
    inputs, hidden = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    middle = draw(st.sampled_from([(), (2,), (9,), (3, 2)][: 4 if 2 in axes else 3]))
    module = nn.Sequential(nn.Linear(inputs, hidden, bias=draw(st.booleans())), nn.Tanh(), nn.Linear(hidden, 3))
    return module.to(dtype), torch.randn(draw(ROWS), *middle, inputs, dtype=dtype)


@st.composite
def convolution_case(draw, dtype=torch.float64, modes=("zeros", "reflect", "replicate", "circular")):
    torch.manual_seed(draw(SEED))
    axes = draw(st.integers(1, 3))
    convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(axes))
    stride = tuple(draw(st.integers(1, 2)) for _ in range(axes))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(axes))
    padding = draw(st.sampled_from(["valid", "same", 0, 1]))
    mode = draw(st.sampled_from(modes))
    if padding == "same":
        stride = (1,) * axes
    size = {1: 11, 2: 7, 3: 5}[axes]
    first = convolution(
        4, 4 * draw(st.integers(1, 4)), kernel, stride, padding, dilation, groups, draw(st.booleans()), mode
    )
    second = convolution(first.out_channels, 24, 2, stride=draw(st.integers(1, 2)), padding=1)
    module = nn.Sequential(first, nn.Tanh(), second)
    return module.to(dtype), torch.randn(draw(ROWS), 4, *(size,) * axes, dtype=dtype)


@st.composite
def norm_case(draw, dtype=torch.float64, biases=(True, False)):
    torch.manual_seed(draw(SEED))
    kind = draw(st.sampled_from(["group", "layer", "layers", "instance1", "instance2", "instance3"]))
    axes = {"instance1": 1, "instance3": 3}.get(kind, 2)
    shape = (6, *(4,) * axes)
    norm = {
        "group": lambda: nn.GroupNorm(draw(st.sampled_from([1, 2, 6])), 6),
        "layer": lambda: nn.LayerNorm(4),
        "layers": lambda: nn.LayerNorm((4, 4), bias=draw(st.sampled_from(biases))),
        "instance1": lambda: nn.InstanceNorm1d(6, affine=True),
        "instance2": lambda: nn.InstanceNorm2d(6, affine=True),
        "instance3": lambda: nn.InstanceNorm3d(6, affine=True),
    }[kind]()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes](6, 6, 1)
    module = nn.Sequential(convolution, norm, nn.Tanh(), nn.Flatten(), nn.Linear(6 * 4**axes, 2))
    return module.to(dtype), torch.randn(draw(ROWS), *shape, dtype=dtype)


@st.composite
def embedding_case(draw, dtype=torch.float64, paddings=(None, 0)):
    torch.manual_seed(draw(SEED))
    words = draw(st.integers(2, 12))
    embedding = nn.Embedding(words, 5, padding_idx=draw(st.sampled_from(paddings)))
    module = nn.Sequential(embedding, nn.Tanh(), nn.Linear(5, 3))
    return module.to(dtype), torch.randint(0, words, (draw(ROWS), draw(st.integers(1, 8))))


@given(linear_case())
@COMMON
def test_linear_layers_equal_the_loop(case):
    check(*case)


@given(convolution_case())
@settings(deadline=None, max_examples=150)
def test_convolutions_equal_the_loop(case):
    check(*case)


@given(SEED, ROWS, st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 2), st.integers(1, 2))
@COMMON
def test_late_convolutions_equal_the_loop(seed, rows, axes, groups, stride, dilation):
    """Few positions and many channels: norms come from Gram matrices, sums from one product."""
    torch.manual_seed(seed)
    convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
    layer = convolution(48, 64, 2, stride, dilation, dilation, groups).double()
    x = torch.randn(rows, 48, *(2,) * axes, dtype=torch.float64)
    geometry = Geometry((stride,) * axes, (dilation,) * axes, (dilation,) * axes, groups)
    share = small(Convolved(x, torch.randn_like(layer(x)), layer.weight.detach(), geometry))
    assert isinstance(share, Convolved) or axes == 3
    check(nn.Sequential(layer, nn.Tanh()), x)


@given(norm_case())
@COMMON
def test_norms_equal_the_loop(case):
    check(*case)


@given(embedding_case())
@COMMON
def test_embeddings_equal_the_loop(case):
    check(*case)


@given(
    st.one_of(
        linear_case(torch.float32, axes=(0, 1)),
        convolution_case(torch.float32, modes=("zeros",)),
        norm_case(torch.float32, biases=(True,)),
        embedding_case(torch.float32, paddings=(None,)),
    )
)
@settings(deadline=None, max_examples=120)
def test_sums_equal_those_of_opacus(case):
    """Where Opacus 1.6 has an answer: not for four axes, padding modes, bias-free norms and padding ids."""
    check_against_opacus(*case)


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self, layer, again):
        super().__init__()
        self.layer, self.again = layer, again

    def forward(self, x):
        x = self.layer(x)
        for _ in range(self.again):
            x = self.layer(torch.tanh(x))
        return x


class Tied(nn.Module):
    """Embedding and output layer share one weight; width and length decide which way norms are taken."""

    def __init__(self, words, width, *, extra):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = self.embedding.weight
        self.extra = nn.Linear(words, words) if extra else nn.Identity()

    def forward(self, ids):
        return self.extra(self.out(torch.tanh(self.embedding(ids))))


@given(SEED, ROWS, st.integers(1, 3), st.sampled_from(["vector", "sequence", "wide", "convolution", "norm"]))
@COMMON
def test_layers_called_again_equal_the_loop(seed, rows, again, kind):
    torch.manual_seed(seed)
    layer, shape = {
        "vector": (nn.Linear(6, 6), (6,)),
        "sequence": (nn.Linear(4, 4), (9, 4)),
        "wide": (nn.Linear(24, 24), (2, 24)),
        "convolution": (nn.Conv2d(16, 16, 3, padding=1), (16, 2, 2)),
        "norm": (nn.GroupNorm(2, 4), (4, 3)),
    }[kind]
    check(Twice(layer, again).double(), torch.randn(rows, *shape, dtype=torch.float64))


@given(SEED, ROWS, st.integers(1, 7), st.sampled_from([(3, 4), (50, 40)]), st.booleans())
@COMMON
def test_tied_weights_equal_the_loop(seed, rows, length, sizes, extra):
    torch.manual_seed(seed)
    check(Tied(*sizes, extra=extra).double(), torch.randint(0, sizes[0], (rows, length)))


class Scaled(nn.Module):
    """Parameters of its own around a child: no closed form."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 5))
        self.inner = nn.Linear(5, 5)

    def forward(self, x):
        return self.inner(torch.cat([self.token.expand(x.shape[0], 1, 5), x], dim=1)) * self.token


class Listed(nn.Module):
    """Keeps its parameters in a list."""

    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([torch.randn(5), torch.randn(5)])
        self.inner = nn.Linear(5, 5)

    def forward(self, x):
        return self.inner(x * self.scales[0]) * self.scales[1]


class Gate(nn.Module):
    """Has parameters of its own, and takes rows in a tuple."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(5))

    def forward(self, x, state):
        return torch.sigmoid(x * self.scale) * state[0] + state[1]


class Gated(nn.Module):
    """Calls a module with a tuple of tensors."""

    def __init__(self):
        super().__init__()
        self.first, self.gate = nn.Linear(5, 5), Gate()

    def forward(self, x):
        hidden = self.first(x)
        return self.gate(x, (hidden, hidden.sin()))


OTHERS = {
    "rows in a tuple": (Gated, (3, 5)),
    "parameter list": (Listed, (3, 5)),
    "prelu": (lambda: nn.PReLU(5), (5, 3)),
    "rms": (lambda: nn.RMSNorm(5), (3, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2), (4, 3, 3)),
    "own parameters": (Scaled, (3, 5)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), (5,)),
    "encoder": (lambda: nn.Sequential(nn.Linear(5, 5), Scaled(), nn.PReLU()), (3, 5)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # so PyTorch says of weight norm
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("rows", [1, 4])
def test_modules_without_a_closed_form_equal_the_loop(name, rows):
    torch.manual_seed(len(name))
    make, shape = OTHERS[name]
    module = nn.Sequential(make(), nn.Flatten(), nn.Tanh()).double()
    check(module, torch.randn(rows, *shape, dtype=torch.float64))


class Last(nn.Module):
    """What a recurrent layer says at the end."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.out = layer, nn.Linear(6, 2)

    def forward(self, x):
        return self.out(self.layer(x)[0][:, -1])


class Attention(nn.Module):
    """Self-attention of Opacus."""

    def __init__(self):
        super().__init__()
        from opacus.layers import DPMultiheadAttention

        self.attention, self.out = DPMultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.out(self.attention(x, x, x)[0]).mean(1)


@pytest.mark.parametrize("kind", ["DPLSTM", "DPGRU", "DPRNN", "attention"])
@pytest.mark.parametrize("rows", [1, 4])
def test_recurrent_and_attention_layers_of_opacus(kind, rows):
    import opacus.layers

    torch.manual_seed(rows)
    if kind == "attention":
        module = Attention()
    else:
        module = Last(getattr(opacus.layers, kind)(3, 6, num_layers=2, batch_first=True))
    x = torch.randn(rows, 5, 6 if kind == "attention" else 3)
    check(module.double(), x.double())
    check_against_opacus(module.float(), x)


class Encoder(nn.Module):
    """An encoder layer of PyTorch, made fit by Opacus."""

    def __init__(self):
        super().__init__()
        from opacus.validators import ModuleValidator

        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.layer = ModuleValidator.fix(layer)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("rows", [1, 3])
def test_an_encoder_layer_fixed_by_opacus_equals_the_loop(rows):
    torch.manual_seed(rows)
    check(Encoder().double(), torch.randn(rows, 4, 8, dtype=torch.float64))


@given(SEED, st.sampled_from([(0,), (2,), (0, 2), (1, 3)]))
@COMMON
def test_frozen_parameters_count_in_no_norm(seed, frozen):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv1d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 5)).double()
    for number in frozen:
        list(module.parameters())[number].requires_grad_(False)
    check(module, torch.randn(4, 3, 8, dtype=torch.float64))


@given(SEED, st.floats(1e-3, 1e3), st.sampled_from(["sequence", "pixels", "patches", "direct"]))
@COMMON
def test_no_row_passes_the_clip_in_float32(seed, size, kind):
    """Where a row's gradient is a small difference of terms that are thousands of times larger."""
    torch.manual_seed(seed)
    module, x = {
        "sequence": (nn.Linear(256, 128), torch.randn(1, 8, 256)),
        "pixels": (nn.Conv2d(128, 128, 3), torch.randn(1, 128, 5, 5)),
        "patches": (nn.Conv1d(128, 128, 1, stride=4), torch.randn(1, 128, 16)),
        "direct": (nn.Conv1d(16, 16, 3), torch.randn(1, 16, 16)),
    }[kind]
    positions = 1 if kind == "sequence" else tuple(range(2, x.dim()))
    x = size * (x + 1000 * torch.randn_like(x.sum(positions, keepdim=True)))
    clipper = PerRowClipper(module)
    with clipper.recording():
        out = module(x)
        weights = torch.randn_like(out)
        losses = (out * (weights - weights.mean(positions, keepdim=True))).flatten(1).sum(1)
    total = clipper.clipped_sum(losses, 1e-3 * size)
    norm = torch.sqrt(sum(part.double().square().sum() for part in total))
    assert 1e-6 * size <= float(norm) <= 1e-3 * size * (1 + clipping_slack(1))


@given(SEED, st.integers(0, 4), st.floats(0.01, 10.0))
@COMMON
def test_removing_a_row_moves_the_sum_by_at_most_the_clip(seed, removed, clip):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv1d(2, 6, 3), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(36, 3))
    x = torch.randn(5, 2, 8) * 3
    kept = torch.arange(5) != removed
    moved = [a - b for a, b in zip(ours(module, x, clip), ours(module, x[kept], clip), strict=True)]
    assert float(torch.sqrt(sum(part.double().square().sum() for part in moved))) <= clip * (1 + clipping_slack(5))
