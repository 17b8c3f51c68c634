"""Forecasts: the head on cadre's latents, and the baselines that it is compared with.

Each ``fit_*`` takes a standardised training series (T, d) and gives a function from lookback windows
(n, lookback, d) to forecasts (n, horizon, d).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cadre.baselines import ridge_var

Forecaster = Callable[[np.ndarray], np.ndarray]


class Split(NamedTuple):
    """A series cut 7:1:2 in time and standardised by its first part; ``test`` begins ``lookback`` steps early."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    test_start: int


def split_series(X: np.ndarray, lookback: int) -> Split:
    """Cut and standardise.

    Raises:
        ValueError: if a part is too short for one window.
    """
    X = np.asarray(X, dtype=float)
    first, second = int(0.7 * len(X)), int(0.8 * len(X))
    if first <= lookback or second - first < 2 or len(X) - second < 2:
        raise ValueError(
            f"expected more than {int(lookback / 0.7) + 10} time steps for lookback {lookback}, got {len(X)}"
        )
    mean, sd = X[:first].mean(0), X[:first].std(0)
    if (sd <= 0).any():
        raise ValueError(f"constant series: {np.flatnonzero(sd <= 0).tolist()}")
    Z = (X - mean) / sd
    return Split(Z[:first], Z[first - lookback : second], Z[second - lookback :], mean, sd, second)


def windows_of(X: np.ndarray, lookback: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of lookback (n, lookback, d) and future (n, horizon, d) windows of a series.

    Raises:
        ValueError: if the series is too short for one pair.
    """
    if len(X) < lookback + horizon:
        raise ValueError(f"expected at least {lookback + horizon} time steps, got {len(X)}")
    both = np.lib.stride_tricks.sliding_window_view(X, lookback + horizon, axis=0).transpose(0, 2, 1)
    return both[:, :lookback], both[:, lookback:]


# --- without training --------------------------------------------------------------------------------------------


def fit_persistence(train: np.ndarray, lookback: int, horizon: int) -> Forecaster:
    """The last value."""
    return lambda past: np.repeat(past[:, -1:], horizon, axis=1)


def harmonics(day: np.ndarray, period: float, count: int) -> np.ndarray:
    """Constant, cosines and sines of the season, (n, 1 + 2 count)."""
    angle = 2 * np.pi * np.asarray(day, dtype=float)[:, None] * np.arange(1, count + 1) / period
    return np.concatenate([np.ones((len(angle), 1)), np.cos(angle), np.sin(angle)], axis=1)


def climatology(train: np.ndarray, period: float, count: int = 2) -> Callable[[np.ndarray], np.ndarray]:
    """The seasonal cycle by harmonics, fitted on the training steps 0, 1, ...; gives (n, d) at step numbers (n,)."""
    beta = np.linalg.lstsq(harmonics(np.arange(len(train)), period, count), train, rcond=None)[0]
    return lambda steps: harmonics(steps, period, count) @ beta


def fit_var(train: np.ndarray, lookback: int, horizon: int, most: int = 6, ridge: float = 1e-3) -> Forecaster:
    """A ridge vector autoregression, its order by BIC, iterated."""
    mean, d = train.mean(0), train.shape[1]

    def bic(lags: int) -> float:
        _, residual = ridge_var(train - mean, lags, ridge)
        _, log_det = np.linalg.slogdet(residual.T @ residual / len(residual))
        return len(residual) * log_det + np.log(len(residual)) * lags * d * d

    order = min(range(1, min(most, lookback) + 1), key=bic)
    A, _ = ridge_var(train - mean, order, ridge)

    def forecast(past: np.ndarray) -> np.ndarray:
        history = [past[:, -lag] - mean for lag in range(1, order + 1)]
        found = []
        for _ in range(horizon):
            following = np.sum([h @ a.T for h, a in zip(history, A, strict=True)], axis=0)
            history = [following, *history[:-1]]
            found.append(following + mean)
        return np.stack(found, axis=1)

    return forecast


# --- networks ----------------------------------------------------------------------------------------------------


class DLinear(nn.Module):
    """Trend by a moving average of 25 and remainder, one linear map each, shared by all series (Zeng et al. 2023)."""

    def __init__(self, lookback: int, horizon: int, kernel: int = 25) -> None:
        super().__init__()
        self.kernel = min(kernel, lookback if lookback % 2 else lookback - 1)
        self.trend, self.rest = nn.Linear(lookback, horizon), nn.Linear(lookback, horizon)

    def forward(self, past: Tensor) -> Tensor:
        x = past.mT
        half = self.kernel // 2
        padded = nn.functional.pad(x, (half, half), mode="replicate")
        trend = nn.functional.avg_pool1d(padded, self.kernel, 1)
        return (self.trend(trend) + self.rest(x - trend)).mT


class NLinear(nn.Module):
    """A linear map after taking away the last value (Zeng et al. 2023)."""

    def __init__(self, lookback: int, horizon: int) -> None:
        super().__init__()
        self.map = nn.Linear(lookback, horizon)

    def forward(self, past: Tensor) -> Tensor:
        last = past[:, -1:]
        return self.map((past - last).mT).mT + last


class InvertedTransformer(nn.Module):
    """iTransformer-lite: a token of width 64 a series, 2 encoder layers, 4 heads, instance norm (Liu et al. 2024)."""

    def __init__(self, lookback: int, horizon: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(lookback, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, horizon)

    def forward(self, past: Tensor) -> Tensor:
        mean, sd = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-5
        tokens = self.encoder(self.embed(((past - mean) / sd).mT))
        return self.head(tokens).mT * sd + mean


class Fits(nn.Module):
    """FITS-lite: low-pass the spectrum, stretch it by a complex linear map, invert (Xu et al. 2024)."""

    def __init__(self, lookback: int, horizon: int, keep: float = 0.6) -> None:
        super().__init__()
        self.lookback, self.total = lookback, lookback + horizon
        self.low = max(2, int(keep * (lookback // 2 + 1)))
        self.high = max(2, min(int(self.low * self.total / lookback), self.total // 2 + 1))
        self.real, self.imaginary = (nn.Parameter(torch.zeros(self.high, self.low)) for _ in range(2))
        with torch.no_grad():
            self.real[: self.low, : self.low] += torch.eye(min(self.high, self.low), self.low)[: self.low]

    def forward(self, past: Tensor) -> Tensor:
        mean, sd = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-5
        spectrum = torch.fft.rfft(((past - mean) / sd).mT, dim=-1)[..., : self.low]
        stretched = spectrum @ torch.complex(self.real, self.imaginary).mT
        series = torch.fft.irfft(stretched, n=self.total, dim=-1) * self.total / self.lookback
        return series[..., self.lookback :].mT * sd + mean


class LatentHead(nn.Module):
    """A linear head on the lookback values, with reversible instance normalisation, and on a summary of latents."""

    def __init__(self, lookback: int, horizon: int, d: int, summary: int) -> None:
        super().__init__()
        self.horizon, self.d = horizon, d
        self.series = nn.Linear(lookback, horizon)
        self.latents = nn.Linear(summary, horizon * d)
        nn.init.zeros_(self.latents.weight)
        nn.init.zeros_(self.latents.bias)

    def forward(self, past: Tensor, summary: Tensor) -> Tensor:
        mean, sd = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-5
        straight = self.series(((past - mean) / sd).mT).mT
        return (straight + self.latents(summary).view(-1, self.horizon, self.d)) * sd + mean


def train_network(
    network: nn.Module,
    train: tuple[Tensor, ...],
    validation: tuple[Tensor, ...],
    seed: int = 0,
    epochs: int = 50,
    patience: int = 5,
    batch_size: int = 64,
) -> nn.Module:
    """Adam 1e-3 on the squared error; the best state by validation, stopping after ``patience`` epochs without one.

    The last tensor of each tuple is the target.
    """
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    best, waited, kept = float("inf"), 0, network.state_dict()
    for _ in range(epochs):
        network.train()
        for rows in torch.randperm(len(train[0]), generator=generator).split(batch_size):
            *inputs, target = (part[rows] for part in train)
            loss = (network(*inputs) - target).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        network.eval()
        with torch.no_grad():
            *inputs, target = validation
            error = float((network(*inputs) - target).square().mean())
        if error < best:
            best, waited = error, 0
            kept = {key: value.clone() for key, value in network.state_dict().items()}
        else:
            waited += 1
            if waited >= patience:
                break
    network.load_state_dict(kept)
    return network.eval()


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "dlinear": DLinear,
    "nlinear": NLinear,
    "itransformer": InvertedTransformer,
    "fits": Fits,
}


def _tensor(values: np.ndarray) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values), dtype=torch.float32)


def fit_network(name: str, split: Split, lookback: int, horizon: int, seed: int = 0) -> Forecaster:
    """One of ``NETWORKS``, trained with early stopping on the split's validation part."""
    if name not in NETWORKS:
        raise ValueError(f"expected one of {', '.join(NETWORKS)}, got {name!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # initial weights and dropout of torch's own layers
        network = NETWORKS[name](lookback, horizon)
        train = tuple(map(_tensor, windows_of(split.train, lookback, horizon)))
        validation = tuple(map(_tensor, windows_of(split.validation, lookback, horizon)))
        train_network(network, train, validation, seed)

    def forecast(past: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(_tensor(past)).numpy()

    return forecast


def latent_summary(estimator: Any, past: np.ndarray) -> np.ndarray:
    """What the head sees of the latents: the last and the mean posterior mean, (n, 2 k).

    Args:
        estimator: a fitted :class:`cadre.estimator.CaDReEstimator`.
        past: lookback windows in the units it was fitted to, (n, lookback, d).
    """
    z = estimator.transform(past)
    return np.concatenate([z[:, -1], z.mean(1)], axis=1)


def fit_latent_head(estimator: Any, split: Split, lookback: int, horizon: int, seed: int = 0) -> Forecaster:
    """A direct head on a fitted estimator, whose encoder stays as it is.

    Args:
        estimator: fitted on the split's training part, in the units of the data.
        split: see :func:`split_series`.
        lookback: steps seen.
        horizon: steps ahead.
        seed: of the initial weights and the order of batches.
    """

    def inputs(past: np.ndarray) -> tuple[Tensor, Tensor]:
        return _tensor(past), _tensor(latent_summary(estimator, past * split.sd + split.mean))

    def data(series: np.ndarray) -> tuple[Tensor, ...]:
        past, future = windows_of(series, lookback, horizon)
        return (*inputs(past), _tensor(future))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = LatentHead(lookback, horizon, split.train.shape[1], 2 * estimator.model_.k)
        train_network(head, data(split.train), data(split.validation), seed)

    def forecast(past: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return head(*inputs(past)).numpy()

    return forecast
