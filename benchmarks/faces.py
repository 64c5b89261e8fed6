"""A network on faces: gender as label, race as group, demographic parity, with and without privacy.

    python -m benchmarks faces [--data utkface|celeba] [--network resnet16|small] [--side 32] [--epochs 10]
                               [--epsilon 8] [--max-gap 0.05] [--limit ROWS] [--out faces.jsonl]
                               [--plot curve.png] [--draw faces.jsonl]

Trains four networks: with and without privacy, with and without the limit. Pictures are split by a hash of
their content, so that copies of a picture are on one side: about a fifth is held out and only read to
evaluate. Each line of the output is one evaluation of one network, once per epoch, with the error and the
largest gap between a race and the rest, on held-out rows, and epsilon as the ledger has it.

UTKFace and CelebA are found as `ratewise.datasets` finds them ($RATEWISE_DATA); CelebA is for whoever has the
images: ``--data celeba --network resnet16 --side 64`` with the label "Smiling" and the group "Male".
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ratewise import Domain, demographic_parity
from ratewise.accounting import Budget, Ledger
from ratewise.constraints.compiled import compile_constraints
from ratewise.data.table import code_labels, code_table
from ratewise.datasets import load_celeba, load_utkface
from ratewise.torch import SmallCNN, TensorRows, Trainer, network_plan, resnet16
from ratewise.torch.networks import Bounded
from ratewise.training.config import TrainingConfig

CASES = {  # private, limited
    "private-limited": (True, True),
    "plain-limited": (False, True),
    "private-free": (True, False),
    "plain-free": (False, False),
}
NAMES = {"resnet16": "ResNet16", "small": "SmallCNN"}
HELD_OUT = 5  # one in so many pictures


def pictures(options: argparse.Namespace) -> dict[str, Any]:
    """Return pictures as bytes, codes of labels and groups, and which are held out."""
    images = load_utkface() if options.data == "utkface" else load_celeba()
    column = "race" if options.data == "utkface" else next(iter(images.group_values))
    rows = np.arange(len(images))[: options.limit]
    marks = images.frame["content" if "content" in images.frame else "file"].to_numpy()[rows]
    held_out = np.array([_number(str(mark)) % HELD_OUT == 0 for mark in marks])
    return {
        "x": torch.from_numpy(images.images(rows, size=options.side)),
        "labels": images.y[rows],
        "groups": images.sensitive[column].to_numpy()[rows],
        "column": column,
        "domain": Domain(images.classes, {column: images.group_values[column]}),
        "held_out": held_out,
    }


def _number(mark: str) -> int:
    """Return a number for a hash of the content, or for a file's name where no hash is known."""
    try:
        return int(mark[:8], 16)
    except ValueError:
        return zlib.crc32(mark.encode())


def network(options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(options.seed)
    body = resnet16(2) if options.network == "resnet16" else SmallCNN(2, width=32)
    return nn.Sequential(Bounded((0, 255), (3, options.side, options.side)), body)


@torch.no_grad()
def evaluate(module: nn.Module, data: dict[str, Any], part: Any) -> dict[str, float]:
    """Return the error, and the largest gap in predicted classes between a group and the rest."""
    rows = np.flatnonzero(part)
    found = np.concatenate([module(data["x"][piece]).argmax(1).numpy() for piece in np.array_split(rows, 20)])
    labels = code_labels(data["labels"][rows], data["domain"])
    groups = data["groups"][rows]
    gaps = [
        abs(found[groups == value].mean() - found[groups != value].mean())
        for value in data["domain"].columns[data["column"]]
        if (groups == value).any()
    ]
    return {"error": float((found != labels).mean()), "gap": float(max(gaps))}


def on_training_rows(module: nn.Module, data: dict[str, Any]) -> dict[str, float]:
    return {f"train_{name}": value for name, value in evaluate(module, data, ~data["held_out"]).items()}


def run(options: argparse.Namespace, data: dict[str, Any], private: bool, limited: bool) -> Iterator[Any]:
    """Train one network and yield an evaluation per epoch."""
    part = np.flatnonzero(~data["held_out"])
    limit = demographic_parity(data["column"], max_gap=options.max_gap) if limited else None
    compiled = compile_constraints(limit, data["domain"]) if limited else None
    labels, cells = code_labels(data["labels"][part], data["domain"]), None
    if compiled is not None:
        labels, cells = code_table(compiled, data["labels"][part], {data["column"]: data["groups"][part]})
    module = network(options)
    epsilon = options.epsilon if private else None
    config = TrainingConfig(momentum=0.9, learning_rate=options.learning_rate)
    plan = network_plan(
        len(part), config, epsilon=epsilon, delta=options.delta, constrained=limited, epochs=options.epochs
    )
    cap = None if epsilon is None else Budget(epsilon, options.delta)
    trainer = Trainer(
        module,
        TensorRows(data["x"][torch.from_numpy(part)], labels, cells),
        plan,
        compiled,
        config=config,
        n_classes=2,
        ledger=Ledger(cap=cap),
        physical_batch=64,
    )
    start, spent = time.perf_counter(), time.process_time()
    every = max(1, round(1 / plan.sampling_rate))
    for record in trainer.steps():
        if record.step % every and record.step != plan.steps:
            continue
        found = trainer.fitted_module()
        yield {
            "data": options.data,
            "network": options.network,
            "side": options.side,
            "rows": len(part),
            "held_out": int(data["held_out"].sum()),
            "private": private,
            "max_gap": options.max_gap if limited else None,
            "step": record.step,
            "steps": plan.steps,
            "epoch": record.step * plan.sampling_rate,
            **evaluate(found, data, data["held_out"]),
            **(on_training_rows(found, data) if record.step == plan.steps else {}),
            "released_worst": None if record.values is None else float(record.values.max()),
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - spent,
        }
    event, certificate = plan.training, trainer.certify()
    yield {
        "data": options.data,
        "network": options.network,
        "private": private,
        "max_gap": options.max_gap if limited else None,
        "done": True,
        "epsilon": None if epsilon is None else trainer.ledger.total(options.delta),
        "delta": options.delta,
        "event": None if event is None else event.to_dict(),
        "certificate": None if certificate is None else str(certificate),
    }


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """Draw error and gap by epoch, one row of axes per network."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    networks = sorted({line["network"] for line in lines})
    size = {"figsize": (9, 3.2 * len(networks)), "layout": "constrained", "squeeze": False}
    figure, axes = pyplot.subplots(len(networks), 2, **size)
    for name, (left, right) in zip(networks, axes, strict=True):
        draw(left, right, [line for line in lines if line["network"] == name])
        left.set_title(NAMES[name], loc="left", fontsize=10)
    figure.savefig(path, dpi=110)


def draw(left: Any, right: Any, lines: list[dict[str, Any]]) -> None:
    for private, limited in CASES.values():
        kept = [
            line
            for line in lines
            if "step" in line and line["private"] == private and (line["max_gap"] is not None) == limited
        ]
        if not kept:
            continue
        name = f"{'private' if private else 'not private'}, {'limited' if limited else 'free'}"
        style = {"color": "C3" if private else "C0", "ls": "-" if limited else ":", "label": name}
        epochs = [line["epoch"] for line in kept]
        left.plot(epochs, [line["error"] for line in kept], **style)
        right.plot(epochs, [line["gap"] for line in kept], **style)
        right.plot(
            epochs[-1], kept[-1]["train_gap"], "o", color=style["color"], mfc=style["color"] if limited else "white"
        )
    for bound in {line["max_gap"] for line in lines if line.get("max_gap")}:
        right.axhline(bound, color="black", lw=0.8)
    left.set(xlabel="epoch", ylabel="error, held-out rows", ylim=(0, None))
    right.set(xlabel="epoch", ylabel="largest gap of a group", ylim=(0, None))
    right.set_title("lines: held-out rows; dots: training rows, at the end", loc="right", fontsize=8)
    left.legend(frameon=False, fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("utkface", "celeba"), default="utkface")
    parser.add_argument("--network", choices=("resnet16", "small"), default="resnet16")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--learning-rate", type=float, default=None)
    parser.add_argument("--max-gap", type=float, default=0.05)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--draw", type=Path, default=None, metavar="LINES", help="only draw recorded lines")
    options = parser.parse_args()
    if options.draw is not None:
        plot([json.loads(line) for line in options.draw.read_text().splitlines()], options.plot)
        return
    warnings.simplefilter("ignore", UserWarning)
    torch.set_num_threads(1)
    data = pictures(options)
    lines = []
    for case in options.cases:
        for line in run(options, data, *CASES[case]):
            print(json.dumps(line), flush=True)
            lines.append(line)
    if options.out is not None:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if options.plot is not None:
        plot(lines, options.plot)


if __name__ == "__main__":
    main()
