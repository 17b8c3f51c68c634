"""Frechet distance of 2,048 channels: symmetric eigen-decompositions beside SciPy's general matrix square root."""

import sys
from pathlib import Path

import numpy as np
from scipy.linalg import sqrtm

from papershelf.bench import as_values, compare, markdown_table, write_results
from repack_dit.metrics import frechet_from_moments


def by_sqrtm(mean_a: np.ndarray, cov_a: np.ndarray, mean_b: np.ndarray, cov_b: np.ndarray) -> float:
    """The formula as published FID code writes it."""
    root = sqrtm(cov_a @ cov_b)
    return float(np.sum((mean_a - mean_b) ** 2) + np.trace(cov_a) + np.trace(cov_b) - 2 * np.trace(root).real)


def main(out: Path, quick: bool) -> None:
    """Time both on the same moments, check that they agree to 1e-6, and write the table."""
    channels = 128 if quick else 2048
    rng = np.random.default_rng(0)
    # a spectrum that falls like that of Inception's features, full rank
    scale = 1 / np.sqrt(1 + np.arange(channels))
    sets = [rng.normal(size=(3 * channels, channels)) * scale + shift for shift in (0.0, 0.05)]
    law = [part for x in sets for part in (x.mean(0), np.cov(x.T))]
    found, expected = frechet_from_moments(*law), by_sqrtm(*law)
    difference = abs(found - expected) / abs(expected)
    if not difference <= 1e-6:
        raise SystemExit(f"the two differ by {difference:.2g}, more than 1e-6")
    functions = {
        "scipy.linalg.sqrtm": lambda: by_sqrtm(*law),
        "eigen-decompositions": lambda: frechet_from_moments(*law),
    }
    timings = compare(functions, repeat=3)
    title = f"Frechet distance at {channels} channels; relative difference {difference:.1e}"
    values = {title: as_values(timings), "relative_difference": difference}
    write_results(out / "fid.json", {title: markdown_table(timings)}, values)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--quick" in sys.argv)
