"""Ready-made networks: their sizes, and that their rows do not mix."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ratewise.torch import MLP, PerRowClipper, SmallCNN, resnet16

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.transformer import TransformerEncoder

CASES = {
    "resnet16": (lambda: resnet16(3), lambda rows: torch.randn(rows, 3, 32, 32)),
    "small cnn": (lambda: SmallCNN(3, width=8), lambda rows: torch.randn(rows, 3, 8, 8)),
    "mlp": (lambda: MLP(12, 3, hidden=(8, 8)), lambda rows: torch.randn(rows, 3, 4)),
    "transformer": (
        lambda: TransformerEncoder(20, 3, length=9, width=8, heads=2),
        lambda rows: torch.randint(0, 20, (rows, 7)),
    ),
}


def test_resnet16_is_the_network_of_the_paper():
    """Blocks 2, 2, 2, 1, widths 64 to 512, group norm with 16 groups: 6.46 million parameters.

    By hand: stem 9,408 + 128; four stages 147,968 + 525,568 + 2,099,712 + 3,673,088; head 512 * K + K.
    """
    module = resnet16(2)
    assert sum(parameter.numel() for parameter in module.parameters()) == 6_455_872 + 2 * 512 + 2
    assert 9_408 + 128 + 147_968 + 525_568 + 2_099_712 + 3_673_088 == 6_455_872
    norms = [layer for layer in module.modules() if isinstance(layer, nn.GroupNorm)]
    assert {layer.num_groups for layer in norms} == {16}
    assert [block.conv1.out_channels for block in module.stages] == [64, 64, 128, 128, 256, 256, 512]
    sixteen = [m for m in module.modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)]
    assert len(sixteen) + 1 == 16


def test_resnet16_takes_images_of_64_by_64():
    sizes = []
    module = resnet16(2).eval()
    for block in module.stages:
        block.register_forward_hook(lambda _module, _x, out: sizes.append(tuple(out.shape[1:])))
    with torch.no_grad():
        assert module(torch.zeros(1, 3, 64, 64)).shape == (1, 2)
    assert sizes[::2] == [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]


@pytest.mark.parametrize("name", CASES)
def test_rows_do_not_mix(name):
    torch.manual_seed(0)
    make, inputs = CASES[name]
    module, x = make(), inputs(3)
    together = module(x)
    assert together.shape == (3, 3)
    for i in range(3):
        torch.testing.assert_close(module(x[i : i + 1])[0], together[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_one_row_is_clipped_as_by_hand(name):
    torch.manual_seed(0)
    make, inputs = CASES[name]
    module, x = make(), inputs(1)
    clipper = PerRowClipper(module)
    with clipper.recording():
        losses = module(x).square().sum(1)
    got = clipper.clipped_sum(losses, 0.1)
    module(x).square().sum().backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    norm = torch.sqrt(sum(gradient.double().square().sum() for gradient in gradients))
    for part, gradient in zip(got, gradients, strict=True):
        torch.testing.assert_close(part.float(), gradient * min(1.0, 0.1 / float(norm)), rtol=1e-3, atol=1e-6)
