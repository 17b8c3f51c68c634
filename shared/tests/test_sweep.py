"""The same sweep here, on Ray and on Dask gives the same numbers, and a killed one goes on where it stopped."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from papershelf import InputError, Streams
from papershelf.sweep import grid_points, sweep

PROGRAM = """
import os, sys, time
from pathlib import Path
from papershelf.sweep import sweep

def slow(x: int, folder: str) -> int:
    with open(f"{folder}/calls", "a") as log:
        log.write(f"{x}\\n")
    time.sleep(0.15)
    return x * x

if __name__ == "__main__":
    cells = sweep(slow, {"x": list(range(12)), "folder": [sys.argv[1]]}, jobs=int(sys.argv[2]), cache=Path(sys.argv[1]) / "cells")
    print([cell.value for cell in cells])
"""


def draw(size, seed):
    return {"mean": float(Streams(seed).numpy("draw").normal(size=size).mean()), "array": np.arange(size)}


# Workers cannot import a test module by name; what belongs to __main__ travels by value.
draw.__module__ = "__main__"

GRID = {"size": [3, 5], "seed": [0, 1, 2]}


def numbers(cells):
    return [(cell.params, cell.value["mean"], cell.value["array"].tolist()) for cell in cells]


def test_cells_come_in_the_grids_order_for_any_number_of_jobs(tmp_path):
    one, two = sweep(draw, GRID), sweep(draw, GRID, jobs=2)
    assert [cell.params for cell in one] == grid_points(GRID)
    assert numbers(one) == numbers(two)
    assert one[0].params == {"size": 3, "seed": 0}


def test_finished_cells_are_read_back(tmp_path):
    first = sweep(draw, GRID, cache=tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 6
    again = sweep(draw, GRID, cache=tmp_path)
    assert numbers(first) == numbers(again)
    assert [c.seconds for c in first] == [c.seconds for c in again]
    sweep(draw, [{"size": 4, "seed": 9}], cache=tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 7


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_sweep_loses_only_unfinished_cells(jobs, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), str(tmp_path), str(jobs)]
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "cells").glob("*.npz"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    kept = len(list((tmp_path / "cells").glob("*.npz")))
    assert 5 <= kept < 12
    before = (tmp_path / "calls").read_text().split()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([x * x for x in range(12)])
    repeated = (tmp_path / "calls").read_text().split()[len(before) :]
    assert len(repeated) == 12 - kept


@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_same_numbers(tmp_path, monkeypatch):
    # Under "uv run" Ray would start its workers through uv again, from a copy of the working directory.
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        found = sweep(draw, GRID, jobs=2, backend="ray", cache=tmp_path)
    finally:
        ray.shutdown()
    assert numbers(found) == numbers(sweep(draw, GRID))
    assert len(list(tmp_path.glob("*.npz"))) == 6


@pytest.mark.filterwarnings("ignore")
def test_dask_gives_the_same_numbers(tmp_path):
    pytest.importorskip("distributed")
    found = sweep(draw, GRID, jobs=2, backend="dask", cache=tmp_path)
    assert numbers(found) == numbers(sweep(draw, GRID))
    assert len(list(tmp_path.glob("*.npz"))) == 6


def test_bad_arguments():
    with pytest.raises(InputError, match="backend must be local, ray or dask, got 'slurm'"):
        sweep(draw, GRID, backend="slurm")
    with pytest.raises(InputError, match="jobs must be >= 1, got 0"):
        sweep(draw, GRID, jobs=0)
