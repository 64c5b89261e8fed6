"""A process that loads PyTorch once and forks trainings, to be killed or to work together.

In a folder given on the command line it trains in one, two and three processes (gloo on loopback), lets one
of three die and two resume, and kills runs at random moments until they end. What happened is written to
result.json there, and whether it was right is for the test to say.
"""

import datetime
import json
import os
import random
import signal
import sys
import time
import traceback
import warnings

import numpy as np
import torch
import torch.distributed as dist

from ratewise import Domain, demographic_parity
from ratewise._files import state_from_bytes
from ratewise.accounting import GaussianEvent, Ledger, PrivacyUnit, TrainingEvent
from ratewise.constraints.compiled import compile_constraints
from ratewise.data.table import code_table, id_units, row_units
from ratewise.exceptions import CertificateWarning, SeedWarning
from ratewise.torch import MLP, ProcessLost, TensorRows, Trainer, join
from ratewise.torch.trainer import CHECKPOINT
from ratewise.training.config import TrainingConfig
from ratewise.training.plan import CERTIFICATE, TRAINING, Plan

N, D, STEPS, EVERY = 600, 5, 40, 5
WORLDS = (1, 2, 3)
CRASHES = ((1, "MEMORY"), (2, "FILE"))
ROWS_PER_ID = 3


def trainer_for(folder, persons=False, **choices):
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(N, D)))
    group = rng.integers(0, 2, N)
    labels = (X[:, 0].numpy() + group + rng.normal(size=N) > 0.5).astype(int)
    compiled = compile_constraints(demographic_parity("sex", max_gap=0.02), Domain((0, 1), {"sex": (0, 1)}))
    event = TrainingEvent(0.2, STEPS, 2.0, 5.0)
    events = {TRAINING: event, CERTIFICATE: GaussianEvent(3.0)}
    units, unit = row_units(N), PrivacyUnit()
    if persons:  # rows of a person are far apart, so that a split by rows would tear them apart
        units = id_units(np.arange(N) % (N // 4), N // 4, ROWS_PER_ID, "id")
        unit = PrivacyUnit("id", column="person", max_rows=ROWS_PER_ID)
    plan = Plan(units.n_units, 0.2, STEPS, events, unit, "zero_out", float("inf"), 1e-5)
    torch.manual_seed(1)
    rows = TensorRows(X, labels, code_table(compiled, labels, {"sex": group})[1])
    module = MLP(D, 2, (6,)).double()
    return Trainer(
        module,
        rows,
        plan,
        compiled,
        config=TrainingConfig(clip=1.0, learning_rate=0.5),
        checkpoint=os.path.join(folder, "run.ckpt"),
        checkpoint_every=EVERY,
        physical_batch=32,
        units=units,
        **choices,
    )


def noting_releases(trainer, folder, pause=0.0):
    """Write a byte just before each release: what was released is never more than what is noted.

    A pause makes a run last, so that a kill finds it at work however fast the machine is.
    """
    place = os.open(os.path.join(folder, "released"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    mechanism = trainer.loop.gradient_mechanism.mechanism

    class Noting:
        def release_parts(self, *arguments):
            os.write(place, b".")
            time.sleep(pause)
            mechanism.release_parts(*arguments)

    trainer.loop.gradient_mechanism.mechanism = Noting()


def noted(folder):
    path = os.path.join(folder, "released")
    return os.path.getsize(path) if os.path.exists(path) else 0


def booked(folder, kind):
    """Return what a resumed run would find in its book."""
    path = os.path.join(folder, "run.ckpt")
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        state = state_from_bytes(file.read(), CHECKPOINT, "the checkpoint")
    ledger = Ledger.open(os.path.join(folder, "book.json")) if kind == "FILE" else None
    ledger = ledger or Ledger.from_json(state["ledger"])
    return ledger.admission(state["admission"]).released[TRAINING]


def one_life(folder, kind):
    ledger = Ledger.at(os.path.join(folder, "book.json")) if kind == "FILE" else None
    trainer = trainer_for(folder, ledger=ledger, random_state=3)
    noting_releases(trainer, folder, pause=0.05)
    trainer.resume()
    trainer.run()


def forked(work, *arguments):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SeedWarning)  # seeds make the runs comparable
        warnings.simplefilter("ignore", CertificateWarning)
        work(*arguments)
        code = 0
    except ProcessLost as problem:
        sys.stderr.write(f"ProcessLost: {problem}\n")
        code = 7
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def crash(folder, seed, kind):
    chance = random.Random(seed)
    lives, codes = [], []
    for life in range(60):
        child = forked(one_life, folder, kind)
        time.sleep(chance.uniform(0.0, 1.0))
        if life < 50:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        codes.append(os.waitstatus_to_exitcode(status))
        lives.append((noted(folder), booked(folder, kind)))
        if codes[-1] != -signal.SIGKILL:
            break
    return {"lives": lives, "codes": codes, "steps": STEPS}


def member(folder, rank, world, dies_at=None, resume=False, persons=False):
    store = os.path.join(folder, f"store-{world}-{resume}")
    patience = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=patience)

    def die(record):
        if record.step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer = trainer_for(folder, persons, processes=join(), random_state=5)
    noting_releases(trainer, folder)
    if resume:
        trainer.resume()
    trainer.run(die)
    flat = torch.cat([p.detach().reshape(-1) for p in trainer.module.parameters()])
    np.savez(
        os.path.join(folder, f"rank{rank}.npz"),
        parameters=flat.numpy(),
        booked=trainer.ledger.events()[0].steps,
        **trainer.history.arrays(),
    )


def together(folder, world, persons=False):
    children = [forked(member, folder, rank, world, None, False, persons) for rank in range(world)]
    return {"codes": [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]}


def orphan(folder):
    children = [forked(member, folder, rank, 3, 12 if rank == 1 else None) for rank in range(3)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    counted = (noted(folder), booked(folder, "MEMORY"))
    children = [forked(member, folder, rank, 2, None, True) for rank in range(2)]
    again = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return {"codes": codes, "counted": counted, "again": again, "at_last": booked(folder, "MEMORY")}


def everything(folder):
    """Do all of it, each in a folder of its own, and return what happened."""
    warm = within(folder, "warm")
    trainer_for(warm).run()  # what PyTorch loads on first use is loaded once, not in every child
    told = {}
    for world in WORLDS:
        told[f"together {world}"] = together(within(folder, f"together-{world}"), world)
    for world in WORLDS[:2]:
        told[f"persons {world}"] = together(within(folder, f"persons-{world}"), world, persons=True)
    told["orphan"] = orphan(within(folder, "orphan"))
    for seed, kind in CRASHES:
        told[f"crash {seed} {kind}"] = crash(within(folder, f"crash-{seed}-{kind}"), seed, kind)
    return told


def within(folder, name):
    path = os.path.join(folder, name)
    os.mkdir(path)
    return path


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = everything(sys.argv[1])
    with open(os.path.join(sys.argv[1], "result.json"), "w") as file:
        json.dump(result, file)
