"""The ``noisy-fairdiv`` command."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from noisy_fairdiv import bench as benchmarks
from noisy_fairdiv import plots, solvers
from noisy_fairdiv.claims import PAPER, solver_messages_to_stderr
from noisy_fairdiv.core import SELECTS, Allocation, envy, lp_bound, posterior_means, stein_gains, sweep
from noisy_fairdiv.core import plan as query_plan
from noisy_fairdiv.data import Table, films, read_table
from noisy_fairdiv.instances import instance_family
from noisy_fairdiv.oracles import BernoulliOracle, GaussianOracle
from noisy_fairdiv.questions import (
    CertificateRound,
    Oracle,
    Sigma,
    advantages,
    allocate_answers,
    certified_envy_free,
    known_sigma,
    lower_bounds,
)
from noisy_fairdiv.simulation import RULES, success_rate
from papershelf import InputError, Streams
from papershelf import cli as shelf
from papershelf.files import atomic_write
from papershelf.reproduce import plain, progress_bar
from papershelf.stats import wilson_interval

app = shelf.app(PAPER)

Data = Annotated[Path, typer.Argument(help="Table of values: .csv, .tsv, .json or a PrefLib file.")]
SigmaText = Annotated[
    str, typer.Option("--sigma", help="Standard deviation of one answer, or 'estimate' (needs repeats).")
]
Delta = Annotated[float, typer.Option("--delta", help="Error probability of the certificate.")]
SelectText = Annotated[str, typer.Option("--select", help=f"Threshold rule: {', '.join(SELECTS)}.")]
Chores = Annotated[bool, typer.Option("--allow-chores", help="Accept goods of negative value.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Threads.")]


def _print_json(value: Any) -> None:
    print(json.dumps(plain(value), ensure_ascii=False))


def _sigma(text: str) -> float | Literal["estimate"]:
    if text == "estimate":
        return "estimate"
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"--sigma expects a positive number or 'estimate', got {text!r}") from None
    if not value > 0 or not math.isfinite(value):
        raise InputError(f"--sigma expects a positive number or 'estimate', got {text!r}")
    return value


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError(f"--delta must lie between 0 and 1, got {delta}")


def _write_owners(path: Path, items: Sequence[str], agents: Sequence[str], owner: np.ndarray) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["item", "owner"])
    writer.writerows(zip(items, (agents[a] for a in owner), strict=True))
    atomic_write(path, text.getvalue())


def _read_owners(path: Path, table: Table) -> np.ndarray:
    if not path.is_file():
        raise InputError(f"no file {str(path)!r}")
    rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    if not rows or [cell.strip().lower() for cell in rows[0]] != ["item", "owner"]:
        raise InputError(f"{path}: expected the columns item, owner")
    found: dict[str, int] = {}
    for line, row in enumerate(rows[1:], 2):
        if len(row) != 2 or row[0] not in table.items or row[1] not in table.agents:
            raise InputError(f"{path}, line {line}: expected an item and an agent of the table, got {row}")
        if row[0] in found:
            raise InputError(f"{path}, line {line}: item {row[0]!r} stands twice")
        found[row[0]] = table.agents.index(row[1])
    missing = [item for item in table.items if item not in found]
    if missing:
        raise InputError(f"{path}: no owner for {len(missing)} items, the first is {missing[0]!r}")
    return np.array([found[item] for item in table.items])


def _scale_note(table: Table) -> str:
    means = table.answers.means
    low, high = float(means.min()), float(means.max())
    if means.mean(axis=1).max() <= 1:  # single cells may leave [0, 1] by noise
        return ""
    return (
        f"values run from {low:.4g} to {high:.4g}; gains are in these units, and 'plan' wants them divided by "
        f"{high:.4g}"
    )


# --- allocate ----------------------------------------------------------------------------------------------------


def _needed_factor(lower: np.ndarray, estimate: np.ndarray) -> float:
    """How many times the answers would make every bound positive if the estimates stayed; infinite where one is <=
    0."""
    if (estimate <= 0).any():
        return math.inf
    return float(np.max(((estimate - lower) / estimate) ** 2))


@app.command()
def allocate(
    data: Data,
    sigma: SigmaText = "estimate",
    delta: Delta = 0.05,
    select: SelectText = "stein",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the owner of each item, CSV.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw the gains along the sweep (two agents).")] = None,
    allow_chores: Chores = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Allocate the goods of a table of noisy answers, and say whether nobody envies for certain.

    Rows "agent, item, value" of the same cell are repeated questions. Half of the answers choose the allocation, the
    other half tests it; when it passes it is certified, otherwise the allocation from all answers is given,
    uncertified.
    """
    _check_delta(delta)
    table, noise = read_table(data, allow_chores), _sigma(sigma)
    rng = Streams(seed).numpy("allocate")
    deviation = known_sigma(noise, table.answers)
    found = allocate_answers(table.answers, deviation, rng, select)  # ty: ignore[invalid-argument-type]
    report = _certify(table, noise, deviation, found, delta, select, rng)
    if picture is not None:
        _draw_sweep(picture, table, deviation, report["allocation"])
    if out is not None:
        _write_owners(out, table.items, table.agents, report["allocation"].owner)
    if as_json:
        report["owner"] = {
            item: table.agents[a] for item, a in zip(table.items, report["allocation"].owner, strict=True)
        }
        del report["allocation"]
        _print_json(report)
        return
    _show_allocation(table, report, delta)


def _certify(
    table: Table,
    sigma: Any,
    deviation: np.ndarray,
    found: Allocation,
    delta: float,
    select: Any,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """What the command reports: the certified allocation of the first fold, or the one from all answers."""
    n_unqueried = int((~table.answers.known).sum())
    report: dict[str, Any] = {"sigma": deviation, "n_unqueried": n_unqueried, "certified": None, "factor": None}
    if n_unqueried == 0 and (sigma != "estimate" or table.can_split_for_sigma):
        first, second, fold_sigma = table.folds(sigma, rng)
        chosen = allocate_answers(first, known_sigma(fold_sigma, first), rng, select)
        lower, estimate = lower_bounds(second, chosen.owner, fold_sigma, delta)
        certified = bool((lower > 0).all())
        report |= {"certified": certified, "factor": None if certified else _needed_factor(lower, estimate)}
        if certified:
            return report | {"allocation": chosen, "gain": estimate, "low": lower, "w": chosen.w}
    known = table.answers.known
    gains, errors = advantages(
        table.answers.means[:, known], found.owner[known], table.answers.noise(deviation)[:, known]
    )
    at = gains.argmin(axis=1)
    error = np.take_along_axis(errors, at[:, None], axis=1)[:, 0]
    return report | {"allocation": found, "gain": found.est_gain, "low": found.est_gain - 1.96 * error, "w": found.w}


def _show_allocation(table: Table, report: dict[str, Any], delta: float) -> None:
    allocation: Allocation = report["allocation"]
    counts = table.answers.counts
    print(
        f"{len(table.agents)} agents, {len(table.items)} goods, {counts.sum():,} answers "
        f"({counts.sum() / counts.size:.1f} a cell)"
    )
    print(f"noise of one answer: {', '.join(f'{s:.3g}' for s in report['sigma'])}")
    for line in filter(None, [_scale_note(table)]):
        print(line)
    if report["n_unqueried"]:
        print(f"{report['n_unqueried']} goods lack an answer of some agent and were split at random")
    bundles = allocation.bundles(table.items)
    for name, bundle, gain, low in zip(table.agents, bundles, report["gain"], report["low"], strict=True):
        words = ", ".join(bundle[:6]) + (", ..." if len(bundle) > 6 else "")
        print(f"{name} gets {len(bundle)} goods: {words or 'nothing'}")
        print(f"    thinks her bundle is worth {gain:+.3g} against the best other one (at least {low:+.3g})")
    if report["certified"]:
        print(f"CERTIFIED: nobody envies anybody, with confidence {100 * (1 - delta):g} %")
        return
    if report["n_unqueried"]:
        reason = "some goods were not asked about"
    elif report["certified"] is None:
        reason = "with an estimated noise a certificate needs four answers in every cell; or give --sigma"
    else:
        reason = _outlook(report["factor"])
    print(f"NOT CERTIFIED: {reason}")


def _outlook(factor: float) -> str:
    if math.isinf(factor):
        return (
            "on fresh answers somebody seems to envy; no envy-free allocation may exist, or far more answers are needed"
        )
    return f"if the estimates stay as they are, about {factor:.1f} times as many answers would certify it"


def _draw_sweep(path: Path, table: Table, deviation: np.ndarray, allocation: Allocation) -> None:
    if len(table.agents) != 2:
        raise InputError(f"--plot draws the sweep of two agents, got {len(table.agents)}")
    known = table.answers.known
    va, vb = table.answers.means[:, known]
    path_of = sweep(va, vb)
    estimated = np.stack(stein_gains(path_of, va, vb, table.answers.noise(deviation)[:, known]))
    plots.sweep_gains(path, path_of, estimated, allocation.w, (table.agents[0], table.agents[1]))


# --- plan, exact, check ------------------------------------------------------------------------------------------


@app.command()
def plan(
    m: Annotated[int, typer.Option("-m", "--goods", help="Number of goods.")],
    gap: Annotated[
        float, typer.Option("--gap", help="Negative envy Delta: how clear the best split is, values in [0, 1].")
    ],
    sigma: Annotated[float, typer.Option("--sigma", help="Standard deviation of one answer.")] = 1.0,
    delta: Annotated[float, typer.Option("--delta", help="Failure probability of the practical plan.")] = 0.05,
    mode: Annotated[str, typer.Option("--mode", help="practical, theory or lower.")] = "practical",
    n_agents: Annotated[int, typer.Option("--agents", min=2, help="Number of agents, for the total.")] = 2,
    as_json: Json = False,
) -> None:
    """How many questions to ask.

    Delta is rarely known: guess it from a pilot with 'exact', or skip the plan and let the certified allocation of the
    library ask until it is sure (certified_envy_free).
    """
    found = query_plan(m, gap, sigma, delta, mode, n_agents)  # ty: ignore[invalid-argument-type]
    if as_json:
        _print_json({"mode": mode, **vars(found)})
        return
    each = (
        f"{found.q_per_agent / m:.3g} a good"
        if found.q_per_agent >= m
        else f"about {found.n_items:,} of the {m:,} goods"
    )
    print(f"{mode}: {found.q_per_agent:,} questions for each agent ({each}), {found.total:,} in all")
    print(
        f"the theorem guarantees {found.theory:,} for each agent, {found.theory / found.q_per_agent:,.0f} times as many"
    )
    print(f"no method, adaptive or not, gets far below the order of {found.lower:,}")
    if found.theory_partial >= m:
        print(
            f"the theorem's count for asking about a part of the goods, {found.theory_partial:,}, is no help below "
            f"m = {m:,}"
        )


@app.command()
def exact(
    data: Data,
    method: Annotated[str, typer.Option("--method", help="auto, enum, mitm, milp or sweep.")] = "auto",
    time_limit: Annotated[float, typer.Option("--time-limit", min=0.1, help="Seconds for the MILP.")] = 60.0,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the owner of each item, CSV.")] = None,
    allow_chores: Chores = False,
    as_json: Json = False,
) -> None:
    """Least envy when the table's values are exact, beside the classical rules."""
    table = read_table(data, allow_chores)
    U = table.values
    with solver_messages_to_stderr():
        best = solvers.opt_envy(U, method, time_limit)  # ty: ignore[invalid-argument-type]
        rules = _classical(U)
    if out is not None:
        _write_owners(out, table.items, table.agents, best.owner)
    if as_json:
        _print_json(
            {
                "envy": best.value,
                "bound": best.bound,
                "proven": best.proven,
                "owner": {item: table.agents[a] for item, a in zip(table.items, best.owner, strict=True)},
                "rules": {name: envy(U, owner) for name, owner in rules.items()},
            }
        )
        return
    state = "proven least" if best.proven else f"no allocation is below {best.bound:.4g}"
    print(f"least envy {best.value:.4g} ({state})")
    print(f"negative envy Delta = {-best.value:.4g}" if best.value < 0 else "no allocation without envy was found")
    for name, bundle in zip(
        table.agents, Allocation(best.owner, math.nan, np.zeros(len(U))).bundles(table.items), strict=True
    ):
        print(f"{name}: {', '.join(bundle[:12])}{', ...' if len(bundle) > 12 else ''}")
    print("envy of other rules: " + ", ".join(f"{name} {envy(U, owner):.4g}" for name, owner in rules.items()))


def _classical(U: np.ndarray) -> dict[str, np.ndarray]:
    rules = {"round robin": solvers.round_robin(U), "alternating": solvers.alternating_picking(U)}
    rules |= {"utilitarian": solvers.utilitarian(U)}
    if U.min() >= 0 and U.shape[1] <= 2000:
        rules["envy cycle"] = solvers.envy_cycle_elimination(U)
    if U.min() >= 0 and len(U) == 2 and (U.sum(axis=1) > 0).all():
        rules["adjusted winner (rounded)"] = solvers.adjusted_winner(U).owner
    if U.min() >= 0 and len(U) * U.shape[1] <= 60:
        rules["Nash welfare"] = solvers.maximum_nash_welfare(U, 20.0).owner
    return rules


@app.command()
def check(
    data: Data,
    owners: Annotated[Path, typer.Argument(help="CSV with the columns item, owner.")],
    sigma: Annotated[str, typer.Option("--sigma", help="Noise of one answer, 'estimate', or 'exact'.")] = "exact",
    allow_chores: Chores = False,
    as_json: Json = False,
) -> None:
    """Which notions of fairness an allocation meets; with noisy values, with what confidence.

    The answers must not be those that chose the allocation.
    """
    table = read_table(data, allow_chores)
    owner, U = _read_owners(owners, table), table.values
    notions: tuple[solvers.Notion, ...] = ("EF", "EFX", "EF1", "PROP", "PROP1")
    if sigma == "exact":
        found: dict[str, Any] = {notion: solvers.is_fair(U, owner, notion) for notion in notions}
        if U.min() >= 0 and U.shape[1] <= 30:
            found["MMS"] = solvers.is_mms(U, owner)
    else:
        spread = known_sigma(_sigma(sigma), table.answers).max() / math.sqrt(table.answers.counts.min())
        found = {notion: solvers.fairness_confidence(U, owner, float(spread), notion) for notion in notions}
    if as_json:
        _print_json({"envy": envy(U, owner), "notions": found})
        return
    print(f"largest envy {envy(U, owner):+.4g}")
    for notion, state in found.items():
        print(
            f"{notion:6}"
            + (("yes" if state else "no") if isinstance(state, bool) else f"confidence at least {state:.3f}")
        )


# --- simulate, run, bench ----------------------------------------------------------------------------------------


@app.command()
def simulate(
    instance: Annotated[
        str, typer.Option("--instance", help="hard, uniform, scaled, beta, correlated, mallows, ...")
    ] = "hard",
    m: Annotated[int, typer.Option("-m", "--goods", help="Number of goods.")] = 1024,
    eps: Annotated[float, typer.Option("--eps", help="Of the hard instance.")] = 0.1,
    gamma: Annotated[float, typer.Option("--gamma", help="Of the hard instance.")] = 0.5,
    queries: Annotated[
        str, typer.Option("--queries", help="Questions for each agent; several separated by commas.")
    ] = "5000",
    method: Annotated[str, typer.Option("--method", help=", ".join(RULES))] = "stein",
    runs: Annotated[int, typer.Option("--runs", min=1, help="Independent runs.")] = 200,
    sigma: Annotated[float, typer.Option("--sigma", help="Standard deviation of one answer.")] = 1.0,
    seed: Seed = 0,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """How often a number of questions gives an envy-free allocation."""
    try:
        counts = [int(word) for word in queries.split(",")]
    except ValueError:
        raise InputError(f"--queries expects whole numbers separated by commas, got {queries!r}") from None
    family = instance_family(instance, m, eps, gamma)
    family(np.random.default_rng(0))
    rows = []
    with progress_bar() as progress:
        for q in progress(counts, label="simulate"):
            rng = Streams(seed).numpy(f"simulate {q}")
            found = success_rate(family, q, method, runs, sigma, rng, jobs)  # ty: ignore[invalid-argument-type]
            rows.append((q, wilson_interval(found.successes, found.runs), found.mean_envy))
    if as_json:
        _print_json([{"queries": q, "rate": r.estimate, "low": r.low, "high": r.high, "envy": e} for q, r, e in rows])
        return
    for q, rate, mean in rows:
        print(
            f"{q:,} questions an agent: envy-free in {rate.estimate:.1%} of {runs} runs [{rate.low:.1%}, "
            f"{rate.high:.1%}], mean envy {mean:+.3g}"
        )


@app.command()
def run(
    limit: Annotated[int, typer.Option("--films", help="How many of the 6,054 films.")] = 500,
    sigma: Annotated[float, typer.Option("--sigma", help="Noise of one answer; ratings lie in [0, 1].")] = 0.5,
    yes_no: Annotated[
        bool, typer.Option("--yes-no", help="Every answer is yes or no, as a real review is fresh or rotten.")
    ] = False,
    delta: Delta = 0.05,
    out: Annotated[Path, typer.Option("--out", help="Folder for the allocation and the picture.")] = Path(
        "noisy-fairdiv-run"
    ),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Split real films between two critics' tastes, asking noisy questions until nobody envies for certain.

    Agent a is the share of fresh reviews of a film, agent b its Metacritic score, from bokeh-sampledata.
    """
    _check_delta(delta)
    U, titles = films(limit)
    agents = ("reviewers", "Metacritic")
    rng = Streams(seed).numpy("run")
    gap = max(0.0, -solvers.opt_envy(U, "sweep").value)
    planned = query_plan(len(titles), gap, sigma, delta) if gap else None
    rounds: list[CertificateRound] = []
    oracle: Oracle = BernoulliOracle(U, rng) if yes_no else GaussianOracle(U, sigma, rng)
    known: Sigma = "estimate" if yes_no else sigma
    found = certified_envy_free(oracle, delta, known, rng=rng, callback=rounds.append)
    out.mkdir(parents=True, exist_ok=True)
    _write_owners(out / "allocation.csv", titles, agents, found.owner)
    repeats = rounds[-1].repeats
    V = U + sigma / math.sqrt(repeats) * rng.standard_normal(U.shape)
    path = sweep(V[0], V[1])
    gains = np.stack(stein_gains(path, V[0], V[1], np.asarray(sigma**2 / repeats)))
    plots.sweep_gains(out / "sweep", path, gains, found.w, agents)
    truth = found.envy(U)
    if as_json:
        _print_json(
            {
                "goods": len(titles),
                "gap": gap,
                "bound": lp_bound(U)[0],
                "plan": None if planned is None else vars(planned),
                "certified": found.certified,
                "repeats": repeats,
                "lower": found.lower,
                "true_envy": truth,
                "posterior_correlation": float(np.corrcoef(posterior_means(V, np.asarray(sigma**2 / repeats)))[0, 1]),
            }
        )
        return
    print(
        f"{len(titles)} films, valued from 0 to 1 by {agents[0]} and by {agents[1]}; their tastes correlate "
        f"{np.corrcoef(U)[0, 1]:.2f}."
    )
    print(
        f"If all values were known, both could prefer their own half by {gap:.1f} (Delta; at most "
        f"{lp_bound(U)[0]:.1f})."
    )
    if planned is not None:
        print(
            f"One answer is off by about {sigma:g}. Plan: {planned.q_per_agent / len(titles):.1f} questions a film "
            "and agent; "
            f"the theorem would ask {planned.theory / len(titles):,.0f}."
        )
    for r in rounds:
        state = "certain" if (r.lower > 0).all() else "not yet"
        print(
            f"  after {r.repeats:>4} questions a film: they prefer their own films by {r.estimate[0]:+.1f} and "
            f"{r.estimate[1]:+.1f}, for certain by {r.lower[0]:+.1f} and {r.lower[1]:+.1f}: {state}"
        )
    verdict = (
        f"CERTIFIED envy-free with confidence {100 * (1 - delta):g} %"
        if found.certified
        else "NOT certified within the budget"
    )
    print(
        f"{verdict}. In truth the larger envy is {truth:+.1f} ({'nobody envies' if truth <= 0 else 'somebody envies'})."
    )
    print(f"written: {out / 'allocation.csv'}, {out / 'sweep.png'}")


@app.command()
def bench(
    topic: Annotated[str, typer.Argument(help="peers or scaling.")] = "peers",
    out: Annotated[Path, typer.Option("--out", help="Folder for results.")] = Path("noisy-fairdiv-bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes.")] = False,
) -> None:
    """Time the sweep beside its peers, or as the number of goods grows."""
    topics = {"peers": benchmarks.peers, "scaling": benchmarks.scaling}
    if topic not in topics:
        raise InputError(f"expected peers or scaling, got {topic!r}")
    out.mkdir(parents=True, exist_ok=True)
    for title, table in topics[topic](out, quick).items():
        print(f"{title}\n\n{table}\n")
