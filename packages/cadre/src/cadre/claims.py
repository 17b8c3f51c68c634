"""The paper, its claims and its methods."""

import numpy as np

from cadre.method import mean
from papershelf import Claim, Method, Outcome, Paper, Run


def measure_bias(run: Run) -> Outcome:
    """C1: the mean of a centred sample is near 0."""
    size = run.size(tiny=1000, quick=100_000)
    value = mean(run.streams.numpy("sample").normal(size=size))
    return Outcome(holds=abs(value) < 4 / size**0.5, measured=f"{value:.2g}", values={"mean": value})


def measure_variance(run: Run) -> Outcome:
    """C2: the variance of the mean falls as 1/n."""
    rng = run.streams.numpy("sample")
    variances = [np.var([mean(rng.normal(size=n)) for _ in range(run.size(tiny=200, quick=2000))]) for n in (10, 100)]
    ratio = float(variances[0] / variances[1])
    return Outcome(holds=7 < ratio < 14, measured=f"ratio {ratio:.1f}", values={"ratio": ratio})


def measure_shift(run: Run) -> Outcome:
    """C3: the mean moves with the sample."""
    values = run.streams.numpy("sample").normal(size=100)
    gap = abs(mean(values + 3) - mean(values) - 3)
    return Outcome(holds=gap < 1e-12, measured=f"gap {gap:.1g}", values={"gap": gap})


PAPER = Paper(
    slug="cadre",
    package="cadre",
    distribution="papershelf-cadre",
    title="Learning General Causal Structures with Hidden Dynamic Process for Climate Analysis",
    authors=("Ann Author",),
    year=2026,
    venue="International Conference on Machine Learning",
    summary="Say what it does for its user.",
    claims=(
        Claim(
            id="C1",
            statement="The mean is unbiased",
            paper="not available",
            criterion="within four standard errors of 0",
            measure=measure_bias,
        ),
        Claim(
            id="C2",
            statement="Its variance falls as 1/n",
            paper="not available",
            criterion="ratio of variances at n = 10 and 100 between 7 and 14",
            measure=measure_variance,
        ),
        Claim(
            id="C3",
            statement="It is equivariant",
            paper="not available",
            criterion="gap below 1e-12",
            measure=measure_shift,
        ),
    ),
    methods=(Method(name="method", summary="the mean", files=("method.py",), requires=("numpy",)),),
)
