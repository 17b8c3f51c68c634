"""A made paper and its results, used by several tests."""

import pytest

from papershelf import Claim, Method, Outcome, Paper


def holds(run):
    value = float(run.streams.numpy("x").random())
    return Outcome(holds=value >= 0, measured=f"value {value:.3f}", values={"value": value})


def fails(run):
    return Outcome(holds=False, measured="it is 0", values={"nan": float("nan")})


def raises(run):
    raise RuntimeError("no luck\nsecond line")


def draws(run):
    from papershelf.plot import figure, save

    with figure() as (drawing, axes):
        axes.plot([0, 1], [0, run.options.get("top", 1)])
        return Outcome(holds=True, measured="drawn", figures=save(drawing, run.out / "line"))


def make_claim(claim_id, measure, **more):
    words = {"statement": f"statement <{claim_id}>", "paper": "table 1: 0.5", "criterion": "value >= 0"}
    return Claim(id=claim_id, measure=measure, **{**words, **more})


@pytest.fixture(name="make_claim")
def make_claim_fixture():
    """Makes a claim from an id and a measurement."""
    return make_claim


@pytest.fixture
def paper():
    """A paper with one claim of every kind; its package is this shared one, so that it can be vendored."""
    return Paper(
        slug="made-up",
        package="papershelf",
        distribution="papershelf",
        title="A Made-Up Paper",
        authors=("Ann Author", "Bob Writer"),
        year=2026,
        venue="ICML",
        summary="Nothing in particular.",
        note="A note.",
        claims=(
            make_claim("C1", holds),
            make_claim("C2", fails),
            make_claim("C3", raises),
            make_claim("C4", draws, options={"top": int}),
            make_claim("C5", holds, scale="long"),
            make_claim("C6", holds, scale="full", needs="8 GPUs", recipe="made-up reproduce C6 --full"),
        ),
        methods=(
            Method(name="streams", summary="named streams", files=("random.py",), requires=("numpy",)),
            Method(name="stats", summary="intervals", files=("stats.py",), requires=("numpy",)),
        ),
    )
