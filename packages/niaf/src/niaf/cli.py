"""The ``niaf`` command."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.interpolate import CubicSpline

from niaf import bench as benchmarks
from niaf import plots, study
from niaf.claims import PAPER
from niaf.control import ImpedanceTrial, impedance_table
from niaf.data import (
    LeRobotReader,
    lasa_chunks,
    read_calvin,
    read_csv,
    read_robomimic,
    resample_dataset,
    write_lerobot,
)
from niaf.fit import FitOptions, fit_field
from niaf.heads import HEADS, SCALES
from niaf.impedance import unit_quaternions_in, unwrap_angles, wrapped_channels
from niaf.metrics import offgrid_error, sampled_smoothness, smoothness
from niaf.policy import NIAFPolicy
from niaf.recipes import commands, write_recipe
from niaf.resample import check_kind, displacement
from niaf.training import TrainOptions, config_for, split_rows
from niaf.training import evaluate as evaluate_policy
from niaf.training import train as train_policy
from niaf.trajectory import Limits, Motion, Trajectory
from papershelf import InputError, Streams, require
from papershelf import cli as shelf
from papershelf.files import atomic_write
from papershelf.reproduce import plain, progress_bar

app = shelf.app(PAPER)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]
Kind = Annotated[str, typer.Option("--kind", help="absolute (targets) or delta (increments).")]
Gripper = Annotated[
    str, typer.Option("--gripper", help="Channels with two states, numbers with commas; held, not smoothed.")
]
Quaternion = Annotated[
    str,
    typer.Option(
        "--quaternion",
        help="First channel of each unit quaternion (four channels), numbers with commas: sign flips are removed.",
    ),
]
REPRESENTATIONS: tuple[str, ...] = ("field", "waypoints", "B-spline", "DCT", "Fourier", "ProDMP", "cubic")


def _print_json(value: Any) -> None:
    print(json.dumps(plain(value), ensure_ascii=False))


def _numbers(text: str, name: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise InputError(f"{name} expects channel numbers separated by commas, got {text!r}") from None


@contextmanager
def _plain_warnings() -> Generator[None]:
    """Warnings as one line each."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"niaf: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.showwarning = show  # ty: ignore[invalid-assignment]
        yield


def _new(path: Path | None) -> None:
    if path is not None and path.exists():
        raise InputError(f"{path} exists already; name a new file or folder")


@app.command()
def run(
    samples: Annotated[int, typer.Option("--samples", min=4, help="K, samples a second.")] = 11,
    noise: Annotated[
        float, typer.Option("--noise", min=0, help="Noise on the samples; the data's deviation is .55.")
    ] = 0.0,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Optimiser steps of a fit.")] = 400,
    paper: Annotated[bool, typer.Option("--paper/--no-paper", help="Also the paper's preset, to see it fail.")] = True,
    out: Annotated[Path, typer.Option("--out", help="Folder for the table and the picture.")] = Path("niaf-run"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Represent LASA handwriting by every method and compare errors between the samples: a table and a picture."""
    chunks = lasa_chunks(24, samples)
    assert chunks.dense is not None
    assert chunks.dense_velocity is not None
    rng = Streams(seed).numpy("noise")
    with progress_bar() as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the paper's preset is here to show what the warning says
        for _ in progress(range(1), label="fits"):
            found = study.represented(chunks, noise, rng, FitOptions(steps=steps, seed=seed), paper)
    rows = {name: dict(offgrid_error(motions, chunks.dense, chunks.dense_velocity)) for name, motions in found.items()}
    t = np.linspace(0, 1, chunks.dense.shape[1])
    shown = {n: found[n][0] for n in ("waypoints", "B-spline", study.PAPER, study.FIELD) if n in found}
    points = np.linspace(0, 1, samples), chunks.action[0, :, 0]
    picture = plots.derivatives(
        out / "chunk",
        shown,
        (t, chunks.dense[0, :, 0], chunks.dense_velocity[0, :, 0]),
        points,
        f"LASA handwriting, {samples} samples a second",
    )
    lines = ["representation,position_rmse,relative_velocity_error,rms_jerk"]
    lines += [
        f"{n.replace(',', ';')},{r['position']:.6g},{r['velocity']:.6g},{r['rms_jerk']:.6g}" for n, r in rows.items()
    ]
    atomic_write(out / "table.csv", "\n".join(lines) + "\n")
    if as_json:
        _print_json({"rows": rows, "picture": picture})
        return
    print(f"{'24 chunks of 1 s, errors at 201 times':34}  position  velocity   RMS jerk")
    for name, r in rows.items():
        print(f"{name:34}  {r['position']:8.4f}  {r['velocity']:8.3f}  {r['rms_jerk']:9.4g}")
    print(f"written: {out / 'table.csv'}, {picture}")


def _recording(path: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    if path.suffix == ".parquet":
        pq = require("pyarrow.parquet", "papershelf-niaf[data]")
        from niaf.data import column_to_array

        try:
            table = pq.read_table(path)
        except Exception as error:
            raise InputError(f"{path} is no readable Parquet file: {error}") from None
        missing = {"timestamp", "action"} - set(table.column_names)
        if missing:
            raise InputError(f"{path}: no column {sorted(missing)[0]!r}; expected timestamp and action")
        x = column_to_array(table["action"], str(path))
        x = x.reshape(len(x), -1)
        return (
            column_to_array(table["timestamp"], str(path)).reshape(-1).astype(float),
            x,
            [f"a{i}" for i in range(x.shape[1])],
        )
    return read_csv(path)


def _represent(name: str, t: np.ndarray, x: np.ndarray, options: FitOptions) -> Trajectory:
    if name == "field":
        return fit_field(t, x, None, options)
    uniform = np.linspace(t[0], t[-1], len(t))
    even = CubicSpline(t, x)(uniform) if np.abs(uniform - t).max() > 1e-6 else x
    (found,) = study.basis_trajectories(name, even[None], t[-1] - t[0])
    return found.starting_at(float(t[0]))


@app.command()
def fit(
    recording: Annotated[Path, typer.Argument(help="CSV with the header t,name,... or an episode's Parquet file.")],
    representation: Annotated[str, typer.Option("--repr", help=f"One of {', '.join(REPRESENTATIONS)}.")] = "field",
    rate: Annotated[float, typer.Option("--rate", help="Rate of the output, Hz.")] = 200.0,
    out: Annotated[Path, typer.Option("-o", "--out", help="CSV to write.")] = Path("niaf-fit.csv"),
    kind: Kind = "absolute",
    gripper: Gripper = "",
    unwrap: Annotated[str, typer.Option("--unwrap", help="Channels that are angles, numbers with commas.")] = "",
    quaternion: Quaternion = "",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Optimiser steps of the field.")] = 800,
    lambda_jerk: Annotated[float, typer.Option("--lambda-jerk", min=0, help="Weight of the field's jerk.")] = 0.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """A recording as a continuous function: positions, velocities, accelerations at any rate, and how smooth it is.

    With --kind delta the running sum of the increments is fitted and written.
    """
    spelled = {name.lower().replace("-", ""): name for name in REPRESENTATIONS}
    if representation.lower().replace("-", "") not in spelled:
        raise InputError(f"--repr must be one of {', '.join(REPRESENTATIONS)}, got {representation!r}")
    representation = spelled[representation.lower().replace("-", "")]
    check_kind(kind)
    if not rate > 0:
        raise InputError(f"--rate must be positive, got {rate}")
    with _plain_warnings():
        t, x, names = _recording(recording)
        held, angles = _numbers(gripper, "--gripper"), _numbers(unwrap, "--unwrap")
        if any(not 0 <= i < x.shape[1] for i in [*held, *angles]):
            raise InputError(f"channels lie in 0 to {x.shape[1] - 1}, got {[*held, *angles]}")
        if len(held) == x.shape[1]:
            raise InputError("every channel is a gripper: there is nothing to fit")
        turns = _numbers(quaternion, "--quaternion")
        if any(not 0 <= i <= x.shape[1] - 4 for i in turns):
            raise InputError(f"a quaternion takes four of the {x.shape[1]} channels, got {turns} as first ones")
        if turns and kind == "delta":
            raise InputError("increments are no unit quaternions: --quaternion needs --kind absolute")
        try:
            x = unit_quaternions_in(x, turns)
        except ValueError as error:
            raise InputError(f"{recording}: {error}") from None
        if angles:
            x = unwrap_angles(x, angles)
        elif kind == "absolute" and (found := wrapped_channels(x)):
            warnings.warn(
                f"channels {found} jump by more than pi: are they angles? --unwrap {','.join(map(str, found))}",
                stacklevel=1,
            )
        smooth = [i for i in range(x.shape[1]) if i not in held]
        values, times = x[:, smooth], t
        if kind == "delta":
            values = displacement(values)
            times = np.append(t, t[-1] + (t[-1] - t[0]) / (len(t) - 1))
        options = FitOptions(steps=steps, seed=seed, lambda_jerk=lambda_jerk)
        with progress_bar() as progress:
            for _ in progress(range(1), label="fit"):
                motion = _represent(representation, times, values, options)
    at, position, velocity, acceleration = motion.sample(rate, 2)
    residual = float(np.sqrt(np.square(motion.at(times, 0, "hold") - values).mean()))
    columns = [at, *position.T, *velocity.T, *acceleration.T]
    header = ["t"] + [f"{p}{names[i]}" for p in ("", "d_", "dd_") for i in smooth]
    for i in held:
        columns.append(x[np.clip(np.searchsorted(t, at + 1e-9, "right") - 1, 0, len(t) - 1), i])
        header.append(names[i])
    lines = [",".join(header), *(",".join(f"{v:.9g}" for v in row) for row in np.array(columns).T)]
    atomic_write(out, "\n".join(lines) + "\n")
    report = {
        "samples": len(t),
        "duration": motion.duration,
        "residual_rmse": residual,
        **smoothness(motion),
        "out": out,
    }
    if as_json:
        _print_json(report)
        return
    print(f"{len(t)} samples over {motion.duration:.3f} s by {representation}; RMSE at the samples {residual:.4g}")
    print(f"RMS jerk {report['rms_jerk']:.4g}, velocity peaks {report['velocity_peaks']:.0f}")
    print(f"written: {out}, {len(at)} rows at {rate:g} Hz")


@app.command()
def train(
    data: Annotated[Path, typer.Option("--data", help="LeRobot folder (v2.0, v2.1 or v3.0).")],
    head: Annotated[str, typer.Option("--head", help=f"One of {', '.join(HEADS)}.")] = "field",
    backbone: Annotated[str, typer.Option("--backbone", help="state, act, vlm or florence2.")] = "state",
    vlm: Annotated[
        str | None, typer.Option("--vlm", help="Folder, hub id, or JSON configuration of the model.")
    ] = None,
    lora: Annotated[
        int, typer.Option("--lora", min=0, help="Rank of low-rank updates trained in place of the VLM; 0: all of it.")
    ] = 0,
    images: Annotated[str, typer.Option("--images", help="Cameras of the act backbone, with commas.")] = "",
    horizon: Annotated[int, typer.Option("--horizon", help="K, actions a chunk.")] = 10,
    kind: Kind = "absolute",
    gripper: Gripper = "",
    velocity: Annotated[str | None, typer.Option("--velocity", help="recorded or diff (smoothed).")] = None,
    steps: Annotated[int, typer.Option("--steps", min=1)] = 2000,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1)] = 64,
    learning_rate: Annotated[float, typer.Option("--learning-rate")] = 1e-3,
    scale: Annotated[
        str, typer.Option("--scale", help="Of the actions: deviation, or quantiles (1st and 99th to -1 and 1).")
    ] = "deviation",
    width: Annotated[int, typer.Option("--width", min=1, help="Of the field.")] = 64,
    groups: Annotated[int, typer.Option("--groups", min=1, help="Frequency groups of the field.")] = 16,
    out: Annotated[Path, typer.Option("--out", help="Folder of the policy; a run there is gone on with.")] = Path(
        "niaf-policy"
    ),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train a policy on a LeRobot folder; the last tenth of the episodes is held out and reported.

    A run that was stopped goes on from its last checkpoint. Test errors: of the actions, between them (off-grid),
    and of two
    predictors that know nothing: holding the last action, and moving on at its velocity.
    """
    if head not in HEADS:
        raise InputError(f"--head must be one of {', '.join(HEADS)}, got {head!r}")
    if velocity not in (None, "recorded", "diff"):
        raise InputError(f"--velocity must be recorded or diff, got {velocity!r}")
    if scale not in SCALES:
        raise InputError(f"--scale must be one of {', '.join(SCALES)}, got {scale!r}")
    if velocity and kind == "delta":
        raise InputError("--velocity needs --kind absolute: increments are velocities already")
    reader = LeRobotReader(data)
    options: dict[str, Any] = {"width": width, "groups": groups} if head.startswith("field") else {}
    source: Any = vlm
    if vlm and vlm.lstrip().startswith("{"):
        try:
            source = json.loads(vlm)
        except ValueError as error:
            raise InputError(f"--vlm is not JSON: {error}") from None
    with _plain_warnings():
        reader.check_times()
        config = config_for(
            reader,
            horizon=horizon,
            action_kind=kind,
            gripper=_numbers(gripper, "--gripper"),
            head=head,
            head_options=options,
            backbone=backbone,
            image_keys=[k.strip() for k in images.split(",") if k.strip()],
            vlm=source,
            lora_rank=lora,
            learning_rate=learning_rate,
            action_scale=scale,
            n_action_steps=horizon,
        )
        policy = NIAFPolicy(config)
        wanted = TrainOptions(steps, batch_size, min(50, steps), seed, velocity=velocity)
        with progress_bar() as progress:
            history = train_policy(policy, reader, wanted, out, lambda items: progress(items, label="train"))
    try:
        errors = evaluate_policy(policy, reader, split_rows(reader, wanted.test_share)[1])
    except InputError as error:
        errors = {}
        print(f"niaf: warning: {error}", file=sys.stderr)
    report = {"loss": history[-1]["loss"] if history else None, "steps": steps, "test": errors, "out": out}
    if as_json:
        _print_json(report)
        return
    if history:
        print(f"loss {history[0]['loss']:.4g} -> {history[-1]['loss']:.4g} in {steps:,} steps")
    _print_errors(errors)
    print(f"written: {out}")


def _print_errors(errors: dict[str, float]) -> None:
    if errors:
        print(
            f"test: action RMSE {errors['rmse']:.4g}, between the samples {errors['offgrid_rmse']:.4g}; holding "
            f"{errors['hold_rmse']:.4g}, constant velocity {errors['constant_velocity_rmse']:.4g} "
            f"({errors['frames']:.0f} frames)"
        )


@app.command(name="eval")
def evaluate(
    policy: Annotated[Path, typer.Argument(help="Folder of a trained policy.")],
    data: Annotated[Path, typer.Option("--data", help="LeRobot folder.")],
    every: Annotated[bool, typer.Option("--all", help="All episodes, not only the last tenth.")] = False,
    as_json: Json = False,
) -> None:
    """Errors of a trained policy at its samples and between them, beside two trivial predictors."""
    loaded, reader = NIAFPolicy.load(policy), LeRobotReader(data)
    rows = split_rows(reader, 0.1)[1] if not every else np.arange(reader.starts()[-1])
    errors = evaluate_policy(loaded, reader, rows)
    if as_json:
        _print_json(errors)
    else:
        _print_errors(errors)
        print(f"RMS jerk {errors['rms_jerk']:.4g}")


@app.command()
def resample(
    dataset: Annotated[Path, typer.Argument(help="LeRobot folder.")],
    rate: Annotated[float, typer.Option("--rate", help="New rate, Hz.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="New folder.")],
    kind: Kind = "absolute",
    gripper: Gripper = "",
    quaternion: Quaternion = "",
    state_quaternion: Annotated[str, typer.Option("--state-quaternion", help="The same of observation.state.")] = "",
    version: Annotated[str, typer.Option("--version-out", help="v3.0, v2.1 or v2.0.")] = "v3.0",
    as_json: Json = False,
) -> None:
    """Write a LeRobot folder at another rate. Say --kind delta for increments: their sum is resampled, not they."""
    check_kind(kind)
    turns = {
        "action": _numbers(quaternion, "--quaternion"),
        "observation.state": _numbers(state_quaternion, "--state-quaternion"),
    }
    with _plain_warnings(), progress_bar() as progress:
        LeRobotReader(dataset).check_times()
        written, left_out = resample_dataset(
            dataset, out, rate, kind, _numbers(gripper, "--gripper"), version,  # ty: ignore[invalid-argument-type]
            lambda items: progress(items, label="resample"), {k: v for k, v in turns.items() if v},
        )  # fmt: skip
    new, old = LeRobotReader(written), LeRobotReader(dataset)
    frames = int(old.starts()[-1]), int(new.starts()[-1])
    if as_json:
        _print_json({"out": written, "fps": [old.fps, new.fps], "frames": frames, "left_out": left_out})
        return
    print(
        f"{old.fps:g} -> {new.fps:g} Hz, {frames[0]:,} -> {frames[1]:,} frames, {len(new.episodes)} episodes: {written}"
    )
    if left_out:
        print(f"left out (images have no values in between): {', '.join(left_out)}")


@app.command(name="smoothness")
def smoothness_table(
    dataset: Annotated[Path, typer.Argument(help="LeRobot folder.")],
    kind: Kind = "absolute",
    gripper: Gripper = "",
    top: Annotated[int, typer.Option("--top", min=1, help="Episodes to show.")] = 10,
    as_json: Json = False,
) -> None:
    """How smooth each episode's actions are, the roughest first. Increments are summed before; grippers left out."""
    check_kind(kind)
    reader, held = LeRobotReader(dataset), _numbers(gripper, "--gripper")
    rows = []
    with progress_bar() as progress:
        for i in progress(range(len(reader.episodes)), label="episodes"):
            action = reader.episode(i, ["action"])["action"]
            action = _without(action.reshape(len(action), -1).astype(float), held)
            action = displacement(action) if kind == "delta" else action
            rows.append(
                {"episode": reader.episodes[i].index, "frames": len(action), **sampled_smoothness(action, reader.fps)}
            )
    rows.sort(key=lambda r: -np.nan_to_num(r["rms_jerk"], nan=-1.0))
    if as_json:
        _print_json(rows)
        return
    print("episode  frames    RMS jerk  log dim.less jerk  arc length  peaks  largest step")
    for r in rows[:top]:
        print(
            f"{r['episode']:7d} {r['frames']:7d} {r['rms_jerk']:11.4g} {r['log_dimensionless_jerk']:18.3f} "
            f"{r['spectral_arc_length']:11.3f} {r['velocity_peaks']:6.0f} {r['largest_step']:13.4g}"
        )


@app.command()
def check(
    chunk: Annotated[Path, typer.Argument(help="Array [K, d], .npy, or CSV with the header t,name,...")],
    fps: Annotated[float, typer.Option("--fps", help="Rate of an array, Hz.")] = 20.0,
    vmax: Annotated[float | None, typer.Option("--vmax", help="Limit on |velocity|, unit/s.")] = None,
    amax: Annotated[float | None, typer.Option("--amax", help="Limit on |acceleration|, unit/s².")] = None,
    jmax: Annotated[float | None, typer.Option("--jmax", help="Limit on |jerk|, unit/s³.")] = None,
    kind: Kind = "absolute",
    gripper: Gripper = "",
    as_json: Json = False,
) -> None:
    """Check a chunk against limits over its whole course, between the samples too. Exit code 1 where one is exceeded.

    The chunk is taken as the cubic spline through its samples at their times (of the running sum, for increments).
    Channels are counted without the grippers, which are not checked.
    """
    limits = Limits(vmax, amax, jmax)
    if not limits.items():
        raise InputError("give at least one of --vmax, --amax, --jmax")
    check_kind(kind)
    if not (np.isfinite(fps) and fps > 0):
        raise InputError(f"--fps must be positive, got {fps}")
    motion = _chunk_motion(chunk, fps, kind, _numbers(gripper, "--gripper"))
    found = motion.check(limits)
    factor = motion.time_scale(vmax, amax, jmax)
    if as_json:
        _print_json({"violations": [v._asdict() for v in found], "slow_down": factor, "duration": motion.duration})
    else:
        for v in found:
            print(f"channel {v.channel}: {v.quantity} {v.value:.4g} > {v.limit:g} at {v.time:.4f} s")
        print(f"slow down {factor:.3f} times to respect every limit" if found else "within every limit")
    if found:
        raise typer.Exit(1)


def _without(values: np.ndarray, held: list[int]) -> np.ndarray:
    """Channels [K, d] without the grippers, whose states are neither smooth nor to be summed."""
    if any(not 0 <= i < values.shape[1] for i in held):
        raise InputError(f"channels lie in 0 to {values.shape[1] - 1}, got {held}")
    if held and len(set(held)) == values.shape[1]:
        raise InputError("every channel is a gripper: there is nothing to look at")
    return np.delete(values, held, axis=1)


class _SplineMotion(Motion):
    def __init__(self, t: np.ndarray, values: np.ndarray) -> None:
        self.spline, self.t0, self.duration = CubicSpline(t - t[0], values), float(t[0]), float(t[-1] - t[0])
        self.max_order = 3

    def _derivatives(self, t: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        return tuple(self.spline(t - self.t0, n) for n in range(order + 1))


def _chunk_motion(path: Path, fps: float, kind: str, held: list[int]) -> Motion:
    if path.suffix == ".npy":
        try:
            values = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is no array file: {error}") from None
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or len(values) < 2 or values.dtype.kind not in "fiu":
            raise InputError(
                f"{path}: expected numbers [K, d] of at least 2 samples, got {values.dtype} {values.shape}"
            )
        if not np.isfinite(values).all():
            raise InputError(f"{path}, row {int(np.argmin(np.isfinite(values).all(1)))}: a value is not finite")
        t = np.arange(len(values)) / fps
    else:
        with _plain_warnings():
            t, values, _ = read_csv(path)
    values = _without(values, held)
    if kind == "delta":  # each increment ends where the next begins; the last takes the mean time
        return _SplineMotion(np.append(t, t[-1] + (t[-1] - t[0]) / (len(t) - 1)), displacement(values))
    return _SplineMotion(t, values)


@app.command()
def simulate(
    model: Annotated[str, typer.Option("--model", help="point (2 degrees of freedom) or arm (7 joints).")] = "point",
    rate: Annotated[float, typer.Option("--rate", help="Of the commands, Hz.")] = 20.0,
    noise: Annotated[float, typer.Option("--noise", min=0, help="On the commanded positions, m or rad.")] = 0.002,
    stiffness: Annotated[float, typer.Option("--stiffness", help="K_p.")] = 400.0,
    duration: Annotated[float, typer.Option("--duration", help="Seconds.")] = 4.0,
    out: Annotated[Path, typer.Option("--out", help="Folder for the picture.")] = Path("niaf-simulate"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Follow a random smooth path under impedance control in MuJoCo: analytic reference against what waypoints give."""
    if not (rate > 0 and duration > 0 and stiffness > 0):
        raise InputError(f"--rate, --duration and --stiffness must be positive, got {rate}, {duration}, {stiffness}")
    trial = ImpedanceTrial(model, stiffness, rate, noise, duration)
    with progress_bar() as progress:
        for _ in progress(range(1), label="simulate"):
            found = impedance_table(trial, Streams(seed).numpy("path 0"), seed)
    length, unit = trial.units
    picture = plots.tracking(out / model, found, trial)
    if as_json:
        _print_json({"rows": found["rows"], "picture": picture})
        return
    print(f"{'reference':20} RMSE, {length}  effort rate, {unit}/s")
    for name, row in found["rows"].items():
        print(f"{name:20} {row['rmse']:9.2f} {row['effort_rate']:16.4g}")
    print(f"written: {picture}")


@app.command()
def recipe(
    name: Annotated[str, typer.Argument(help="calvin or libero.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for config.json, training.json and run.sh.")] = Path(
        "niaf-recipe"
    ),
) -> None:
    """Write the paper's full-scale setting: configuration, and commands of conversion, training and evaluation."""
    lines = commands(name)
    _new(out)
    for path in write_recipe(name, out):
        print(f"written: {path}")
    for line in lines:
        print(f"  {line}")


@app.command()
def convert(
    source: Annotated[str, typer.Argument(help="calvin or robomimic (LIBERO's files too).")],
    paths: Annotated[
        list[Path], typer.Argument(help="CALVIN folder, or HDF5 files; the last is the new LeRobot folder.")
    ],
    fps: Annotated[
        float | None, typer.Option("--fps", help="Rate of the data; 30 for CALVIN, 20 for robomimic.")
    ] = None,
    images: Annotated[bool, typer.Option("--images/--no-images", help="Keep images, embedded as PNG.")] = True,
    version: Annotated[str, typer.Option("--version-out", help="v3.0, v2.1 or v2.0.")] = "v3.0",
) -> None:
    """Make a LeRobot folder out of CALVIN or robomimic/LIBERO files. RLDS is not read."""
    if source not in ("calvin", "robomimic"):
        raise InputError(f"expected calvin or robomimic, got {source!r}")
    if len(paths) < 2:
        raise InputError("expected what to read and the new folder")
    target = paths[-1]
    _new(target)
    episodes: list[dict[str, Any]] = []
    with progress_bar() as progress:
        for path in progress(paths[:-1], label="read"):
            if source == "calvin":
                episodes += read_calvin(path, images=images)
            else:
                episodes += [_with_state(e) for e in read_robomimic(path, images=images)]
    rate = fps if fps is not None else 30.0 if source == "calvin" else 20.0
    write_lerobot(target, episodes, rate, version)  # ty: ignore[invalid-argument-type]
    print(f"{len(episodes)} episodes, {sum(len(e['action']) for e in episodes):,} frames at {rate:g} Hz: {target}")


def _with_state(episode: dict[str, Any]) -> dict[str, Any]:
    """All vectors of an observation as one ``observation.state``."""
    vectors = [k for k in sorted(episode) if k.startswith("observation.") and np.ndim(episode[k]) <= 2]
    parts = [np.asarray(episode[k], np.float32).reshape(len(episode["action"]), -1) for k in vectors]
    rest = {k: v for k, v in episode.items() if k not in vectors}
    return {**rest, "observation.state": np.concatenate(parts, 1)} if parts else rest


@app.command()
def bench(
    topic: Annotated[str, typer.Argument(help=f"One of {', '.join(benchmarks.TOPICS)}.")] = "derivatives",
    out: Annotated[Path, typer.Option("--out", help="Folder for results.")] = Path("niaf-bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes.")] = False,
) -> None:
    """Time closed-form derivatives beside autodiff, splines beside scipy, reading beside datasets, roll-outs
    beside DMPs."""
    if topic not in benchmarks.TOPICS:
        raise InputError(f"expected one of {', '.join(benchmarks.TOPICS)}, got {topic!r}")
    out.mkdir(parents=True, exist_ok=True)
    for title, table in benchmarks.TOPICS[topic](out, quick).items():
        print(f"{title}\n\n{table}\n")
