"""Rating data: a synthetic population with known truth, US Senate roll calls, film ratings, House votes."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from papershelf import InputError, require
from papershelf.files import debian_assets, registry_asset
from synthetic_consensus.mf import Ratings

PSCL = "usr/lib/R/site-library/pscl/data/Rdata"
PSCL_FILES = {
    f"{PSCL}.rdb": "753a237a09eaa0d0ae79a4c497e75bbb3332ac3a6d9416090dd2118baeb44c95",
    f"{PSCL}.rdx": "f03694cb79882d588b50067db0fb83e804b12214648a95f615c30dafcbc61244",
}
MLBENCH = "usr/lib/R/site-library/mlbench/data/HouseVotes84.rda"
MOVIELENS = (
    "recbole==1.2.1",
    "recbole/dataset_example/ml-100k/ml-100k.inter",
    "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
)


@dataclass(frozen=True)
class Truth:
    """What a synthetic population was made from.

    Attributes:
        rater_factor: (U,).
        rater_intercept: (U,).
        polarity: of the notes, (M,).
        quality: of the notes, (M,).
        coordinated: raters of the planted group, bool (U,).
    """

    rater_factor: np.ndarray
    rater_intercept: np.ndarray
    polarity: np.ndarray
    quality: np.ndarray
    coordinated: np.ndarray


def synthetic(
    n_raters: int = 2000,
    n_notes: int = 1000,
    n_ratings: int = 60_000,
    preset: Literal["dense", "sparse"] = "dense",
    *,
    coordinated: int = 0,
    rng: np.random.Generator | int | None = None,
) -> tuple[Ratings, Truth]:
    """A population of two camps that rates notes of some quality and polarity.

    Rater factors are +-|N(.6, .25)|, 60 % on the first side; intercepts N(0, .2); note polarity N(0, .5), quality
    N(0, .25). With z = .47 + i_u + q_n + f_u p_n, p(1) is proportional to e^(-6 (.5 - z)), p(0) to e^(6 (.5 - z)),
    p(.5) to 1. Popularity of raters and notes is log-normal (sigma .5 for ``"dense"``, 1.3 for ``"sparse"``).

    Args:
        n_raters: U.
        n_notes: M.
        n_ratings: drawn pairs; repeated ones count once, so a few less come out.
        preset: how uneven activity and popularity are.
        coordinated: raters of a planted group, all rating the same 30 notes Helpful.
        rng: source.

    Returns:
        Ratings (raters and notes labelled by their number) and the truth.
    """
    if preset not in ("dense", "sparse"):
        raise InputError(f"preset must be dense or sparse, got {preset!r}")
    if min(n_raters, n_notes, n_ratings) < 1 or not 0 <= coordinated <= n_raters:
        raise InputError(
            f"need raters, notes, ratings >= 1, got {n_raters}, {n_notes}, {n_ratings} ({coordinated} coordinated)"
        )
    rng = np.random.default_rng(rng)
    sigma = 0.5 if preset == "dense" else 1.3
    side = np.where(rng.random(n_raters) < 0.6, -1.0, 1.0)
    truth = Truth(
        side * np.abs(rng.normal(0.6, 0.25, n_raters)),
        rng.normal(0, 0.2, n_raters),
        rng.normal(0, 0.5, n_notes),
        rng.normal(0, 0.25, n_notes),
        np.arange(n_raters) < coordinated,
    )
    pairs = np.unique(
        _drawn(n_raters, n_ratings, sigma, rng).astype(np.int64) * n_notes + _drawn(n_notes, n_ratings, sigma, rng)
    )
    rater, note = pairs // n_notes, pairs % n_notes
    value = _levels(truth, rater, note, rng)
    if coordinated:
        targets = rng.permutation(n_notes)[: min(30, n_notes)]
        keep = ~(truth.coordinated[rater] & np.isin(note, targets))
        added = np.repeat(np.arange(coordinated), targets.size)
        rater = np.concatenate([rater[keep], added])
        note, value = (
            np.concatenate([note[keep], np.tile(targets, coordinated)]),
            np.append(value[keep], np.ones(added.size)),
        )
    return Ratings.of(rater, note, value), truth


def _drawn(size: int, count: int, sigma: float, rng: np.random.Generator) -> np.ndarray:
    weight = rng.lognormal(0, sigma, size)
    return rng.choice(size, count, p=weight / weight.sum())


def _levels(truth: Truth, rater: np.ndarray, note: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    z = 0.47 + truth.rater_intercept[rater] + truth.quality[note] + truth.rater_factor[rater] * truth.polarity[note]
    up, down = np.exp(-6 * (0.5 - z)), np.exp(6 * (0.5 - z))
    draw = rng.random(z.size) * (up + down + 1)
    return np.where(draw < up, 1.0, np.where(draw < up + down, 0.0, 0.5))


def sparse_preset(rng: np.random.Generator | int | None = 0) -> Ratings:
    """The ``sparse`` preset at the size of the claims: about 237,000 ratings, 5,500 raters and 5,100 notes after the
    filter."""
    return synthetic(10_000, 6000, 270_000, "sparse", rng=rng)[0].filter()


# --- roll calls --------------------------------------------------------------------------------------------------


def _r_object(name: str, base: dict[str, Path]) -> Any:
    """One object of an R lazy-load database, without R: the index gives offset and length of its zlib stream."""
    rdata = require("rdata", "papershelf-synthetic-consensus[senate]")
    import warnings

    def converted(content: bytes) -> Any:
        with warnings.catch_warnings():
            # Classes of R without a counterpart come as plain dictionaries, texts without an encoding are ASCII.
            warnings.simplefilter("ignore")
            return rdata.conversion.convert(rdata.parser.parse_data(content))

    index = converted(gzip.decompress(base[f"{PSCL}.rdx"].read_bytes()))
    variables = index["variables"]
    if name not in variables:
        raise InputError(f"no object {name!r} in pscl; it has {', '.join(sorted(variables))}")
    offset, length = (int(x) for x in variables[name])
    block = base[f"{PSCL}.rdb"].read_bytes()[offset : offset + length]
    return converted(zlib.decompress(block[4:]))


def senate109() -> tuple[Ratings, dict[Any, str]]:
    """US Senate roll calls of the 109th Congress: members rate bills, yea 1 and nay 0; and every member's party.

    From Debian's r-cran-pscl (GPL-2, loaded when asked for, never shipped). Codes 1 to 3 are yea, 4 to 6 nay;
    missing ones are left out. Filtered as for training.
    """
    found = _r_object("s109", debian_assets("r-cran-pscl", PSCL_FILES))
    votes = found["votes"]
    matrix = np.asarray(getattr(votes, "values", votes))
    names = [str(x) for x in getattr(votes, "coords", {}).get("dim_0", np.arange(len(matrix)))]
    member, bill = np.nonzero((matrix >= 1) & (matrix <= 6))
    value = (matrix[member, bill] <= 3).astype(float)
    parties = _parties(found, names)
    return Ratings.of(np.array(names)[member], bill, value).filter(), parties


def _parties(found: Any, names: list[str]) -> dict[Any, str]:
    table = found.get("legis.data")
    if table is None or "party" not in table:
        return {}
    return dict(zip(names, (str(p) for p in table["party"]), strict=True))


def house84() -> Ratings:
    """Votes of 435 members of the House on 16 questions (1984), from Debian's r-cran-mlbench."""
    rdata = require("rdata", "papershelf-synthetic-consensus[senate]")
    path = debian_assets("r-cran-mlbench", {MLBENCH: ""})[MLBENCH]
    table = rdata.read_rda(path)["HouseVotes84"]
    triples = [
        (member, question, 1.0 if vote == "y" else 0.0)
        for question in table.columns[1:]
        for member, vote in enumerate(table[question])
        if vote in ("y", "n")
    ]
    rater, note, value = zip(*triples, strict=True)
    return Ratings.of(np.array(rater), np.array(note), np.array(value)).filter()


def movielens100k() -> Ratings:
    """MovieLens 100k as ratings of films: 1-2 stars 0, 3 stars .5, 4-5 stars 1; filtered as for training.

    GroupLens' research licence: loaded out of the recbole package when asked for, never shipped.
    """
    import pandas as pd

    table = pd.read_csv(registry_asset(*MOVIELENS), sep="\t")
    stars = table["rating:float"].to_numpy()
    value = np.where(stars <= 2, 0.0, np.where(stars == 3, 0.5, 1.0))
    return Ratings.of(table["user_id:token"].to_numpy(), table["item_id:token"].to_numpy(), value).filter()


def named(source: str) -> Ratings:
    """Ratings by name: ``senate109``, ``house84``, ``movielens100k``, ``dense`` or ``sparse``."""
    match source:
        case "senate109":
            return senate109()[0]
        case "house84":
            return house84()
        case "movielens100k":
            return movielens100k()
        case "dense":
            return synthetic(rng=0)[0].filter()
        case "sparse":
            return sparse_preset()
    raise InputError(f"no data {source!r}; named: senate109, house84, movielens100k, dense, sparse")
