"""Series with a known graph among the observed, hidden drivers, and the drivers' own dynamics.

``adjacency[i, j] != 0`` means j -> i throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cadre.metrics import wind_graph
from cadre.structure import break_cycles, great_circle_km, knn_mask, topological_order

REGIMES = ("independent", "sparse", "dense")
EDGES = ("linear", "tanh", "mlp", "gp")
NOISES = ("gauss", "laplace", "uniform", "heteroscedastic")


@dataclass(frozen=True)
class Simulated:
    """A simulated data set.

    Attributes:
        x: observed, (N, T, d_x): N independent windows of length T.
        z: latents, (N, T, d_z).
        s: dependent noise, (N, T, d_x).
        B: weights of the observed graph, (d_x, d_x).
        latent_lagged: (L, d_z, d_z), bool; index l is lag l + 1.
        latent_instant: (d_z, d_z), bool.
        domain: (N,), or None.
        coords: latitude and longitude, (d_x, 2), or None.
    """

    x: np.ndarray
    z: np.ndarray
    s: np.ndarray
    B: np.ndarray
    latent_lagged: np.ndarray
    latent_instant: np.ndarray
    domain: np.ndarray | None = None
    coords: np.ndarray | None = None


def leaky_relu(a: np.ndarray, slope: float = 0.2) -> np.ndarray:
    """max(a, slope a)."""
    return np.where(a > 0, a, slope * a)


def _checked(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if "d_z" in sizes and sizes["d_z"] > sizes["d_x"]:
        raise ValueError(f"d_z must be at most d_x = {sizes['d_x']}, got {sizes['d_z']}")


# --- observed graphs ---------------------------------------------------------------------------------------------


def er_graph(d: int, rng: np.random.Generator, degree: float = 1.0, low: float = 0.6, high: float = 1.2) -> np.ndarray:
    """A random DAG with an expected ``degree`` edges a node and weights +-U(low, high), in a random causal order."""
    _checked(d=d)
    order = rng.permutation(d)
    forward = np.tri(d, k=-1, dtype=bool)
    edges = forward & (rng.random((d, d)) < min(1.0, 2 * degree / max(d - 1, 1)))
    weights = np.where(edges, rng.choice([-1.0, 1.0], (d, d)) * rng.uniform(low, high, (d, d)), 0.0)
    B = np.zeros((d, d))
    B[np.ix_(order, order)] = weights
    return B


def scale_free_graph(
    d: int, rng: np.random.Generator, edges: int = 1, low: float = 0.6, high: float = 1.2
) -> np.ndarray:
    """A DAG by preferential attachment: each new node gets ``edges`` causes, well-connected ones more often."""
    _checked(d=d, edges=edges)
    B, degree = np.zeros((d, d)), np.ones(d)
    order = rng.permutation(d)
    for position in range(1, d):
        earlier, node = order[:position], order[position]
        chosen = rng.choice(earlier, min(edges, position), replace=False, p=degree[earlier] / degree[earlier].sum())
        B[node, chosen] = rng.choice([-1.0, 1.0], len(chosen)) * rng.uniform(low, high, len(chosen))
        degree[chosen] += 1
        degree[node] += len(chosen)
    return B


def geographic_graph(
    lat: np.ndarray, lon: np.ndarray, rng: np.random.Generator, neighbours: int = 4
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Edges from upwind neighbours on a zonal wind field, and the places and winds.

    Args:
        lat: degrees, (d,).
        lon: degrees, (d,).
        rng: source of weights and of the field.
        neighbours: how many nearest places may act on a place.

    Returns:
        B (d, d), coords (d, 2), and (u, v).
    """
    coords = np.stack([lat, lon], axis=1).astype(float)
    phase = rng.uniform(0, 2 * np.pi)
    u = -np.cos(np.radians(3 * coords[:, 0])) - 0.2
    v = 0.4 * np.sin(np.radians(2 * coords[:, 1]) + phase)
    near = knn_mask(coords, min(neighbours, len(coords) - 1))
    wind = np.where(near, wind_graph(coords, u, v, great_circle_km(coords).max()), 0.0)
    wind = np.where(wind >= 0.3, wind, 0.0)
    acyclic, _ = break_cycles(wind)
    B = np.where(acyclic > 0, 0.3 + 0.5 * acyclic, 0.0)
    return B, coords, (u, v)


# --- mechanisms --------------------------------------------------------------------------------------------------


def _edge_function(kind: str, weight: float, rng: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    match kind:
        case "linear":
            return lambda x: weight * x
        case "tanh":
            return lambda x: 1.5 * weight * np.tanh(x)
        case "mlp":
            W, b, v = rng.normal(size=8), rng.normal(size=8), rng.normal(size=8) / np.sqrt(8)
            return lambda x: weight * (np.tanh(x[..., None] * W + b) - np.tanh(b)) @ v + 0.5 * weight * x
        case "gp":  # random Fourier features of a Gaussian process with unit length scale
            w, b = rng.normal(size=100), rng.uniform(0, 2 * np.pi, 100)
            v = rng.normal(size=100) * np.sqrt(2 / 100)
            return lambda x: weight * np.cos(x[..., None] * w + b) @ v
    raise ValueError(f"edges must be one of {', '.join(EDGES)}, got {kind!r}")


def _noise(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Noise of mean 0 and variance 1."""
    match kind:
        case "gauss" | "heteroscedastic":
            return rng.standard_normal(shape)
        case "laplace":
            return rng.laplace(size=shape) / np.sqrt(2)
        case "uniform":
            return rng.uniform(-np.sqrt(3), np.sqrt(3), shape)
    raise ValueError(f"noise must be one of {', '.join(NOISES)}, got {kind!r}")


def observe(
    z: np.ndarray,
    B: np.ndarray,
    rng: np.random.Generator,
    *,
    edges: Literal["linear", "tanh", "mlp", "gp"] = "linear",
    noise: Literal["gauss", "laplace", "uniform", "heteroscedastic"] = "laplace",
    mean_strength: float = 0.7,
    scale_strength: float = 0.7,
    noise_scale: float = 0.6,
) -> tuple[np.ndarray, np.ndarray]:
    r"""Observed series over given latents: :math:`x_i = s_i + \sum_j h_{ij}(x_j)`, s from the latents.

    :math:`s = \mathrm{lrelu}_{.2}(C z) + c\, e^{a \tanh(S z)} \varepsilon`; for ``noise="heteroscedastic"`` the noise
    of an observed series also grows with its causes.

    Args:
        z: (..., d_z).
        B: weights of a DAG, (d_x, d_x).
        rng: source of the mechanisms and noises.
        edges: form of :math:`h_{ij}`.
        noise: distribution of :math:`\varepsilon`.
        mean_strength: standard deviation of C.
        scale_strength: a.
        noise_scale: c.

    Returns:
        x and s, (..., d_x).
    """
    if noise not in NOISES:
        raise ValueError(f"noise must be one of {', '.join(NOISES)}, got {noise!r}")
    d_x, d_z = len(B), z.shape[-1]
    C = mean_strength * rng.standard_normal((d_x, d_z))
    S = rng.standard_normal((d_x, d_z))
    eps = noise_scale * np.exp(scale_strength * np.tanh(z @ S.T)) * _noise(noise, (*z.shape[:-1], d_x), rng)
    drift = leaky_relu(z @ C.T)
    functions = {(i, j): _edge_function(edges, B[i, j], rng) for i, j in zip(*np.nonzero(B), strict=True)}
    x, s = np.zeros(eps.shape), np.zeros(eps.shape)
    for i in topological_order(B):
        causes = [int(j) for j in np.flatnonzero(B[i])]
        if noise == "heteroscedastic" and causes:
            eps[..., i] *= 0.5 + np.abs(np.tanh(x[..., causes].sum(-1)))
        s[..., i] = drift[..., i] + eps[..., i]
        x[..., i] = s[..., i]
        for j in causes:
            x[..., i] += functions[i, j](x[..., j])
    return x, s


# --- data sets ---------------------------------------------------------------------------------------------------


def confounded_er(
    n: int, d_x: int, d_z: int, T: int = 3, seed: int = 0, deg: float = 1.0, lat: float = 0.7
) -> Simulated:
    """A random graph confounded by autonomous latents; linear edges, Laplace noise whose scale follows the latents.

    Args:
        n: windows.
        d_x: observed series.
        d_z: latents.
        T: length of a window.
        seed: of everything.
        deg: expected edges a node.
        lat: strength of the latents in the means.
    """
    _checked(d_x=d_x, d_z=d_z, n=n, T=T)
    rng = np.random.default_rng(seed)
    W = np.diag(rng.uniform(0.6, 0.9, d_z))
    z = np.zeros((n, T + 10, d_z))
    current = 0.6 * rng.standard_normal((n, d_z))
    for t in range(T + 10):
        current = 1.3 * np.tanh(current) @ W.T + 0.6 * rng.standard_normal((n, d_z))
        z[:, t] = current
    z = z[:, 10:]
    z = z / z.reshape(-1, d_z).std(0)
    B = er_graph(d_x, rng, deg)
    x, s = observe(z, B, rng, mean_strength=lat)
    return Simulated(x, z, s, B, W[None] != 0, np.zeros((d_z, d_z), dtype=bool))


def regimes(
    regime: Literal["independent", "sparse", "dense"], n: int, d_x: int = 6, d_z: int = 3, T: int = 3, seed: int = 0
) -> Simulated:
    """The three kinds of latent processes of the paper's table 3, by a recipe of our own.

    ``independent``: each latent follows its own past; ``sparse``: also its neighbour's, and 1 -> 2 at once; ``dense``:
    everybody's past and every earlier latent at once.
    :math:`z_j = 1.2 \\tanh(W_j z_{t-1}) + (0.5 + 0.5 |\\tanh(W_j z_{t-1})|) \\varepsilon_j + \\tanh(U_j z_{t,<j})`.
    """
    _checked(d_x=d_x, d_z=d_z, n=n, T=T)
    if regime not in REGIMES:
        raise ValueError(f"regime must be one of {', '.join(REGIMES)}, got {regime!r}")
    rng = np.random.default_rng(seed)
    support = np.eye(d_z, dtype=bool)
    instant = np.zeros((d_z, d_z), dtype=bool)
    if regime == "sparse":
        support |= np.eye(d_z, k=-1, dtype=bool)
        instant[1:2, 0:1] = True
    elif regime == "dense":
        support[:] = True
        instant = np.tri(d_z, k=-1, dtype=bool)
    W = np.where(support, rng.choice([-1.0, 1.0], (d_z, d_z)) * rng.uniform(0.6, 1.2, (d_z, d_z)), 0.0)
    U = np.where(instant, rng.choice([-1.0, 1.0], (d_z, d_z)) * rng.uniform(0.6, 1.2, (d_z, d_z)), 0.0)
    current, kept = rng.standard_normal((n, d_z)), []
    for _ in range(T + 10):
        pull = np.tanh(current @ W.T)
        noise = (0.5 + 0.5 * np.abs(pull)) * rng.standard_normal((n, d_z))
        following = np.zeros((n, d_z))
        for j in range(d_z):
            following[:, j] = 1.2 * pull[:, j] + noise[:, j] + np.tanh(following @ U[j])
        current = following
        kept.append(current)
    z = np.stack(kept[10:], axis=1)
    z = (z - z.reshape(-1, d_z).mean(0)) / z.reshape(-1, d_z).std(0)
    B = er_graph(d_x, rng)
    x, s = observe(z, B, rng)
    return Simulated(x, z, s, B, support[None], instant)


def nonparametric_ts(
    n: int = 40_000, d_x: int = 8, d_z: int = 2, T: int = 4, domains: int = 4, seed: int = 0
) -> Simulated:
    """The official code's generator: domains, two lags, leaky ReLU, a chain among the observed.

    Args:
        n: windows a domain.
        d_x: observed series.
        d_z: latents.
        T: length of a window.
        domains: number of domains; each has a latent effect (0, 1) of its own.
        seed: of everything.
    """
    _checked(d_x=d_x, d_z=d_z, n=n, T=T, domains=domains)
    rng, lags = np.random.default_rng(seed), 2

    def conditioned() -> np.ndarray:
        draws = rng.uniform(-1, 1, (10_000, d_z, d_z))
        draws /= np.linalg.norm(draws, axis=1, keepdims=True)
        condition = np.linalg.cond(draws)
        good = draws[condition <= np.quantile(condition, 0.25)]
        return good[rng.integers(len(good))]

    W = np.stack([conditioned() for _ in range(lags)])
    mixing = np.linalg.qr(rng.standard_normal((d_x, d_x)))[0][:d_z]
    z_all, x_all, s_all = [], [], []
    B = 0.2 * np.eye(d_x, k=-1)
    for _ in range(domains):
        own = W.copy()
        if d_z > 1:
            own[0, 0, 1] = rng.uniform(-1.25, 1.25)
        past = rng.standard_normal((n, lags, d_z))
        past = (past - past.mean(0)) / past.std(0)
        history = [past[:, 0], past[:, 1]]
        for _ in range(T):
            total = sum(leaky_relu(history[-lag - 1] @ own[lag]) for lag in range(lags))
            history.append(leaky_relu(total + 0.1 * rng.standard_normal((n, d_z))))
        z = np.stack(history[lags:], axis=1)
        s = leaky_relu(z) @ mixing + rng.uniform(0, 0.1, (n, T, d_x))
        x = s.copy()
        for i in range(1, d_x):
            x[..., i] += 0.2 * x[..., i - 1]
        z_all.append(z)
        s_all.append(s)
        x_all.append(x)
    # own[l][j, k] moves z_j's past into z_k: transposed to i <- j.
    lagged = np.swapaxes(W, 1, 2) != 0
    return Simulated(
        np.concatenate(x_all),
        np.concatenate(z_all),
        np.concatenate(s_all),
        B,
        lagged,
        np.zeros((d_z, d_z), dtype=bool),
        np.repeat(np.arange(domains), n),
    )


def geographic(
    n: int, lat: np.ndarray, lon: np.ndarray, d_z: int = 1, T: int = 3, seed: int = 0
) -> tuple[Simulated, tuple[np.ndarray, np.ndarray]]:
    """Places on the sphere driven along a wind field, with hidden drivers; returns the data and the winds (u, v)."""
    rng = np.random.default_rng(seed)
    B, coords, wind = geographic_graph(np.asarray(lat), np.asarray(lon), rng)
    base = confounded_er(n, len(B), d_z, T, seed)
    x, s = observe(base.z, B, rng, mean_strength=0.5)
    return Simulated(x, base.z, s, B, base.latent_lagged, base.latent_instant, None, coords), wind
