"""A simulated robot under impedance control, to compare references: a point of two degrees of freedom and an arm
of seven.

MuJoCo is the extra ``mujoco``; the models are written here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niaf.bases import BasisCurve, BSplineBasis, encode
from niaf.fit import FitOptions, fit_fields
from niaf.impedance import ImpedanceController, Reference
from niaf.trajectory import Trajectory
from papershelf import InputError, require

EXTRA = "papershelf-niaf[mujoco]"
STEP = 0.001

POINT_XML = f"""
<mujoco>
  <option timestep="{STEP}" gravity="0 0 0" integrator="RK4"/>
  <worldbody>
    <body>
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="y" type="slide" axis="0 1 0"/>
      <geom type="sphere" size="0.02" mass="1"/>
    </body>
  </worldbody>
  <actuator><motor joint="x"/><motor joint="y"/></actuator>
</mujoco>
"""


def arm_xml() -> str:
    """A seven-joint arm of capsules (alternating axes, 1.1 m), with gravity."""
    lengths, masses = (0.17, 0.17, 0.2, 0.2, 0.15, 0.12, 0.08), (3.0, 2.5, 2.2, 1.8, 1.4, 1.0, 0.5)
    opening, closing, motors = "", "", ""
    height = 0.0
    for i, (length, mass) in enumerate(zip(lengths, masses, strict=True)):
        axis = "0 0 1" if i % 2 == 0 else "0 1 0"
        opening += (
            f'<body pos="0 0 {height}"><joint name="j{i + 1}" axis="{axis}" damping="0.1" armature="0.05"/>'
            f'<geom type="capsule" fromto="0 0 0 0 0 {length}" size="0.04" mass="{mass}"/>'
        )
        closing = "</body>" + closing
        motors += f'<motor joint="j{i + 1}"/>'
        height = length
    site = f'<site name="hand" pos="0 0 {lengths[-1]}"/>'
    return (
        f'<mujoco><option timestep="{STEP}" integrator="implicitfast"><flag contact="disable"/></option>'
        f"<worldbody>{opening}{site}{closing}</worldbody><actuator>{motors}</actuator></mujoco>"
    )


@dataclass(frozen=True)
class Tracking:
    """What a run recorded: seconds [N], positions and efforts [N, n], and the step in seconds."""

    t: np.ndarray
    position: np.ndarray
    effort: np.ndarray

    def rmse(self, truth: np.ndarray, skip: float = 0.0) -> float:
        """Root mean squared distance to the true path [N, n], after ``skip`` seconds."""
        keep = self.t >= skip
        return float(np.sqrt(np.square(self.position - truth)[keep].sum(1).mean()))

    def effort_rate(self, skip: float = 0.0) -> float:
        """RMS change of the effort per second."""
        keep = self.t[1:] >= skip
        rate = np.diff(self.effort, axis=0) / np.diff(self.t)[:, None]
        return float(np.sqrt(np.square(rate)[keep].sum(1).mean()))


class MujocoRunner:
    """Runs a controller on a model.

    Args:
        model: XML text, or the path of a file.
        controller: see :class:`~niaf.impedance.ImpedanceController`.
        bias: whether gravity and Coriolis forces are cancelled.
    """

    def __init__(self, model: str | Path, controller: ImpedanceController, bias: bool = True) -> None:
        self.mujoco = require("mujoco", EXTRA)
        text = str(model)
        try:
            if text.lstrip().startswith("<"):
                self.model = self.mujoco.MjModel.from_xml_string(text)
            else:
                self.model = self.mujoco.MjModel.from_xml_path(text)
        except ValueError as error:
            raise InputError(f"no MuJoCo model: {error}") from None
        self.controller, self.bias = controller, bias

    def mass_matrix(self, qpos: np.ndarray) -> np.ndarray:
        """Joint inertia at a configuration."""
        data = self.mujoco.MjData(self.model)
        data.qpos[:] = qpos
        self.mujoco.mj_forward(self.model, data)
        full = np.zeros((self.model.nv, self.model.nv))
        self.mujoco.mj_fullM(self.model, data, full)
        return full

    def run(self, reference: Callable[[float], Reference], duration: float, start: Reference | None = None) -> Tracking:
        """Follow a reference in time; from rest at its start, or with its starting velocity."""
        data = self.mujoco.MjData(self.model)
        first = reference(0.0) if start is None else start
        data.qpos[:], data.qvel[:] = first.position, first.velocity
        self.controller.reset()
        dt = self.model.opt.timestep
        count = round(duration / dt)
        rows = np.zeros((count, 2, self.model.nv))
        for i in range(count):
            self.mujoco.mj_forward(self.model, data)
            bias = data.qfrc_bias.copy() if self.bias else 0.0
            u = self.controller.effort(reference(i * dt), data.qpos, data.qvel, dt, bias)
            rows[i] = data.qpos, u
            data.ctrl[:] = u
            self.mujoco.mj_step(self.model, data)
        return Tracking(np.arange(count) * dt, rows[:, 0], rows[:, 1])


# --- What is compared ---------------------------------------------------------------------------------------------


def smooth_path(t: np.ndarray, rng: np.random.Generator, channels: int, amplitude: float = 0.15) -> Any:
    """A sum of three sines a channel: position, velocity, acceleration as functions of time."""
    frequency = rng.uniform(1.0, 5.0, (3, channels))
    phase = rng.uniform(0, 2 * np.pi, (3, channels))
    size = amplitude * rng.uniform(0.5, 1.0, (3, channels)) / frequency
    angle = t[:, None, None] * frequency + phase
    return [(size * frequency**n * np.sin(angle + n * np.pi / 2)).sum(1) for n in range(3)]


REFERENCES = ("analytic", "lerp+FD", "lerp, v=0", "hold+FD", "hold, v=0")


def references(path: Trajectory, samples: np.ndarray, command_rate: float) -> dict[str, Callable[[float], Reference]]:
    """The references that a robot is given between commands.

    Args:
        path: the continuous function.
        samples: commanded positions [N, d].
        command_rate: of the commands, Hz.
    """
    n, zero = len(samples), np.zeros(samples.shape[1])
    slopes = np.diff(samples, axis=0) * command_rate

    def analytic(t: float) -> Reference:
        return Reference(*path.derivatives(min(t, path.end), 2))

    def discrete(line: bool, velocity: bool) -> Callable[[float], Reference]:
        def at(t: float) -> Reference:
            i = min(int(t * command_rate + 1e-9), n - 2)
            s = min(t * command_rate - i, 1.0)
            x = samples[i] + s * (samples[i + 1] - samples[i]) if line else samples[i if s < 1 else i + 1]
            return Reference(x, slopes[i] if velocity else zero, zero)

        return at

    return {
        "analytic": analytic,
        "lerp+FD": discrete(True, True),
        "lerp, v=0": discrete(True, False),
        "hold+FD": discrete(False, True),
        "hold, v=0": discrete(False, False),
    }


@dataclass(frozen=True)
class ImpedanceTrial:
    """Setting of the comparison.

    Attributes:
        model: ``"point"`` (two degrees of freedom, 1 kg) or ``"arm"`` (seven joints).
        kp: stiffness.
        command_rate: Hz.
        noise: of the commanded positions, m or rad.
        duration: seconds.
        steps: of the field's fit.
    """

    model: str = "point"
    kp: float = 400.0
    command_rate: float = 20.0
    noise: float = 0.002
    duration: float = 4.0
    steps: int = 800

    @property
    def units(self) -> tuple[str, str]:
        """Of a thousandth of the position, and of the effort."""
        return ("mrad", "Nm") if self.model == "arm" else ("mm", "N")


def impedance_table(trial: ImpedanceTrial, rng: np.random.Generator, seed: int = 0) -> dict[str, Any]:
    """Tracking error (mm, or mrad) and effort rate (N/s, or Nm/s) of each reference on one random smooth path.

    Every reference is made from the same noisy commands. ``analytic`` is a field fitted to them with a small jerk
    weight;
    a least-squares B-spline is shown for comparison.
    """
    if trial.model not in ("point", "arm"):
        raise InputError(f"model must be point or arm, got {trial.model!r}")
    channels = 2 if trial.model == "point" else 7
    n = round(trial.duration * trial.command_rate) + 1
    if n < 3:
        raise InputError(f"{trial.duration} s at {trial.command_rate} Hz are {n} commands; expected at least 3")
    grid = np.arange(n) / trial.command_rate
    state = rng.bit_generator.state
    clean = smooth_path(grid, rng, channels)
    noise = trial.noise * rng.standard_normal(clean[0].shape)
    samples = clean[0] + noise
    velocity = clean[1] + noise.std() * clean[1].std() / clean[0].std() * rng.standard_normal(clean[1].shape)
    options = FitOptions(steps=trial.steps, lambda_jerk=1e-4, lambda_vel=0.005, seed=seed)
    (path,) = fit_fields(samples[None], trial.duration, velocity[None], options)
    arm = trial.model == "arm"
    mass: Any = 1.0
    if arm:
        mass = np.diag(MujocoRunner(arm_xml(), ImpedanceController(trial.kp)).mass_matrix(np.zeros(7)))
    controller = ImpedanceController(trial.kp, mass)
    runner = MujocoRunner(arm_xml() if arm else POINT_XML, controller)
    rng.bit_generator.state = state
    fine = np.arange(round(trial.duration / STEP)) * STEP
    truth = smooth_path(fine, rng, channels)
    given = references(path, samples, trial.command_rate)
    basis = BSplineBasis(max(8, n // 3), 4)
    spline = Trajectory(BasisCurve(basis, encode(basis, np.linspace(-1, 1, n), samples)), trial.duration)
    given["B-spline, analytic"] = references(spline, samples, trial.command_rate)["analytic"]
    start = Reference(truth[0][0], truth[1][0], truth[2][0])
    rows, runs = {}, {}
    for name, reference in given.items():
        done = runs[name] = runner.run(reference, trial.duration, start)
        rows[name] = {"rmse": 1e3 * done.rmse(truth[0], 0.25), "effort_rate": done.effort_rate(0.25)}
    return {"rows": rows, "runs": runs, "truth": truth, "t": fine}
