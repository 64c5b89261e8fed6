"""The clipper as its users meet it: what it refuses, what it leaves behind, and how often it works."""

import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from ratewise.exceptions import InvalidInput, InvalidType, UnsupportedCombination
from ratewise.torch import PerRowClipper, SmallCNN, gradients
from ratewise.torch.gradients import Convolved, Geometry


def step(module, x, clip=1.0, clipper=None, **options):
    clipper = clipper or PerRowClipper(module)
    with clipper.recording():
        losses = module(x).flatten(1).square().sum(1)
    return clipper.clipped_sum(losses, clip, **options)


def norm(parts):
    return float(torch.sqrt(sum(part.double().square().sum() for part in parts)))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.SyncBatchNorm(4)])
def test_batch_norm_is_refused_by_name_with_the_remedy(layer):
    with pytest.raises(UnsupportedCombination, match=r"'body\.1'.*BatchNorm.*ModuleValidator\.fix"):
        PerRowClipper(Body(layer))


class Body(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), layer)


@pytest.mark.parametrize(
    ("layer", "remedy"),
    [
        (nn.InstanceNorm1d(4, affine=True, track_running_stats=True), "track_running_stats=False"),
        (nn.LSTM(4, 4), r"ModuleValidator\.fix"),
        (nn.Embedding(4, 4, max_norm=1.0), "without max_norm"),
        (nn.Embedding(4, 4, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (nn.EmbeddingBag(4, 4), "nn.Embedding"),
    ],
)
def test_layers_without_per_row_gradients_are_refused(layer, remedy):
    with pytest.raises(UnsupportedCombination, match=rf"'body\.1'.*{remedy}"):
        PerRowClipper(Body(layer))


def test_frozen_layers_need_no_per_row_gradient():
    body = Body(nn.LSTM(4, 4)).body
    body[1].requires_grad_(False)
    assert len(PerRowClipper(body).parameters) == 2


def test_other_things_are_refused():
    with pytest.raises(InvalidType, match=r"torch\.nn\.Module, got function"):
        PerRowClipper(step)
    with pytest.raises(InvalidInput, match="no trainable parameter"):
        PerRowClipper(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(InvalidInput, match=r"'weight' has type torch\.bfloat16.*autocast"):
        PerRowClipper(nn.Linear(2, 2, dtype=torch.bfloat16))
    with pytest.raises(InvalidInput, match="no shape yet"):
        PerRowClipper(nn.LazyLinear(2))


class Centred(nn.Module):
    """Mixes rows without any layer that could be recognised."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        x = self.inner(x)
        return torch.tanh(x - x.mean(0))


class TimeFirst(nn.Module):
    """Gives its layer the positions where the rows should be."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize(("module", "shape"), [(Centred(), (3,)), (TimeFirst(), (4, 3))])
def test_rows_stay_apart_whatever_the_module_does(module, shape):
    """A batch gives what its rows give one by one, and no layer needs the rows on its first axis."""
    x = torch.randn(4, *shape)
    rows = [step(module, x[i : i + 1]) for i in range(4)]
    for got, *want in zip(step(module, x), *rows, strict=True):
        torch.testing.assert_close(got, sum(want), rtol=1e-5, atol=1e-6)


class Aside(nn.Module):
    """Uses a weight other than through its layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 3)

    def forward(self, ids):
        return functional.linear(self.embedding(ids), self.embedding.weight)


def test_a_weight_used_beside_its_layer_counts():
    module, ids = Aside(), torch.randint(0, 7, (1, 2))
    [got] = step(module, ids, None)
    [want] = torch.autograd.grad(module(ids).square().sum(), [module.embedding.weight])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


class Cell(nn.Module):
    """Has a product that PyTorch cannot run row by row."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 3)

    def forward(self, x):
        return self.cell(x, (x.cos(), x.sin()))[0]


def test_a_module_that_cannot_be_run_row_by_row_is_refused():
    with pytest.raises(UnsupportedCombination, match=r"each row separately.*opacus\.layers"):
        step(Cell(), torch.randn(4, 3))


def test_a_penalty_on_weights_is_refused():
    module = nn.Linear(3, 2)
    clipper = PerRowClipper(module)
    with clipper.recording():
        losses = module(torch.randn(4, 3)).sum(1) + module.weight.square().sum()
    with pytest.raises(UnsupportedCombination, match="'weight' reaches the losses other than"):
        clipper.clipped_sum(losses, 1.0)


def test_losses_must_be_one_per_row_and_recorded():
    module = nn.Linear(3, 2)
    clipper = PerRowClipper(module)
    with clipper.recording():
        out = module(torch.randn(4, 3))
    with pytest.raises(InvalidInput, match=r"one number per row, got shape \(4, 2\)"):
        clipper.clipped_sum(out, 1.0)
    with pytest.raises(InvalidInput, match=r"got shape \(\)"):
        clipper.clipped_sum(out.sum(), 1.0)
    with pytest.raises(InvalidInput, match="do not depend on the module"):
        clipper.clipped_sum(torch.ones(4), 1.0)
    with pytest.raises(InvalidInput, match="clip must be above 0"):
        clipper.clipped_sum(out.sum(1), 0.0)
    with pytest.raises(UnsupportedCombination, match="other than through its layer inside recording"):
        clipper.clipped_sum(module(torch.randn(4, 3)).sum(1), 1.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_adds_nothing(bad):
    module = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    x[2, 1] = bad
    kept = torch.tensor([0, 1, 3])
    for got, want in zip(step(module, x), step(module, x[kept]), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)
    with pytest.raises(InvalidInput, match="not finite") as caught:
        step(module, x, None)
    assert str(bad) not in str(caught.value)
    assert module.weight.grad is None


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (SmallCNN(2), (3, 8, 8)),
        (nn.Sequential(nn.Conv3d(2, 3, 2, padding_mode="circular", padding=1), nn.PReLU()), (2, 4, 4, 4)),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.InstanceNorm1d(3, affine=True)), (3, 4)),
    ],
)
def test_an_empty_batch_gives_zeros(module, shape):
    got = step(module, torch.zeros(0, *shape))
    assert [part.shape for part in got] == [p.shape for p in module.parameters()]
    assert norm(got) == 0.0


def test_parameters_that_no_row_reaches_get_zeros():
    module = Body(nn.Linear(4, 4))
    module.spare = nn.Linear(3, 3)
    module.forward = module.body.forward
    got = step(module, torch.randn(2, 4))
    assert norm(got[:4]) > 0
    assert norm(got[4:]) == 0.0


def test_shared_parameters_are_listed_once():
    tied = nn.ModuleList([nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)])
    tied[1].weight = tied[0].weight
    assert PerRowClipper(tied).parameters == [tied[0].weight]


def test_rows_are_scaled_before_the_clip():
    module = nn.Linear(3, 1)
    x = torch.randn(4, 3)
    scales = torch.tensor([0.0, 1e-3, 1.0, 1e6])
    clipper = PerRowClipper(module)
    got = step(module, x, 0.5, clipper, scale_rows=scales)
    want = [torch.zeros_like(part) for part in got]
    for i in range(4):
        row = [scales[i] * part for part in step(module, x[i : i + 1], None, clipper)]
        factor = min(1.0, 0.5 / max(norm(row), 1e-30))
        want = [total + factor * part for total, part in zip(want, row, strict=True)]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidInput, match=r"scale_rows must be one number per row, got shape \(3,\)"):
        step(module, x, 0.5, clipper, scale_rows=scales[:3])


def test_the_module_is_untouched_outside_recording():
    module = SmallCNN(2)
    keys, attributes = list(module.state_dict()), {k for m in module.modules() for k in m.__dict__}
    clipper = PerRowClipper(module)
    with pytest.raises(RuntimeError, match="stop"), clipper.recording():
        raise RuntimeError("stop")
    got = step(module, torch.randn(3, 3, 8, 8), 1.0, clipper)
    assert list(module.state_dict()) == keys
    assert {k for m in module.modules() for k in m.__dict__} == attributes
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(not part.requires_grad for part in got)
    assert not any(m._forward_hooks or m._backward_hooks for m in module.modules())
    again = pickle.loads(pickle.dumps(module))
    torch.save(module.state_dict(), io.BytesIO())
    torch.testing.assert_close(again(torch.ones(1, 3, 8, 8)), module(torch.ones(1, 3, 8, 8)))


def test_a_forward_of_the_users_own_is_run_and_put_back():
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    module.forward = mine = lambda x: functional.linear(x, 2 * module.weight, module.bias)
    x = torch.randn(1, 3)
    got = step(module, x, None)
    assert module.forward is mine
    want = torch.autograd.grad(module(x).square().sum(), [module.weight, module.bias])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_existing_gradients_are_not_touched():
    module = nn.Linear(3, 2)
    module.weight.grad = torch.full((2, 3), 7.0)
    step(module, torch.randn(4, 3))
    assert bool((module.weight.grad == 7.0).all())


def test_nothing_private_stays_after_the_step():
    clipper = PerRowClipper(module := nn.Linear(3, 2))
    step(module, torch.randn(4, 3), 1.0, clipper)
    assert clipper._shares == {}


def test_replaced_parameters_are_noticed():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    clipper = PerRowClipper(module)
    module[1] = nn.Linear(3, 3)
    with pytest.raises(InvalidInput, match="other trainable parameters"), clipper.recording():
        pass


def test_thawed_parameters_are_noticed():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    clipper = PerRowClipper(module)
    module[0].requires_grad_(True)
    with pytest.raises(InvalidInput, match="other trainable parameters"), clipper.recording():
        pass


def test_one_backward_per_step_and_no_share_of_frozen_layers(monkeypatch):
    passed, kept = [], []
    arrive, keep = PerRowClipper._arrive, PerRowClipper._keep
    monkeypatch.setattr(PerRowClipper, "_arrive", lambda self, *a: passed.append(a[0]) or arrive(self, *a))
    monkeypatch.setattr(
        PerRowClipper, "_keep", lambda self, p, make: keep(self, p, lambda: kept.append(tuple(p.shape)) or make())
    )
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 4), nn.Linear(4, 2))
    module[2].requires_grad_(False)
    clipper = PerRowClipper(module)
    step(module, torch.randn(4, 3), 1.0, clipper)
    assert sorted(passed) == ["0", "2", "3"]
    assert sorted(kept) == [(2,), (2, 4), (3,), (3, 3)]


@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_padding_adds_exactly_nothing(rows, kind):
    """Whatever the padding contains, the sum is bit by bit that of rows of weight 0 in its place."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.ReLU(), nn.Flatten(2),
        nn.Linear(16, 16), nn.Flatten(), nn.Linear(128, 3),
    ).to(kind)  # fmt: skip
    clipper, x = PerRowClipper(module), torch.randn(rows, 3, 4, 4, dtype=kind)
    for counted in {0, 1, rows - 1, rows}:
        with clipper.recording():
            plain = module(x).square().sum(1)
        kept = (torch.arange(rows) < counted).double()
        expected = clipper.clipped_sum(plain, 1.0, scale_rows=kept)
        strange = x.clone()
        strange[counted:] *= 3.0
        strange[counted + 1 :: 2] = float("nan")
        with clipper.recording():
            losses = module(strange).square().sum(1)
        found = clipper.clipped_sum(losses, 1.0, padding=rows - counted)
        assert all(torch.equal(a.double(), b.double()) for a, b in zip(found, expected, strict=True))
        assert counted > 0 or not any(bool(part.any()) for part in found)
    with clipper.recording(), pytest.raises(InvalidInput, match="padding"):
        clipper.clipped_sum(module(x).sum(1), 1.0, padding=-1)


class Forgetful(nn.Module):
    """Drops entries inside a module that has no closed form."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x):
        return functional.dropout(x * self.scale, 0.5)


def test_dropout_is_drawn_once_and_differs_between_rows():
    torch.manual_seed(0)
    clipper = PerRowClipper(module := Forgetful())
    with clipper.recording():
        out = module(torch.ones(3, 64))
    assert not torch.equal(out[0], out[1])
    [total] = clipper.clipped_sum(out.sum(1), None)
    torch.testing.assert_close(total.float(), out.detach().sum(0))  # the same entries as in the forward


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("rows", [1, 6])
def test_bfloat16_autocast_keeps_the_clip(rows):
    """Norms and sums are taken in float32 and float64 of what the passes in bfloat16 brought."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2),
        nn.Flatten(), nn.Linear(288, 64), nn.LayerNorm(64), nn.Linear(64, 2),
    )  # fmt: skip
    clipper = PerRowClipper(module)
    x = 10 * torch.randn(rows, 3, 8, 8)
    with (
        torch.backends.mkldnn.flags(enabled=False),  # virtual machines may announce tiles and forbid them
        torch.autocast("cpu", dtype=torch.bfloat16),
        clipper.recording(),
    ):
        out = module(x)
        losses = out.float().square().sum(1) * 100
    with torch.backends.mkldnn.flags(enabled=False):
        got = clipper.clipped_sum(losses, 0.1)
    assert out.dtype == torch.bfloat16
    assert all(part.dtype in (torch.float32, torch.float64) for part in got)
    assert norm(got) <= rows * 0.1
    if rows == 1:
        assert norm(got) >= 0.1 * (1 - 1e-4)
    exact = step(module, x, 0.1)
    difference = norm([a - b for a, b in zip(got, exact, strict=True)])
    assert norm(got) > 0
    assert difference < 0.2 * norm(exact) * max(1, rows**0.5)


def row_norms(share):
    return share.per_row().double().flatten(1).norm(dim=1)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [(3,), (2, 3), (2, 1, 2)])
def test_both_ways_to_a_convolution_norm_agree(groups, stride, kernel):
    torch.manual_seed(0)
    axes = len(kernel)
    geometry = Geometry((stride,) * axes, (1,) * axes, (2,) * axes, groups)
    x, weight = torch.randn(3, 4, *(6,) * axes).double(), torch.randn(6, 4 // groups, *kernel).double()
    share = Convolved(x, torch.randn_like(geometry.forward(x, weight, None)), weight, geometry)
    want = row_norms(share)
    for way in (share.by_forming, share.by_gram):
        got = way(share.magnitudes())
        assert bool((got >= want).all())
        torch.testing.assert_close(got, want)


def test_the_cheapest_way_to_a_norm_is_taken(monkeypatch):
    """As measured for a residual network on 64 x 64 images: early, first strided, middle and late layers."""
    taken = []
    for way in ("by_forming", "by_gram"):
        monkeypatch.setattr(Convolved, way, lambda self, _, way=way: taken.append(way))
    for channels, size, outputs, stride in [(64, 16, 128, 2), (128, 8, 128, 1), (512, 2, 512, 1)]:
        geometry = Geometry((stride, stride), (1, 1), (1, 1), 1)
        x, weight = torch.zeros(1, channels, size, size), torch.zeros(outputs, channels, 3, 3)
        Convolved(x, geometry.forward(x, weight, None), weight, geometry).norm_bounds(torch.zeros(1))
    assert taken == ["by_forming", "by_gram", "by_gram"]


def test_norms_of_many_rows_are_taken_a_few_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(gradients, "CHUNK", 100)
    torch.manual_seed(0)
    share = gradients.Outer(torch.randn(7, 9, 6), torch.randn(7, 9, 8), torch.Size((6, 8)))
    got = share.by_forming(share.magnitudes())
    assert bool((got >= row_norms(share)).all())
    torch.testing.assert_close(got, row_norms(share), rtol=1e-4, atol=0)


def test_a_faint_factor_beside_a_large_one_is_clipped():
    """The square of 1e-24 is nothing in float32; times 1e18 it is a gradient all the same."""
    module = nn.Linear(3, 2, bias=False)
    x = torch.full((2, 3), 1e18)
    clipper = PerRowClipper(module)
    with clipper.recording():
        losses = module(x).sum(1) * torch.tensor([1e-24, 0.0])
    [total] = clipper.clipped_sum(losses, 1e-7)
    assert 0.0 < float(total.norm()) <= 1e-7


def test_long_sums_of_squares_lose_nothing():
    """A plain float32 sum of this many equal squares is off by more than one part in a hundred thousand."""
    values = torch.full((2, 20_000_000), 0.1)
    want = 20_000_000**0.5 * float(values[0, 0].double())
    assert want <= float(gradients.lengths(values)[0]) <= want * (1 + 1e-5)


class Root(nn.Module):
    """Its loss is finite where its gradient is not."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return self.inner(x).abs().sum(1, keepdim=True).sqrt().sqrt().sqrt()


def test_a_finite_loss_with_an_endless_slope_adds_nothing():
    assert norm(step(Root(), torch.zeros(3, 3))) == 0.0
    with pytest.raises(InvalidInput, match="gradient is not finite"):
        step(Root(), torch.zeros(3, 3), None)
