"""The ``synthetic-consensus`` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
import typer

from papershelf import InputError
from papershelf import cli as shelf
from papershelf.files import atomic_write
from papershelf.reproduce import plain
from synthetic_consensus import bench as benchmarks
from synthetic_consensus import plots
from synthetic_consensus.attack import Positions, attack, lower_bound
from synthetic_consensus.audit import audit as run_audit
from synthetic_consensus.audit import fragility
from synthetic_consensus.claims import PAPER
from synthetic_consensus.cost import CostModel, price
from synthetic_consensus.data import synthetic
from synthetic_consensus.load import load_model, load_ratings, save_model
from synthetic_consensus.marginal import LEVELS, Shrinkage, add_effect, flip_point, model_stats, solve_notes
from synthetic_consensus.mf import BridgingMF
from synthetic_consensus.rules import STATUSES, StatusRules, apply, two_stage_scoring

app = shelf.app(PAPER)

Data = Annotated[
    str, typer.Option("--data", help="Folder of Community Notes or Polis, a file of triples, or a name: senate109, ...")
]
ModelFile = Annotated[Path, typer.Option("--model", help="A model that 'fit' wrote.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]
PositionSet = Annotated[
    str, typer.Option("--positions", help="typical, harsh, extreme, or a CSV file with the columns factor, intercept.")
]
Ratings_ = Annotated[int, typer.Option("--k", min=1, help="Coordinated ratings at most.")]
DEFAULT_MODEL = Path("bridging-model.npz")


def _print_json(value: Any) -> None:
    print(json.dumps(plain(value), ensure_ascii=False))


def _positions(model: BridgingMF, name: str) -> Positions:
    path = Path(name)
    if path.suffix.lower() != ".csv":
        return Positions.named(model, cast(Literal["typical", "harsh", "extreme"], name))
    import pandas as pd

    if not path.is_file():
        raise InputError(f"no file {name!r}")
    table = pd.read_csv(path)
    if not {"factor", "intercept"} <= set(table.columns):
        raise InputError(f"{name}: expected the columns factor and intercept, got {', '.join(table.columns)}")
    return Positions.of(model, table["factor"].to_numpy(), table["intercept"].to_numpy())


def _note(model: BridgingMF, label: str) -> int:
    assert model.ratings_ is not None
    ids = model.ratings_.note_ids
    value: Any = int(label) if ids.dtype.kind in "iu" and label.lstrip("-").isdigit() else label
    try:
        return model.ratings_.note_index(value)
    except KeyError as error:
        raise InputError(str(error.args[0])) from None


@app.command()
def fit(
    data: Data = "senate109",
    out: Annotated[Path, typer.Option("--out", help="Where to write the model.")] = DEFAULT_MODEL,
    two_stage: Annotated[
        bool, typer.Option("--two-stage", help="Prescoring, rater filter, second fit, final scoring.")
    ] = False,
    min_per_note: Annotated[int, typer.Option("--min-per-note", min=0, help="Ratings that a note needs.")] = 5,
    min_per_rater: Annotated[int, typer.Option("--min-per-rater", min=0, help="Ratings that a rater needs.")] = 10,
    n_init: Annotated[int, typer.Option("--starts", min=1, help="Random starts.")] = 3,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Threads.")] = 1,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Fit the bridging model to convergence and keep it."""
    ratings = load_ratings(data)
    if two_stage:
        stage = two_stage_scoring(
            ratings,
            min_per_note=min_per_note,
            min_per_rater=min_per_rater,
            n_init=n_init,
            random_state=seed,
            n_jobs=jobs,
        )
        model = stage.second
        dropped = int((~stage.helpfulness.keep).sum())
    else:
        model = BridgingMF(n_init=n_init, random_state=seed, n_jobs=jobs).fit(
            ratings.filter(min_per_note, min_per_rater)
        )
        dropped = 0
    assert model.ratings_ is not None
    save_model(model, out)
    decisions = apply(model, StatusRules.default())
    counts = {str(name): int((decisions.status == code).sum()) for code, name in enumerate(STATUSES)}
    found = {**model.ratings_.stats(), "loss": model.loss_, "gradient": model.kkt_, "mean": model.mu_, **counts}
    if as_json:
        _print_json({**found, "unhelpful raters": dropped, "losses": model.losses_})
        return
    print(
        f"{model.ratings_.size:,} ratings, {model.ratings_.n_raters:,} raters, {model.ratings_.n_notes:,} "
        f"notes, k = {model.ratio_:.1f}"
    )
    spread = max(model.losses_) - min(model.losses_)
    print(
        f"loss {model.loss_:.6f} (starts differ by {spread:.1e}), gradient {model.kkt_:.1e}, {model.n_iter_} "
        f"sweeps, μ = {model.mu_:.4f}"
    )
    if two_stage:
        print(f"{dropped:,} raters were left out by the agree ratio")
    print("statuses under the deployed rules: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))
    print(f"written: {out}")


@app.command()
def status(
    model_file: ModelFile = DEFAULT_MODEL,
    rules: Annotated[str, typer.Option("--rules", help="default, core-2022 or threshold.")] = "default",
    out: Annotated[Path | None, typer.Option("--out", help="Write one row a note, CSV.")] = None,
    as_json: Json = False,
) -> None:
    """Statuses of all notes and the rules that decided."""
    model = load_model(model_file)
    decisions = apply(model, _rules(rules))
    assert model.ratings_ is not None
    if out is not None:
        atomic_write(out, decisions.to_frame(model.ratings_.note_ids).to_csv(index=False))
    names, counts = np.unique(decisions.rule.astype(str), return_counts=True)
    if as_json:
        _print_json({name: int(count) for name, count in zip(names, counts, strict=True)})
        return
    for name, count in sorted(zip(names, counts, strict=True), key=lambda x: -x[1]):
        code = decisions.status[decisions.rule == name][0]
        print(f"{STATUSES[code]:5} {count:>8,}  {name}")


def _rules(name: str) -> StatusRules:
    sets = {
        "default": StatusRules.default,
        "core-2022": StatusRules.core_2022,
        "threshold": StatusRules.intercept_only,
    }
    if name not in sets:
        raise InputError(f"--rules must be {', '.join(sets)}, got {name!r}")
    return sets[name]()


@app.command()
def explain(
    note: Annotated[str, typer.Argument(help="A note's label.")],
    model_file: ModelFile = DEFAULT_MODEL,
    positions: PositionSet = "typical",
    k: Ratings_ = 9,
    as_json: Json = False,
) -> None:
    """One note: score, status and the rule behind it, ratings by side, the fewest ratings that would move it."""
    model = load_model(model_file)
    n, stats, shrink = _note(model, note), model_stats(model), Shrinkage.of(model)
    decisions = apply(model, StatusRules.default())
    found = {
        "note": note,
        "intercept": float(model.note_intercept_[n]),
        "factor": float(model.note_factor_[n, 0]),
        "status": str(STATUSES[decisions.status[n]]),
        "rule": str(decisions.rule[n]),
        "ratings by side (f<0, f>=0) and level": stats.counts[n].tolist(),
        "flip point": float(flip_point(stats.S[n], shrink)),
    }
    reach = _positions(model, positions)
    for name, rules in (("threshold alone", StatusRules.intercept_only()), ("deployed rules", StatusRules.default())):
        result = attack(model, n, reach, k, rules=rules, stats=stats)
        found[f"ratings to show it, {name}"] = result.k
    best = float(1.0 - model.mu_ - reach.intercept.min())
    found["an empty note would need"] = lower_bound(shrink, best)
    if as_json:
        _print_json(found)
        return
    for name, value in found.items():
        print(f"{name}: {f'none found up to {k}' if value is None else value}")


@app.command()
def effect(
    note: Annotated[str, typer.Argument(help="A note's label.")],
    f: Annotated[float, typer.Option("--f", help="Factor of the rater.")] = 0.0,
    intercept: Annotated[float, typer.Option("--intercept", help="Intercept of the rater.")] = 0.0,
    rating: Annotated[float, typer.Option("--rating", help="The rating, 0 to 1.")] = 0.0,
    model_file: ModelFile = DEFAULT_MODEL,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the effect over all factors.")] = None,
    as_json: Json = False,
) -> None:
    """What one more rating would do to a note, raters frozen."""
    if not 0 <= rating <= 1:
        raise InputError(f"--rating must lie in [0, 1], got {rating}")
    model = load_model(model_file)
    n, shrink = _note(model, note), Shrinkage.of(model)
    S = model_stats(model).S[n]
    before = solve_notes(S, shrink)
    e = rating - model.mu_ - intercept
    change = add_effect(S, f, e, shrink)
    residual = float(e - before[0] - f * before[1])
    if plot is not None:
        grid = np.linspace(min(float(model.rater_factor_.min()), f), max(float(model.rater_factor_.max()), f), 200)
        names = ("NotHelpful", "Somewhat", "Helpful")
        curves = {
            nm: add_effect(S, grid, v - model.mu_ - intercept, shrink)[0] for nm, v in zip(names, LEVELS, strict=True)
        }
        plots.effect_map(
            plot, grid, curves, float(flip_point(S, shrink)), float(before[0]), f"One more rating of note {note}"
        )
    found = {
        "intercept": float(before[0]),
        "change": float(change[0]),
        "factor change": float(change[1]),
        "residual": residual,
        "flip point": float(flip_point(S, shrink)),
    }
    if as_json:
        _print_json(found)
        return
    print(
        f"intercept {before[0]:+.4f} {change[0]:+.4f} = {before[0] + change[0]:+.4f}; factor {before[1]:+.4f} "
        f"{change[1]:+.4f}"
    )
    if rating == 0 and change[0] > 0:
        why = (
            "leverage: the rater is past the flip point"
            if residual < 0
            else "residual: the rater was predicted below 0"
        )
        print(f"a NotHelpful rating that raises the score ({why})")
    print(f"NotHelpful turns from lowering to raising at f = {found['flip point']:.3f}")


@app.command()
def audit(
    model_file: ModelFile = DEFAULT_MODEL,
    positions: PositionSet = "typical",
    k: Ratings_ = 9,
    out: Annotated[Path, typer.Option("--out", help="Folder for tables and pictures.")] = Path("consensus-audit"),
    as_json: Json = False,
) -> None:
    """Which notes below the line a few coordinated ratings would carry over it, and which defences stop that."""
    model = load_model(model_file)
    where = _positions(model, positions)
    report = run_audit(model, where, k)
    out.mkdir(parents=True, exist_ok=True)
    assert model.ratings_ is not None
    lines = ["note,intercept,factor,ratings_needed"]
    for n, least in zip(report.low, report.least, strict=True):
        need = least if least > 0 else ""
        lines.append(
            f"{model.ratings_.note_ids[n]},{model.note_intercept_[n]:.6f},{model.note_factor_[n, 0]:.6f},{need}"
        )
    atomic_write(out / "notes.csv", "\n".join(lines) + "\n")
    paths = fragility(model, report.examples(5), where, k, StatusRules.intercept_only())
    plots.note_map(out / "notes", report.decisions, StatusRules.default(), paths, "Notes, and the cheapest attacks")
    curves = {d.name: d.shares for d in report.defences} | {"one-sided brigade": report.brigade}
    plots.success(out / "success", curves, f"Low notes carried over the line ({positions})", "share of low notes, %")
    plots.mitigations(
        out / "mitigations",
        [d.name for d in report.defences],
        np.array([d.shares[-1] for d in report.defences]),
        np.array([d.collateral for d in report.defences]),
    )
    plots.raters(out / "raters", model.rater_factor_[:, 0], model.rater_intercept_)
    if as_json:
        rows = [{"defence": d.name, "shares": d.shares, "collateral": d.collateral} for d in report.defences]
        _print_json(
            {"low": report.low.size, "defences": rows, "brigade": report.brigade, "extrapolated": report.extrapolated}
        )
        return
    print(
        f"{report.low.size:,} notes below {StatusRules().crh:.2f}; {positions} positions"
        + (" (outside the observed range)" if report.extrapolated else "")
    )
    print(f"{'defence':32} {'carried over with ' + str(k):>22} {'honest notes lost':>20}")
    for d in report.defences:
        print(f"{d.name:32} {d.shares[-1]:>22.1%} {d.collateral:>20.1%}")
    print(f"{'one-sided brigade, no defence':32} {report.brigade[-1]:>22.1%}")
    print(f"written: {out}/notes.csv and pictures")


@app.command()
def cost(
    model_file: ModelFile = DEFAULT_MODEL,
    positions: PositionSet = "typical",
    k: Ratings_ = 9,
    notes: Annotated[int, typer.Option("--notes", min=1, help="How many of the most fragile notes.")] = 10,
    account: Annotated[float, typer.Option("--account", min=0, help="Price of an account.")] = 10.0,
    rating: Annotated[float, typer.Option("--rating", min=0, help="Price of a rating.")] = 0.1,
    agree_ratio: Annotated[
        float, typer.Option("--agree-ratio", min=0, max=1, help="Least agree ratio; 0: no rule.")
    ] = 0.66,
    as_json: Json = False,
) -> None:
    """What attacks on the most fragile notes would cost, accounts' own ratings included; for one note and amortised."""
    model = load_model(model_file)
    where, costs = _positions(model, positions), CostModel(account, rating, agree_ratio=agree_ratio)
    report = run_audit(model, where, k)
    decisions, rows = apply(model, StatusRules.default()), []
    assert model.ratings_ is not None
    chosen = report.most_fragile(notes)
    for n, result in zip(chosen, fragility(model, chosen, where, k, StatusRules.intercept_only()), strict=True):
        if result.k:
            priced = price(model, decisions, result, costs)
            label, ten = model.ratings_.note_ids[n], priced.amortised(10, costs, result.k)
            rows.append(
                {
                    "note": label,
                    "ratings": result.k,
                    "cost": priced.total,
                    "cost over 10 notes": ten,
                    "missed": priced.missed,
                }
            )
    if as_json:
        _print_json(rows)
        return
    for row in rows:
        print(
            f"note {row['note']}: {row['ratings']} ratings, {row['cost']:.1f} alone, "
            f"{row['cost over 10 notes']:.2f} over ten notes"
        )
    if not rows:
        print(f"no note is carried over the line by {k} ratings from these positions")


@app.command()
def mitigate(
    model_file: ModelFile = DEFAULT_MODEL, positions: PositionSet = "harsh", k: Ratings_ = 9, as_json: Json = False
) -> None:
    """Only the table of defences of 'audit'."""
    model = load_model(model_file)
    report = run_audit(model, _positions(model, positions), k)
    if as_json:
        _print_json([{"defence": d.name, "passes": d.shares[-1], "collateral": d.collateral} for d in report.defences])
        return
    for d in report.defences:
        print(f"{d.name:32} {d.shares[-1]:8.1%} pass, {d.collateral:6.1%} honest notes lost")


@app.command()
def simulate(
    out: Annotated[Path, typer.Option("--out", help="CSV of rater, note, value.")] = Path("synthetic-ratings.csv"),
    raters: Annotated[int, typer.Option("--raters", min=1, help="Raters.")] = 2000,
    notes: Annotated[int, typer.Option("--notes", min=1, help="Notes.")] = 1000,
    ratings: Annotated[int, typer.Option("--ratings", min=1, help="Ratings drawn.")] = 60_000,
    preset: Annotated[str, typer.Option("--preset", help="dense or sparse.")] = "dense",
    coordinated: Annotated[int, typer.Option("--coordinated", min=0, help="Raters of a planted group.")] = 0,
    seed: Seed = 0,
) -> None:
    """Draw a synthetic population and write its ratings."""
    data, _ = synthetic(
        raters, notes, ratings, cast(Literal["dense", "sparse"], preset), coordinated=coordinated, rng=seed
    )
    rows = zip(data.rater_ids[data.rater], data.note_ids[data.note], data.value, strict=True)
    atomic_write(out, "rater,note,value\n" + "".join(f"{u},{n},{v:g}\n" for u, n, v in rows))
    print(f"{data.size:,} ratings written: {out}")


@app.command()
def bench(
    topic: Annotated[str, typer.Argument(help="peers or scaling.")] = "peers",
    out: Annotated[Path, typer.Option("--out", help="Folder for results.")] = Path("synthetic-consensus-bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes.")] = False,
) -> None:
    """Time the fit beside the deployed optimiser, or growth with the number of ratings."""
    topics = {"peers": benchmarks.peers, "scaling": benchmarks.scaling}
    if topic not in topics:
        raise InputError(f"expected peers or scaling, got {topic!r}")
    out.mkdir(parents=True, exist_ok=True)
    for title, table in topics[topic](out, quick).items():
        print(f"{title}\n\n{table}\n")
