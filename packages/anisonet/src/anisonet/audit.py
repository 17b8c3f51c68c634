"""Does a serialised model feed on the order of the file? Three tests that need no full training, and one of a
trained model.

Annotated data are often stored object by object. A recurrence in the given order then sees the annotation: where it
stands
in the file tells the class. ``label_leakage`` measures how much the order says, ``leakage_probe`` how much of it a
recurrence can use without seeing any geometry, ``order_bias`` what a trained model loses when the order goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from anisonet.clouds import Cloud
from anisonet.curves import Order, serialize
from anisonet.ellipsoid import knn
from anisonet.gisa import GISA
from anisonet.metrics import ConfusionMeter
from anisonet.model import PointNetwork
from anisonet.train import seeded, vote
from papershelf.paper import Progress, silent

INFERENCE_ORDERS: tuple[str, ...] = ("identity", "reverse", "lexicographic", "morton", "hilbert", "random")


# --- of labels only ------------------------------------------------------------------------------------------------


class Leakage(NamedTuple):
    """What the order of the file says about the labels.

    Attributes:
        run_length: mean length of runs of one label.
        shuffled_run_length: the same of shuffled labels.
        run_length_ratio: the first over the second; 1 where the order says nothing.
        information: bits that the position in the file (32 equal parts) has about the label.
        shuffled_information: the same of shuffled labels (the estimator's bias).
        entropy: bits of the labels.
        p_value: share of permutations with at least that much information (one of them is the data).
    """

    run_length: float
    shuffled_run_length: float
    run_length_ratio: float
    information: float
    shuffled_information: float
    entropy: float
    p_value: float


def _information(labels: np.ndarray, classes: int, parts: int) -> float:
    rank = np.arange(len(labels)) * parts // len(labels)
    table = np.bincount(labels * parts + rank, minlength=classes * parts).reshape(classes, parts) / len(labels)
    outer = table.sum(1, keepdims=True) * table.sum(0, keepdims=True)
    used = table > 0
    return float((table[used] * np.log2(table[used] / outer[used])).sum())


def _run_length(labels: np.ndarray) -> float:
    return len(labels) / (1 + int((labels[1:] != labels[:-1]).sum()))


def label_leakage(labels: np.ndarray, rng: np.random.Generator, permutations: int = 200, parts: int = 32) -> Leakage:
    """How much the order of one file says about its labels.

    Args:
        labels: in file order, shape (N,); negative ones are left out.
        rng: of the permutations.
        permutations: of the labels, the null.
        parts: into which the file is cut.

    Raises:
        ValueError: with fewer than two labelled points.
    """
    labels = np.asarray(labels)
    labels = labels[labels >= 0]
    if len(labels) < 2:
        raise ValueError(f"expected at least two labelled points, got {len(labels)}")
    labels = np.unique(labels, return_inverse=True)[1]
    classes, parts = int(labels.max()) + 1, min(parts, len(labels))
    found = _information(labels, classes, parts)
    null, runs = [], []
    for _ in range(permutations):
        mixed = rng.permutation(labels)
        null.append(_information(mixed, classes, parts))
        runs.append(_run_length(mixed))
    share = np.bincount(labels) / len(labels)
    own = _run_length(labels)
    return Leakage(
        own,
        float(np.mean(runs)),
        own / float(np.mean(runs)),
        found,
        float(np.mean(null)),
        float(-(share[share > 0] * np.log2(share[share > 0])).sum()),
        (1 + sum(x >= found - 1e-12 for x in null)) / (1 + permutations),
    )


# --- what a recurrence can use -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """Accuracy of a recurrence that sees noise only, on clouds that it was not trained on.

    Attributes:
        chance: accuracy of always naming the commonest class.
        file_order: trained and tested in file order.
        fed_shuffled: trained in file order, tested on shuffled points.
        shuffled: trained and tested on shuffled points.
    """

    chance: float
    file_order: float
    fed_shuffled: float
    shuffled: float


class _NoiseNetwork(nn.Module):
    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(4, width), GISA(width)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.first(x), counts))


def leakage_probe(
    labels: Sequence[np.ndarray],
    seed: int = 0,
    steps: int = 150,
    batch: int = 8,
    width: int = 64,
    lr: float = 5e-3,
    progress: Progress = silent,
) -> Probe:
    """Train one GISA layer on features that are pure noise, and see what it makes of the order alone.

    Args:
        labels: of every cloud, in file order; the last quarter of the clouds is for testing.
        seed: of everything random.
        steps, batch, width, lr: of the training.
        progress: bar.

    Raises:
        ValueError: with fewer than four clouds.
    """
    if len(labels) < 4:
        raise ValueError(f"expected the labels of at least four clouds, got {len(labels)}")
    held = max(1, len(labels) // 4)
    train, test = list(labels[:-held]), list(labels[-held:])
    classes = int(max(int(x.max()) for x in labels)) + 1
    rng = np.random.default_rng([seed, 17])
    accuracy: dict[tuple[bool, bool], float] = {}
    bar = iter(progress(range(2 * steps), total=2 * steps, label="leakage probe"))
    for keep in (True, False):
        with seeded(seed, torch.device("cpu")):
            model = _NoiseNetwork(classes, width)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        for step in range(steps):
            next(bar, None)
            rate = lr * min(1.0, (step + 1) / 10, (steps - step) / (0.5 * steps))
            for group in optimizer.param_groups:
                group["lr"] = rate
            chosen = [train[i] for i in rng.integers(len(train), size=batch)]
            x, y, counts = _noise(chosen, keep, rng)
            loss = F.cross_entropy(model(x, counts), y, ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for fed in (True, False) if keep else (False,):
                x, y, counts = _noise(test, fed, rng)
                hit = model(x, counts).argmax(1)[y >= 0] == y[y >= 0]
                accuracy[keep, fed] = float(hit.float().mean())
    every = np.concatenate(test)
    every = every[every >= 0]
    chance = float(np.bincount(every).max() / len(every))
    return Probe(chance, accuracy[True, True], accuracy[True, False], accuracy[False, False])


def _noise(
    labels: Sequence[np.ndarray], keep: bool, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ordered = [x if keep else rng.permutation(x) for x in labels]
    y = np.concatenate(ordered).astype(np.int64)
    x = rng.standard_normal((len(y), 4)).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(y), torch.tensor([len(part) for part in ordered])


# --- of a trained model --------------------------------------------------------------------------------------------


class OrderRow(NamedTuple):
    """A model run with its recurrence in one order, against the first order of the table.

    Attributes:
        order: name.
        miou: mean intersection over union (accuracy for classification).
        accuracy: share of right labels.
        logit_change: mean absolute difference of the logits.
        flips: share of labels that change.
        divergence: mean Kullback-Leibler divergence of the probabilities from the first order's, in nats.
    """

    order: str
    miou: float
    accuracy: float
    logit_change: float
    flips: float
    divergence: float


def order_bias(
    model: PointNetwork,
    clouds: Sequence[Cloud],
    orders: Sequence[Order] = INFERENCE_ORDERS,
    up: int = 2,
    seed: int = 0,
    progress: Progress = silent,
) -> list[OrderRow]:
    """Serialisation bias: what changes in a model's answers when only the order of its recurrence changes.

    The points, their neighbourhoods and sub-samples stay the same, as the file stores them.

    Args:
        model: a trained network.
        clouds: with labels.
        orders: of ``curves.ORDERS`` or functions; ``identity`` is the file's order.
        up, seed: as in ``train.vote``.
        progress: bar.
    """
    was = model.training
    model.eval()
    classification = model.cfg.task == "classification"
    rows, reference = [], []
    bar = iter(progress(range(len(orders) * len(clouds)), total=len(orders) * len(clouds), label="orders"))
    for number, order in enumerate(orders):
        meter, change, flips, divergence, points = ConfusionMeter(model.cfg.classes), 0.0, 0, 0.0, 0
        for i, cloud in enumerate(clouds):
            next(bar, None)
            logits = vote(model, cloud, 1, order, up, seed)
            if number == 0:
                reference.append(logits)
            first = reference[i]
            truth = np.array([cloud.label]) if classification else cloud.labels
            if truth is None or truth[0] is None:
                raise ValueError(f"{cloud.name or 'a cloud'}: expected labels, got none")
            meter.update(logits.argmax(1), truth)
            change += float(np.abs(logits - first).mean(1).sum())
            flips += int((logits.argmax(1) != first.argmax(1)).sum())
            p, q = (F.log_softmax(torch.from_numpy(x).double(), 1) for x in (first, logits))
            divergence += float((p.exp() * (p - q)).sum())
            points += len(logits)
        score = meter.accuracy if classification else meter.miou
        name = order if isinstance(order, str) else getattr(order, "__name__", "function")
        rows.append(OrderRow(name, score, meter.accuracy, change / points, flips / points, divergence / points))
    model.train(was)
    return rows


# --- of a curve ----------------------------------------------------------------------------------------------------


class Locality(NamedTuple):
    """How well an order keeps neighbours together.

    Attributes:
        order: name.
        within: share of k-NN pairs at most w steps apart in the sequence, for every w.
        jump: mean distance of consecutive points / mean distance to the nearest neighbour.
        dilation: mean number of steps between neighbours / N.
    """

    order: str
    within: dict[int, float]
    jump: float
    dilation: float


def locality(
    order: Order,
    xyz: torch.Tensor,
    k: int = 8,
    windows: Sequence[int] = (8, 32, 128),
    generator: torch.Generator | None = None,
) -> Locality:
    """Locality of an order on one cloud.

    Args:
        order: of ``curves.ORDERS`` or a function.
        xyz: shape (N, 3), at least two points.
        k: neighbours (without the point itself).
        windows: steps w.
        generator: of the random order.
    """
    n = len(xyz)
    if n < 2:
        raise ValueError(f"expected at least two points, got {n}")
    sequence = serialize(xyz, None, order, generator=generator)
    rank = torch.empty(n, dtype=torch.long).index_copy(0, sequence, torch.arange(n))
    index = knn(xyz, min(k + 1, n))[:, 1:]
    steps = (rank[index] - rank[:, None]).abs().double()
    line = xyz[sequence].double()
    jump = (line[1:] - line[:-1]).norm(dim=1).mean()
    near = (xyz[index[:, 0]] - xyz).double().norm(dim=1).mean()
    name = order if isinstance(order, str) else getattr(order, "__name__", "function")
    return Locality(
        name,
        {w: float((steps <= w).double().mean()) for w in windows},
        float(jump / near.clamp_min(1e-12)),
        float(steps.mean() / n),
    )
