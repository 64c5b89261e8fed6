"""The mutation set for networks: holes that were found and closed, opened again; the audit must see each.

A mutant patches one function of `ratewise.torch`. Numbers refer to the findings in docs/threat-model.md.
"""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

from ratewise.exceptions import InvalidInput
from ratewise.mechanisms.randomness import RandomStreams
from ratewise.torch import audit, clipping, engine, gradients, isolation, trainer
from ratewise.torch.clipping import PerRowClipper
from ratewise.torch.distributed import TotalRelease

torch.set_num_threads(1)


def noise_of_pytorch(patch):
    """Finding 1: continuous noise from a generator of PyTorch, whose state can be recovered."""

    def release(self, value, rng):
        noisy = [part + self.mechanism.standard_deviation * torch.randn(part.shape) for part in value]
        return [part.to(given) for part, given in zip(noisy, self._like, strict=True)]

    patch.setattr(TotalRelease, "release", release)


def seeded_noise(patch):
    """Finding 1: the secure source replaced by a generator that repeats."""
    import numpy as np

    streams = RandomStreams.from_seed

    def repeated(seed=None, use=""):
        return streams(np.random.default_rng(4) if seed is None else seed, use)

    patch.setattr(RandomStreams, "from_seed", repeated)
    patch.setattr(trainer.Trainer, "note_seed", lambda *_: None)


def norms_without_rounding(patch):
    """Finding 2: norms as if Gram matrices were exact, while the sum is another product."""

    def bounds(share):
        found = share.magnitudes()
        return share.by_gram(0 * found) if type(share) is gradients.Outer else found, 0 * found

    patch.setattr(clipping, "bounds", bounds)


def clip_of_each_layer(patch):
    """Finding 2: the clip bounds every parameter by itself, not all of them together."""
    weights = clipping._weights

    def largest(parts, scales, clip, units):
        return torch.stack([weights([one], scales, clip, units) for one in parts]).amax(0)

    patch.setattr(clipping, "_weights", largest)


def masks_of_pytorch(patch):
    """Finding 4: dropout masks from PyTorch's generator, by position in the batch."""
    patch.setattr(isolation, "draws_by_row", lambda *_: nullcontext())


def masks_by_position(patch):
    """Finding 4: masks of the secure source that belong to places in the batch, not to rows."""
    bytes_of = isolation.RowRandomness.bytes

    def by_position(self, rows, each):
        self._rows = []
        return bytes_of(self, rows, each)

    patch.setattr(isolation.RowRandomness, "bytes", by_position)


def errors_for_rows(patch):
    """Finding 5: a gradient that is not finite ends the training."""
    weights = clipping._weights

    def raising(parts, scales, clip, units):
        found = weights(parts, scales, clip, units)
        if bool(((found == 0) & (scales != 0)).any()):
            raise InvalidInput("a gradient is not finite")
        return found

    patch.setattr(clipping, "_weights", raising)
    patch.setattr(engine.TorchEngine, "_total_sums", lambda self, block, clip, _: self._block_sums(block, clip))


def whole_batches(patch):
    """Finding 9: layers are recorded one by one, and the module sees the whole batch."""

    @contextmanager
    def recording(self):
        for layer, tapped in self._layers.items():
            layer.__dict__["forward"] = tapped.on_batch
        try:
            yield self.module
        finally:
            for layer in self._layers:
                del layer.__dict__["forward"]

    patch.setattr(PerRowClipper, "recording", recording)


def losses_of_whole_batches(patch):
    """Finding 9: the loss sees the whole batch."""
    patch.setattr(engine, "_by_row", lambda loss: loss)


def kept_tensors(patch):
    """Finding 9: a module may keep tensors of its rows for the next batch."""
    patch.setattr(isolation._Watch, "refuse_traces", lambda self: None)


def caught_errors(patch):
    """Finding 9: a module may go on after an error that one row brings about."""
    refuse = isolation._Watch.refuse_traces

    def only_kept(self):
        self._failed = ""
        refuse(self)

    patch.setattr(isolation._Watch, "refuse_traces", only_kept)


def calls_of_whole_batches(patch):
    """Finding 9: rows are separated inside of the module's call, which the class may replace."""

    @contextmanager
    def recording(self):
        with clipping._called_as(self.module, self._forward):
            yield self.module

    patch.setattr(PerRowClipper, "recording", recording)


def parameters_of_any_kind(patch):
    """Finding 9: the closed forms of layers are used for parameters that compute something else."""
    patch.setattr(clipping, "_closed_form", lambda layer: clipping._RULES.get(type(layer)))


def draws_on_the_way_back(patch):
    """Finding 4: functions of the module are isolated forwards only."""
    patch.setattr(isolation._Watch, "_observed", lambda self, rule: rule)
    patch.setattr(engine, "refuse_uncontrolled", lambda *_: None)  # which sees it too


def counted_batches(patch):
    """Finding 9: what a module counts are batches, whose number depends on the sample."""
    patch.setattr(engine, "untouched_state", lambda *_: nullcontext())


def batches_without_blanks(patch):
    """Finding 5: what fails on blanks only fails where a sample is filled up with them."""
    patch.setattr(engine.Batch, "padded", lambda self: self.spread(slice(n := len(self.labels)), -(-n // 8) * 8))
    patch.setattr(engine.TorchEngine, "_stateful", property(lambda self: False, lambda self, _: None), raising=False)


def items_in_order(patch):
    """Finding 4: data sets draw from global generators, row by row."""

    @contextmanager
    def draws(rows):
        yield iter(rows)

    patch.setattr(engine, "draws_of_items", draws)


def values_read(patch):
    """Finding 9: a condition on the batch is evaluated before rows are separated."""
    run = isolation.run_by_row

    def mapped(function, values, what):
        if what == "module":
            batch = values[2][0]
            if batch.dtype.is_floating_point and bool(batch.max() > 3):
                values = (values[0], values[1], (100 * batch,), values[3])
        return run(function, values, what)

    patch.setattr(clipping, "run_by_row", mapped)


def repeated_rows(patch):
    """Finding 9: a row counts as often as the batch is large."""
    summed = PerRowClipper.clipped_sum

    def clipped_sum(self, losses, clip, **options):
        found = summed(self, losses, clip, **options)
        return [len(losses) / 8 * part for part in found]

    patch.setattr(PerRowClipper, "clipped_sum", clipped_sum)


CLIPPING, ISOLATION, NOISE = (audit.check_network_clipping, audit.check_network_isolation, audit.check_network_noise)
TRACES = audit.check_network_traces
MUTANTS = [
    (noise_of_pytorch, NOISE),
    (seeded_noise, NOISE),
    (norms_without_rounding, CLIPPING),
    (clip_of_each_layer, CLIPPING),
    (masks_of_pytorch, audit.check_network_dropout),
    (masks_by_position, audit.check_network_dropout),
    (errors_for_rows, CLIPPING),
    (whole_batches, ISOLATION),
    (losses_of_whole_batches, ISOLATION),
    (kept_tensors, ISOLATION),
    (caught_errors, ISOLATION),
    (calls_of_whole_batches, ISOLATION),
    (parameters_of_any_kind, ISOLATION),
    (draws_on_the_way_back, ISOLATION),
    (counted_batches, TRACES),
    (batches_without_blanks, TRACES),
    (items_in_order, TRACES),
    (values_read, ISOLATION),
    (repeated_rows, CLIPPING),
]


def test_no_alarm_for_the_code_as_it_is():
    found = list(audit.network_checks())
    assert [check.name for check in found if not check.passed] == []
    assert len(found) == 5


@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_every_mutant_is_caught(mutant, check, monkeypatch):
    mutant(monkeypatch)
    found = check()
    assert not found.passed, str(found)


def test_a_custom_module_is_measured():
    """The measure itself: a sum that is not clipped moves by more than a clip."""
    module = nn.Linear(4, 2)
    nn.init.zeros_(module.weight)
    engine = audit._engine(module, audit._large(50.0))
    assert audit._move(engine) <= 1.0 + engine.slack(12)
    sums = engine.sums
    engine.sums = lambda rows, clip, step: sums(rows, clip=7.0 * clip, step=step)
    assert audit._move(engine) > 5.0
