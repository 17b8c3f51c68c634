"""The estimator: series in; graph, latent drivers with their graphs, forecasts out."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from cadre.graph import GraphResult
from cadre.metrics import compare_graphs
from cadre.model import CaDRe, Penalties
from cadre.structure import break_cycles, checked_mask, graph_from_mixing_safely, threshold_graph
from cadre.training import Evaluation, Schedule, Trained, evaluate, load_state, restart_model, save_state, train
from cadre.windows import MemoryWindows, WindowDataset, WindowSource, read_rows

# The paper's and official code's settings for "vae", ours for "flow".
DEFAULTS: dict[str, dict[str, Any]] = {
    "flow": {"alpha": 0.02, "alpha_latent": 0.01, "beta": 1.0, "lr": 5e-3, "hidden": (64, 32), "layers": (2, 2)},
    "vae": {"alpha": 1e-4, "alpha_latent": 1e-4, "beta": 5e-5, "lr": 5e-4, "hidden": (128, 128), "layers": (4, 2)},
}
THRESHOLDS = ("fixed", "gap", "bootstrap", "target_edges")


class NotConverged(UserWarning):
    """Training had not settled, or restarts found different graphs."""


class Series(NamedTuple):
    """Checked input: values (N, T, d), names, places, and the time axis of a DataArray."""

    values: np.ndarray
    names: tuple[str, ...]
    coords: np.ndarray | None
    long: bool


class Forecast(NamedTuple):
    """Samples (m, horizon, d) in the units of the data, and their mean (horizon, d)."""

    mean: np.ndarray
    samples: np.ndarray


def first_bad(values: np.ndarray) -> str | None:
    """How many values are NaN or infinite, and where the first is; None where all are finite."""
    bad = ~np.isfinite(values)
    if not bad.any():
        return None
    return f"{int(bad.sum())} values are NaN or infinite, the first at {tuple(int(i) for i in np.argwhere(bad)[0])}"


def interpolate_missing(values: np.ndarray) -> np.ndarray:
    """Fill NaN linearly in time, (T, d); the ends repeat the first and last known value.

    Raises:
        ValueError: if a series has fewer than two known values.
    """
    filled = values.copy()
    steps = np.arange(len(values))
    for j in range(values.shape[1]):
        known = np.isfinite(values[:, j])
        if known.sum() < 2:
            raise ValueError(f"series {j} has {int(known.sum())} known values; expected at least 2 to interpolate")
        filled[:, j] = np.interp(steps, steps[known], values[known, j])
    return filled


def checked_series(X: Any) -> Series:
    """Input of any supported form as (N, T, d) float64.

    Raises:
        ValueError: for another number of dimensions, a DataArray without time, duplicate, unsorted or irregular times.
    """
    names: tuple[str, ...] = ()
    coords = None
    if hasattr(X, "dims") and hasattr(X, "values"):
        dims = [str(dim) for dim in X.dims]
        if "time" not in dims:
            raise ValueError(f"expected a time axis named 'time', got the dimensions {', '.join(dims)}")
        X = X.transpose("time", ...)
        if X.ndim == 3:
            X = X.stack(cell=[dim for dim in X.dims if dim != "time"])
        if "time" in X.coords:
            check_times(X["time"].values)
        if X.ndim == 2:
            other = next(dim for dim in X.dims if dim != "time")
            names = tuple(_name(value) for value in X[other].values) if other in X.coords else ()
            found = [
                next((X[n].values for n in pair if n in X.coords), None)
                for pair in (("lat", "latitude"), ("lon", "longitude"))
            ]
            if all(f is not None and np.shape(f) == (X.shape[1],) for f in found):
                coords = np.stack([np.asarray(f, dtype=float) for f in found], axis=1)
        X = X.values
    elif hasattr(X, "columns") and hasattr(X, "to_numpy"):
        names, X = tuple(map(str, X.columns)), X.to_numpy()
    values = np.asarray(X, dtype=float)
    if values.ndim not in (2, 3) or 0 in values.shape:
        raise ValueError(f"expected (time, series) or (windows, time, series), got shape {values.shape}")
    return Series(values if values.ndim == 3 else values[None], names, coords, values.ndim == 2)


def _name(value: Any) -> str:
    return (
        "/".join(f"{part:g}" if isinstance(part, float) else str(part) for part in value)
        if isinstance(value, tuple)
        else str(value)
    )


def check_times(times: np.ndarray) -> None:
    """Refuse times that repeat, run backwards or leave gaps.

    Monthly and yearly data may vary by the length of months (a step is between 0.8 and 1.2 of the median step).

    Raises:
        ValueError: naming the first offender.
    """
    if len(times) < 3:
        return
    steps = np.diff(np.asarray(times))
    seconds = np.array(
        [
            s.total_seconds()
            if hasattr(s, "total_seconds")
            else s / np.timedelta64(1, "s")
            if isinstance(s, np.timedelta64)
            else float(s)
            for s in steps
        ]
    )
    if (seconds <= 0).any():
        at = int(np.argmax(seconds <= 0)) + 1
        word = "a duplicate" if seconds[at - 1] == 0 else "unsorted"
        raise ValueError(f"time {at} ({times[at]}) is {word}; sort and drop duplicates first (open_climate(sort=True))")
    usual = float(np.median(seconds))
    odd = np.flatnonzero((seconds < 0.8 * usual) | (seconds > 1.2 * usual))
    if len(odd):
        shown = ", ".join(f"{times[i]} to {times[i + 1]}" for i in odd[:3])
        raise ValueError(f"time steps are irregular: {len(odd)} differ from the usual step, first {shown}")


class CaDReEstimator(BaseEstimator):
    """Graph among observed series, latent drivers, and forecasts, by one likelihood.

    Args:
        n_latents: number of latent drivers, between 1 and the number of series.
        lags: how many steps back the latents act on each other.
        mode: ``flow`` (exact likelihood of the equations) or ``vae`` (the paper's).
        window: steps the encoder sees around each step (odd).
        mask: allowed edges, bool (d, d), [i, j] for j -> i.
        alpha: weight of the l1 norm of the observed graph; None is the mode's default, as for the next ones. In
            ``flow`` mode that is 0.02 from 8,000 training windows on and grows as 1 / sqrt(windows) below.
        alpha_latent: weight of the l1 norm of the latents' graphs.
        beta: weight of the acyclicity penalty.
        dag: ``penalty`` or ``alm`` (augmented Lagrangian).
        steps: of training, each restart.
        batch_size: windows a step.
        lr: first learning rate.
        importance: samples of the importance-weighted bound (``flow``); 1 is the plain ELBO.
        n_restarts: independent starts; the one with the best validation bound is kept, all are recorded.
        instant: instantaneous effects among latents: ``none``, ``lower`` or ``learned``.
        use_latents: False leaves the latents out (``flow``).
        scale_from_latents: whether the noise's scale follows the latents (``flow``).
        mixture: components of the noise's density (``flow``); 1 is Gaussian.
        post_nonlinear: learn a monotone transformation of each series (``flow``).
        threshold: ``fixed``, ``gap``, ``bootstrap`` or ``target_edges``; see :func:`cadre.structure.threshold_graph`.
        threshold_value: for ``fixed`` and ``bootstrap``, on standardised series.
        target_edges: for that threshold.
        n_bootstrap: refits of the last tenth of the training for ``bootstrap``.
        polish: after thresholding, train this share of the steps more on the found DAG without penalties (``flow``).
        missing: ``error``, ``interpolate`` or ``mask`` (leave out windows with gaps).
        device: ``auto``, ``cpu``, ``cuda`` ...
        checkpoint: folder for checkpoints every 500 steps; fitting again resumes from there.
        random_state: seed.
        verbose: 1 prints each evaluation.

    Attributes:
        graph_: :class:`GraphResult`, weights as mean d g_i / d x_j on standardised series.
        weights_physical_: the same in units of the series, (d, d).
        latent_lagged_: mean d z_i / d (z_j, l + 1 steps ago), (L, k, k).
        latent_instant_: mean d z_i / d z_j at once, (k, k).
        latent_lagged_adjacency_, latent_instant_adjacency_: the same by the threshold.
        elbo_: validation bound a step of the kept restart.
        restarts_: each restart's history; ``restart_graphs_`` their adjacencies.
        active_latents_: latents with more than 0.05 nats.
        converged_: whether the bound had settled.
    """

    def __init__(
        self,
        n_latents: int = 3,
        lags: int = 1,
        mode: Literal["flow", "vae"] = "flow",
        window: int = 3,
        mask: np.ndarray | None = None,
        alpha: float | None = None,
        alpha_latent: float | None = None,
        beta: float | None = None,
        dag: Literal["penalty", "alm"] = "penalty",
        steps: int = 3000,
        batch_size: int = 128,
        lr: float | None = None,
        importance: int = 4,
        n_restarts: int = 3,
        instant: Literal["none", "lower", "learned"] = "none",
        use_latents: bool = True,
        scale_from_latents: bool = True,
        mixture: int = 3,
        post_nonlinear: bool = False,
        threshold: Literal["fixed", "gap", "bootstrap", "target_edges"] = "fixed",
        threshold_value: float = 0.1,
        target_edges: int | None = None,
        n_bootstrap: int = 20,
        polish: float = 0.1,
        missing: Literal["error", "interpolate", "mask"] = "error",
        device: str = "auto",
        checkpoint: str | Path | None = None,
        random_state: int = 0,
        verbose: int = 0,
    ) -> None:
        self.n_latents = n_latents
        self.lags = lags
        self.mode = mode
        self.window = window
        self.mask = mask
        self.alpha = alpha
        self.alpha_latent = alpha_latent
        self.beta = beta
        self.dag = dag
        self.steps = steps
        self.batch_size = batch_size
        self.lr = lr
        self.importance = importance
        self.n_restarts = n_restarts
        self.instant = instant
        self.use_latents = use_latents
        self.scale_from_latents = scale_from_latents
        self.mixture = mixture
        self.post_nonlinear = post_nonlinear
        self.threshold = threshold
        self.threshold_value = threshold_value
        self.target_edges = target_edges
        self.n_bootstrap = n_bootstrap
        self.polish = polish
        self.missing = missing
        self.device = device
        self.checkpoint = checkpoint
        self.random_state = random_state
        self.verbose = verbose

    # --- fitting -------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: None = None,
        domain: np.ndarray | None = None,
        latents: np.ndarray | None = None,
        watch: Callable[[int, Evaluation | None], None] | None = None,
    ) -> CaDReEstimator:
        """Fit.

        Args:
            X: (T, d), (N, T, d), ``xarray.DataArray``, data frame, or :class:`WindowDataset`.
            y: ignored.
            domain: labels 0, 1, ... of the time steps (T,) or windows (N,), for example the month.
            latents: known latents like X, (..., n_latents): nothing is inferred.
            watch: called with the step (over all restarts) and evaluation.

        Raises:
            ValueError: for input that cannot be used.
            FloatingPointError: if training diverges.
        """
        self._check_settings()
        source = self._source(X, domain, latents)
        d = source.mean.size
        k = self.n_latents if self.use_latents else 0
        if k > d:
            raise ValueError(f"n_latents must be at most the {d} series, got {self.n_latents}")
        allowed = np.ones((d, d), dtype=bool) & ~np.eye(d, dtype=bool)
        if self.mask is not None:
            allowed = checked_mask(self.mask, d)
        self.device_ = _device(self.device)
        domains = 0 if domain is None else int(np.max(domain)) + 1
        self.n_features_in_, self.mean_, self.sd_, self.mask_ = d, source.mean, source.sd, allowed
        self.n_domains_, self.latents_known_ = domains, latents is not None
        schedule, counter = self._schedule(source.training_windows), 0
        models: list[CaDRe] = []
        self.restarts_: list[Trained] = []

        def report(step: int, found: Evaluation | None) -> None:
            if self.verbose and found is not None:
                start = f"restart {len(models) + 1}, step {step}: bound {found.elbo:.4f}"
                print(f"{start}, {found.edges} edges, {found.active} active latents")
            if watch is not None:
                watch(counter + step, found)

        for restart in range(self.n_restarts):
            seed = int(np.random.SeedSequence((self.random_state, restart)).generate_state(1)[0])
            model = restart_model(self._builder(d, k, domains), seed).to(self.device_)
            file = None if self.checkpoint is None else Path(self.checkpoint) / f"restart-{restart}.safetensors"
            self.restarts_.append(train(model, source, schedule, seed, file, self.device_, report))
            models.append(model)
            counter += self.steps
        self._choose(models, source, schedule)
        return self

    def _check_settings(self) -> None:
        for name, allowed in (
            ("mode", ("flow", "vae")),
            ("threshold", THRESHOLDS),
            ("dag", ("penalty", "alm")),
            ("missing", ("error", "interpolate", "mask")),
            ("instant", ("none", "lower", "learned")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("n_latents", "lags", "window", "steps", "batch_size", "importance", "n_restarts", "mixture"):
            if int(getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.window % 2 == 0:
            raise ValueError(f"window must be odd, got {self.window}")
        if self.threshold == "target_edges" and self.target_edges is None:
            raise ValueError("threshold='target_edges' expects target_edges=, got None")

    def _setting(self, name: str) -> Any:
        given = getattr(self, name)
        return DEFAULTS[self.mode][name] if given is None else given

    def _schedule(self, windows: int) -> Schedule:
        penalties = Penalties(*(float(self._setting(name)) for name in ("alpha", "alpha_latent", "beta")))
        if self.mode == "flow" and self.alpha is None:
            # The noise of an edge's gradient falls as 1 / sqrt(n); so must the penalty that hides it.
            penalties = penalties._replace(alpha=penalties.alpha * max(1.0, (8000 / windows) ** 0.5))
        return Schedule(
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self._setting("lr"),
            weight_decay=1e-4 if self.mode == "vae" else 0.0,
            penalties=penalties,
            dag=self.dag,
            importance=self.importance if self.mode == "flow" and not self.latents_known_ else 1,
        )

    def _builder(self, d: int, k: int, domains: int) -> Callable[[torch.Generator | None], CaDRe]:
        defaults = DEFAULTS[self.mode]

        def build(generator: torch.Generator | None) -> CaDRe:
            return CaDRe(
                d,
                k,
                lags=self.lags,
                mode=self.mode,
                window=self.window,
                hidden=defaults["hidden"],
                layers=defaults["layers"],
                mask=torch.as_tensor(self.mask_),
                instant=self.instant,
                domains=domains,
                mixture=self.mixture,
                scale_from_latents=self.scale_from_latents,
                post_nonlinear=self.post_nonlinear,
                generator=generator,
            )

        return build

    def _source(self, X: Any, domain: np.ndarray | None, latents: np.ndarray | None) -> WindowSource:
        """Check the input and make it a source of standardised windows."""
        length = self.lags + 2
        if isinstance(X, WindowDataset):
            if latents is not None or domain is not None:
                raise ValueError("latents and domain need an array in memory, got a WindowDataset")
            if X.length < self.lags + 1:
                raise ValueError(f"expected windows of at least {self.lags + 1} steps, got {X.length}")
            self.names_, self.coords_ = tuple(X.names), X.coords
            return X
        series = checked_series(X)
        values = series.values
        usable: np.ndarray | None = None
        problem = first_bad(values)
        if problem is not None:
            if self.missing == "error" or np.isinf(values).any():
                raise ValueError(f"{problem}; see missing='interpolate' or 'mask'")
            if self.missing == "interpolate":
                values = np.stack([interpolate_missing(window) for window in values])
            else:
                usable = np.asarray(np.isfinite(values).all(2))
                values = np.where(np.isfinite(values), values, 0.0)
        N, T, _ = values.shape
        needed = max(self.window, length) + self.lags if series.long else max(length, self.window)
        if needed > T:
            raise ValueError(f"expected at least {needed} time steps (window {self.window}, lags {self.lags}), got {T}")
        self.names_, self.coords_ = series.names, series.coords
        starts = _window_starts(N, T, length if series.long else T, usable)
        if len(starts) < 2:
            raise ValueError(f"expected at least 2 windows without gaps, got {len(starts)}")
        held_out = min(max(1, len(starts) // 10), 4096) if series.long else max(1, len(starts) // 10)
        training = _training_rows(values, starts, held_out, series.long, length, usable)
        mean, sd = training.mean(0), training.std(0)
        constant = np.flatnonzero(sd <= 1e-12 * np.maximum(1.0, np.abs(mean)))
        if len(constant):
            named = [series.names[i] if series.names else f"x{i}" for i in constant[:10]]
            raise ValueError(f"constant series: {', '.join(named)}")
        device = _device(self.device)
        return MemoryWindows(
            torch.as_tensor((values - mean) / sd, dtype=torch.float32, device=device),
            length if series.long else T,
            torch.as_tensor(starts, device=device),
            held_out,
            mean,
            sd,
            _checked_domain(domain, N, T, series.long, device),
            self._checked_latents(latents, values.shape, device),
        )

    def _checked_latents(self, latents: np.ndarray | None, shape: tuple[int, ...], device: str) -> Tensor | None:
        if latents is None:
            return None
        given = np.asarray(latents, dtype=float)
        given = given[None] if given.ndim == 2 else given
        if given.shape != (*shape[:2], self.n_latents):
            raise ValueError(f"expected latents of shape {(*shape[:2], self.n_latents)}, got {given.shape}")
        problem = first_bad(given)
        if problem is not None:
            raise ValueError(f"latents: {problem}")
        return torch.as_tensor(given, dtype=torch.float32, device=device)

    # --- after training ------------------------------------------------------------------------------------------

    def _choose(self, models: list[CaDRe], source: WindowSource, schedule: Schedule) -> None:
        """Keep the best restart by the validation bound and read everything off it."""
        batch = source.validation().to(self.device_)
        scores = [self._strengths(model, batch) for model in models]
        graphs = [break_cycles(np.where(self._edges(s), s, 0.0)).adjacency != 0 for s, *_ in scores]
        bounds = np.array([evaluate(model, batch, 0, schedule.importance).elbo for model in models])
        if not np.isfinite(bounds).any():
            raise FloatingPointError("no restart has a finite validation bound; lower lr")
        best = int(np.nanargmax(bounds))
        self.restart_bounds_, self.restart_graphs_, self.best_restart_ = bounds, np.stack(graphs), best
        self.model_ = models[best].eval()
        self.history_ = self.restarts_[best].history
        self.active_latents_ = self.history_[-1].active if self.history_ else 0
        score, weight, sign, condition = scores[best]
        self.condition_ = condition
        stability = self._stability(source, schedule, batch, graphs)
        adjacency = self._edges(score, stability)
        kept, removed = break_cycles(np.where(adjacency, score, 0.0))
        adjacency = kept != 0
        if self.mode == "flow" and self.polish:
            self._polish(source, schedule, adjacency)
            _, weight, sign, _ = self._strengths(self.model_, batch)
        self.elbo_ = evaluate(self.model_, batch, 0, schedule.importance).elbo
        self.model_.eval()
        self.graph_ = GraphResult(
            weight,
            adjacency,
            self.names_,
            self.coords_,
            scores=score,
            stability=stability,
            sign_consistency=sign,
            removed=tuple(removed),
        )
        self.weights_physical_ = weight * self.sd_[:, None] / self.sd_[None]
        self._latent_graphs(batch)
        self._warn(graphs)

    @torch.no_grad()
    def _strengths(self, model: CaDRe, batch: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Mean |J|, mean J and sign consistency over the validation part, and the largest condition number (vae)."""
        model.eval()
        x = batch.x.flatten(0, 1)
        z = model.encode(batch.x)[0] if batch.latents is None else batch.latents
        z, condition = z.flatten(0, 1), float("nan")
        if model.mode == "vae":
            found = graph_from_mixing_safely(model.mixing_jacobian(x, z))
            condition, J = found.condition, found.jacobian[found.usable]
            if not bool(found.usable.all()):
                count = int((~found.usable).sum())
                text = f"J_m is singular at {count} of {len(x)} steps (condition number {condition:.3g})"
                text += "; they are left out"
                warnings.warn(text, UserWarning, stacklevel=4)
            if not len(J):
                raise FloatingPointError("J_m is singular everywhere; train longer or use mode='flow'")
        else:
            J = model.jacobian(x, z)
        J = J.cpu().numpy().astype(float)
        mean = J.mean(0)
        return np.abs(J).mean(0), mean, (np.sign(J) == np.sign(mean)).mean(0), condition

    def _edges(self, scores: np.ndarray, stability: np.ndarray | None = None) -> np.ndarray:
        method = self.threshold if self.threshold != "bootstrap" or stability is not None else "fixed"
        edges = threshold_graph(
            np.where(self.mask_, scores, 0.0),
            method,
            threshold=self.threshold_value,
            target_edges=self.target_edges,
            stability=stability,
        )
        return edges & self.mask_

    def _stability(
        self, source: WindowSource, schedule: Schedule, batch: Any, graphs: list[np.ndarray]
    ) -> np.ndarray | None:
        """Share of restarts, or for ``bootstrap`` of refits of the last tenth on resampled windows, with each edge."""
        if self.threshold != "bootstrap":
            return np.mean(graphs, axis=0) if len(graphs) > 1 else None
        if not isinstance(source, MemoryWindows):
            raise ValueError("threshold='bootstrap' needs an array in memory, got a WindowDataset")
        share = np.zeros(self.mask_.shape)
        short = self._tail(schedule, 0.1, schedule.penalties)
        for b in range(self.n_bootstrap):
            rng = np.random.default_rng((self.random_state, 2, b))
            model = self._copy()
            train(model, source.resampled(rng), short, int(rng.integers(2**31)), None, self.device_)
            score = self._strengths(model, batch)[0]
            share += break_cycles(np.where(self._edges(score), score, 0.0)).adjacency != 0
        return share / self.n_bootstrap

    def _copy(self) -> CaDRe:
        model = self._builder(self.model_.d, self.model_.k, self.n_domains_)(None).to(self.device_)
        model.load_state_dict(self.model_.state_dict())
        return model

    def _tail(self, schedule: Schedule, share: float, penalties: Penalties) -> Schedule:
        """A short schedule at a tenth of the learning rate with everything ramped up."""
        from dataclasses import replace

        steps = max(1, round(share * schedule.steps))
        return replace(schedule, steps=steps, lr=schedule.lr / 10, penalties=penalties, ramp=(-1.0, 0.0), warm_up=0.0)

    def _polish(self, source: WindowSource, schedule: Schedule, adjacency: np.ndarray) -> None:
        observed = self.model_.observed
        assert observed is not None
        observed.restrict(torch.as_tensor(adjacency))
        free = Penalties(0.0, schedule.penalties.alpha_latent, 0.0)
        train(self.model_, source, self._tail(schedule, self.polish, free), self.random_state + 7, None, self.device_)

    @torch.no_grad()
    def _latent_graphs(self, batch: Any) -> None:
        k = self.model_.k
        self.latent_lagged_, self.latent_instant_ = np.zeros((self.lags, k, k)), np.zeros((k, k))
        lag_scores, now_scores = self.latent_lagged_.copy(), self.latent_instant_.copy()
        if self.model_.dynamics is not None:
            self.model_.eval()
            z = self.model_.encode(batch.x)[0] if batch.latents is None else batch.latents
            density = self.model_.dynamics(z, batch.domain, True)
            lagged = density.lagged.cpu().numpy().astype(float).transpose(0, 2, 1, 3)
            instant = density.instant.cpu().numpy().astype(float)
            self.latent_lagged_, lag_scores = lagged.mean(0), np.abs(lagged).mean(0)
            self.latent_instant_, now_scores = instant.mean(0), np.abs(instant).mean(0)
        self.latent_lagged_adjacency_ = lag_scores >= self.threshold_value
        found = np.where(now_scores >= self.threshold_value, now_scores, 0.0)
        self.latent_instant_adjacency_ = break_cycles(found).adjacency != 0

    def _warn(self, graphs: list[np.ndarray]) -> None:
        history = self.history_
        late = [row for row in history if row.step <= 0.9 * self.steps]
        self.converged_ = True
        if late and self.elbo_ is not None:
            gain = history[-1].elbo - late[-1].elbo
            self.converged_ = gain <= 0.005 * abs(history[-1].elbo)
        if self.steps < 1000 or not self.converged_:
            self.converged_ = False
            warnings.warn(
                f"training had not settled after {self.steps} steps; a graph found too early is noise: raise steps",
                NotConverged,
                stacklevel=3,
            )
        distances = [compare_graphs(g, graphs[self.best_restart_]).shd_pairs for g in graphs]
        self.restart_disagreement_ = float(np.max(distances)) if len(graphs) > 1 else 0.0
        if self.restart_disagreement_ > 0.1:
            warnings.warn(
                f"restarts found different graphs (up to {self.restart_disagreement_:.0%} of the pairs differ); "
                "look at graph_.stability, raise steps or n_restarts",
                NotConverged,
                stacklevel=3,
            )

    # --- using ---------------------------------------------------------------------------------------------------

    def _standardised(self, X: Any) -> tuple[Tensor, bool]:
        check_is_fitted(self, "model_")
        if isinstance(X, WindowDataset):
            X = read_rows(X.array, 0, X.shape[0])
        series = checked_series(X)
        if series.values.shape[-1] != self.n_features_in_:
            raise ValueError(f"expected {self.n_features_in_} series, got {series.values.shape[-1]}")
        problem = first_bad(series.values)
        if problem is not None:
            raise ValueError(problem)
        values = (series.values - self.mean_) / self.sd_
        return torch.as_tensor(values, dtype=torch.float32, device=self.device_), series.long

    def _latents(self, x: Tensor, latents: np.ndarray | None = None) -> Tensor:
        if latents is not None:
            given = torch.as_tensor(np.asarray(latents), dtype=torch.float32, device=x.device)
            return given.reshape(*x.shape[:2], self.model_.k)
        if self.latents_known_:
            raise ValueError("this model was fitted to known latents and cannot infer them; pass latents=")
        return self.model_.encode(x)[0]

    @torch.no_grad()
    def transform(self, X: Any) -> np.ndarray:
        """Posterior means of the latents, (T, k) or (N, T, k)."""
        x, long = self._standardised(X)
        z = self._latents(x).cpu().numpy()
        return z[0] if long else z

    def fit_transform(self, X: Any, y: None = None, **options: Any) -> np.ndarray:
        """Fit, then the latents of the same series."""
        return self.fit(X, y, **options).transform(X)

    @torch.no_grad()
    def score(self, X: Any, y: None = None) -> float:
        """The bound a time step (``flow``: of log p of the standardised series, in nats)."""
        x, _ = self._standardised(X)
        generator = torch.Generator(device=x.device).manual_seed(0)
        importance = self.importance if self.mode == "flow" else 1
        return float(self.model_(x, importance=importance, generator=generator).elbo)

    @torch.no_grad()
    def jacobians(
        self, X: Any, latents: np.ndarray | None = None, units: Literal["standardised", "physical"] = "standardised"
    ) -> np.ndarray:
        """d g_i / d x_j at each step, (T, d, d) or (N, T, d, d)."""
        x, long = self._standardised(X)
        z = self._latents(x, latents)
        J = self.model_.jacobian(x.flatten(0, 1), z.flatten(0, 1)).cpu().numpy()
        if units == "physical":
            J = J * self.sd_[:, None] / self.sd_[None]
        return J if long else J.reshape(*x.shape[:2], *J.shape[1:])

    def predict(self, X: Any, horizon: int = 1, n_samples: int = 50, domain: np.ndarray | None = None) -> np.ndarray:
        """Mean forecast after the end of a series, (horizon, d); ``n_samples=0`` sets all noises to their means."""
        return self.forecast(X, horizon, n_samples, domain).mean

    @torch.no_grad()
    def forecast(self, X: Any, horizon: int = 1, n_samples: int = 50, domain: np.ndarray | None = None) -> Forecast:
        """Roll the latents and propagate through the graph.

        Args:
            X: the past, (T, d), at least ``window`` steps.
            horizon: steps ahead.
            n_samples: samples of the future; 0 sets all noises to their means.
            domain: labels of the future steps, (horizon,).
        """
        if horizon < 1 or n_samples < 0:
            raise ValueError(f"expected horizon >= 1 and n_samples >= 0, got {horizon} and {n_samples}")
        x, long = self._standardised(X)
        if not long:
            raise ValueError(f"expected one series (time, series), got shape {tuple(x.shape)}")
        generator = torch.Generator(device=x.device).manual_seed(self.random_state)
        if self.latents_known_:
            raise ValueError("this model was fitted to known latents and cannot infer them, so it cannot forecast")
        mean, log_var = self.model_.encode(x[:, -max(self.window, self.lags + self.window) :])
        m = max(n_samples, 1)
        spread = torch.exp(log_var[:, -self.lags :] / 2) * (1.0 if n_samples else 0.0)
        noise = torch.randn(m, *spread.shape[1:], generator=generator, device=x.device)
        past = (mean[:, -self.lags :] + spread * noise).flip(1)
        samples = self._roll(past, horizon, generator, n_samples == 0, domain)
        values = samples.cpu().numpy().astype(float) * self.sd_ + self.mean_
        return Forecast(values.mean(0), values)

    def _roll(
        self, past: Tensor, steps: int, generator: torch.Generator, quiet: bool, domain: np.ndarray | None = None
    ) -> Tensor:
        """Simulate on from latents (m, L, k), newest first; standardised (m, steps, d)."""
        model, m = self.model_, len(past)
        found = []
        for step in range(steps):
            z = past[:, 0, :0]
            if model.dynamics is not None:
                eps = torch.zeros(m, model.k, device=past.device)
                if not quiet:
                    eps = torch.randn(m, model.k, generator=generator, device=past.device)
                label = None
                if domain is not None:
                    label = torch.full((m,), int(domain[step]), device=past.device)
                z = model.dynamics.step(past, eps, label)
                past = torch.cat([z[:, None], past[:, :-1]], dim=1)
            found.append(self._observe(z, m, generator, quiet))
        return torch.stack(found, dim=1)

    def _observe(self, z: Tensor, m: int, generator: torch.Generator, quiet: bool) -> Tensor:
        model = self.model_
        if model.observed is not None:
            observed = model.observed
            eps = observed.noise_mean().expand(m, -1) if quiet else observed.sample_noise(m, generator)
            return observed.generate(z, eps)
        centre, log_sd = model.noise_prior(z).chunk(2, dim=-1)
        eps = torch.zeros_like(centre)
        if not quiet:
            eps = torch.randn(centre.shape, generator=generator, device=z.device)
        s = centre + torch.exp(log_sd.clamp(-5, 3)) * eps
        return model.decoder(torch.cat([z, s], dim=-1))[..., 0]

    @torch.no_grad()
    def sample(self, n: int, T: int, seed: int = 0) -> np.ndarray:
        """Simulate n series of length T from the fitted model, (n, T, d), in the units of the data."""
        check_is_fitted(self, "model_")
        generator = torch.Generator(device=self.device_).manual_seed(seed)
        past = torch.randn(n, self.lags, self.model_.k, generator=generator, device=self.device_)
        x = self._roll(past, T, generator, False).cpu().numpy().astype(float)
        return x * self.sd_ + self.mean_

    # --- keeping -------------------------------------------------------------------------------------------------

    _ARRAYS = (
        "mean_",
        "sd_",
        "mask_",
        "weights_physical_",
        "latent_lagged_",
        "latent_instant_",
        "latent_lagged_adjacency_",
        "latent_instant_adjacency_",
        "restart_bounds_",
        "restart_graphs_",
    )
    _NUMBERS = (
        "n_features_in_",
        "n_domains_",
        "latents_known_",
        "elbo_",
        "active_latents_",
        "converged_",
        "best_restart_",
        "restart_disagreement_",
        "condition_",
    )

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator as safetensors (no code in it), atomically."""
        check_is_fitted(self, "model_")
        tensors = {f"model.{key}": value for key, value in self.model_.state_dict().items()}
        for name in self._ARRAYS:
            tensors[f"array.{name}"] = torch.as_tensor(getattr(self, name))
        graph = self.graph_
        for name in ("weights", "adjacency", "scores", "stability", "sign_consistency", "coords"):
            if getattr(graph, name) is not None:
                tensors[f"graph.{name}"] = torch.as_tensor(getattr(graph, name))
        parameters = {k: v for k, v in self.get_params().items() if k not in ("mask", "checkpoint")}
        meta = {
            "parameters": parameters,
            "numbers": {name: getattr(self, name) for name in self._NUMBERS},
            "names": list(graph.names),
            "removed": [list(edge) for edge in graph.removed],
            "history": [list(row) for row in self.history_],
        }
        save_state(Path(path), tensors, json.loads(json.dumps(meta, default=float)))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> CaDReEstimator:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: if the file is damaged or of another kind.
        """
        tensors, meta = load_state(Path(path))
        try:
            known = inspect.signature(cls).parameters
            estimator = cls(**{k: v for k, v in meta["parameters"].items() if k in known})
            arrays = {k.split(".", 1)[1]: v.numpy() for k, v in tensors.items() if k.startswith("array.")}
            for name, value in (arrays | meta["numbers"]).items():
                setattr(estimator, name, value)
            graph = {k.split(".", 1)[1]: v.numpy() for k, v in tensors.items() if k.startswith("graph.")}
            removed = tuple((int(a), int(b), float(w)) for a, b, w in meta["removed"])
            estimator.graph_ = GraphResult(**graph, names=tuple(meta["names"]), removed=removed)
            estimator.names_, estimator.coords_ = estimator.graph_.names, estimator.graph_.coords
            estimator.history_ = [Evaluation(*row) for row in meta["history"]]
            estimator.device_ = _device(estimator.device)
            k = estimator.n_latents if estimator.use_latents else 0
            model = estimator._builder(estimator.n_features_in_, k, estimator.n_domains_)(None)
            model.load_state_dict({key[6:]: v for key, v in tensors.items() if key.startswith("model.")})
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"{path} is no estimator of cadre: {error}") from error
        estimator.model_ = model.to(estimator.device_).eval()
        return estimator


def _device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted


def _window_starts(N: int, T: int, length: int, usable: np.ndarray | None) -> np.ndarray:
    """(row, first step) of every window without gaps, in time order."""
    rows, steps = np.meshgrid(np.arange(N), np.arange(T - length + 1), indexing="ij")
    starts = np.stack([rows.ravel(), steps.ravel()], axis=1)
    if usable is None:
        return starts
    whole = np.lib.stride_tricks.sliding_window_view(usable, length, axis=1).all(-1)
    return starts[whole.ravel()]


def _training_rows(
    values: np.ndarray, starts: np.ndarray, held_out: int, long: bool, length: int, usable: np.ndarray | None
) -> np.ndarray:
    """The time steps that training may see, (n, d)."""
    last = starts[len(starts) - held_out - 1]
    if long:
        rows = values[0, : last[1] + length]
        return rows if usable is None else rows[usable[0, : len(rows)]]
    part = values[: last[0] + 1]
    return part.reshape(-1, values.shape[-1]) if usable is None else part[usable[: len(part)]]


def _checked_domain(domain: np.ndarray | None, N: int, T: int, long: bool, device: str) -> Tensor | None:
    if domain is None:
        return None
    labels = np.asarray(domain)
    expected = T if long else N
    if labels.shape != (expected,) or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise ValueError(f"expected domain labels 0, 1, ... of shape ({expected},), got {labels.dtype} {labels.shape}")
    return torch.as_tensor(labels, dtype=torch.long, device=device)
