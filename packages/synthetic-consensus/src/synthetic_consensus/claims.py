"""The paper, its claims with the code that measures them, and the methods that can be copied out."""

from __future__ import annotations

import time

import numpy as np

from papershelf import Claim, InputError, Method, Outcome, Paper, Run
from synthetic_consensus import plots
from synthetic_consensus.attack import Positions, attack
from synthetic_consensus.audit import AuditReport, audit, fragility, robust_defence
from synthetic_consensus.cost import CostModel, price
from synthetic_consensus.data import sparse_preset, synthetic
from synthetic_consensus.load import load_community_notes
from synthetic_consensus.marginal import Shrinkage, add_effect, model_stats, paradox_table, solve_notes
from synthetic_consensus.mf import BridgingMF, Ratings
from synthetic_consensus.rules import StatusRules, apply

NOTE = (
    "An offline audit of a scorer on a snapshot or on synthetic data. The paper's 10.7 % is a figure of "
    "production data and is "
    "not reproduced here; its command is the full-scale recipe of C1. The paper's full text was not available."
)


def _data(run: Run) -> Ratings:
    if run.scale == "full":
        folder = run.options.get("data", "")
        if not folder:
            raise InputError("the full scale needs the public Community Notes files: --data FOLDER")
        return load_community_notes(folder).ratings.filter()
    rng = run.streams.numpy("population")
    return run.size(
        tiny=lambda: synthetic(1500, 700, 40_000, "sparse", rng=rng)[0].filter(), quick=lambda: sparse_preset(rng)
    )()


def _fitted(run: Run) -> BridgingMF:
    return BridgingMF(n_init=1, random_state=run.seed, tol=1e-8).fit(_data(run))


def _audit(run: Run, name: str) -> tuple[BridgingMF, AuditReport]:
    model = _fitted(run)
    return model, audit(model, Positions.named(model, name), 9)  # ty: ignore[invalid-argument-type]


def measure_vulnerable(run: Run) -> Outcome:
    """C1: share of low notes that fewer than ten ratings carry over the threshold."""
    model = _fitted(run)
    found = {
        name: audit(model, Positions.named(model, name), 9) for name in run.progress(("typical", "harsh"), label="C1")
    }
    at = {name: float(report.defences[0].shares[-1]) for name, report in found.items()}
    protected = float(found["harsh"].defences[3].shares[-1])
    chosen = found["harsh"].examples(5)
    paths = fragility(model, chosen, Positions.named(model, "harsh"), 9, StatusRules.intercept_only())
    figures = [
        plots.note_map(
            run.out / "notes", found["harsh"].decisions, StatusRules.default(), paths, "Notes, and the cheapest attacks"
        )[0],
        plots.success(
            run.out / "success",
            {d.name: d.shares for d in found["harsh"].defences[:5]} | {"one-sided brigade": found["harsh"].brigade},
            "Low notes carried over the line (lowest 1 % of intercepts)",
            "share of low notes, %",
        )[0],
    ]
    return Outcome(
        holds=at["typical"] >= 0.05 and at["harsh"] > at["typical"],
        measured=f"{model.ratings_.size:,} ratings: typical positions {at['typical']:.1%}, lowest 1 % of intercepts "  # ty: ignore
        f"{at['harsh']:.1%}, with the deployed rules {protected:.1%}",
        values={"shares": at, "protected": protected, "ratio": model.ratio_},
        figures=figures,
    )


def measure_bridging_beats_brigading(run: Run) -> Outcome:
    """C2: two-sided synthetic consensus against a one-sided brigade."""
    _, report = _audit(run, "typical")
    both, one, best = (float(x[-1]) for x in (report.defences[0].shares, report.brigade, report.brigade_best))
    return Outcome(
        holds=one > 0 and both / one >= 3,
        measured=f"two-sided {both:.1%}, brigade of the larger camp {one:.1%} ({both / max(one, 1e-9):.1f} times); "
        f"the better side for each note {best:.1%} ({both / max(best, 1e-9):.1f} times)",
        values={"two_sided": both, "one_sided": one, "better_side": best},
    )


def measure_paradox(run: Run) -> Outcome:
    """C3: the theorem on random notes, and how often it happens."""
    rng, count = run.streams.numpy("notes"), run.size(tiny=10_000, quick=100_000)
    m = rng.integers(1, 30, count)
    f = np.where(np.arange(30) < m[:, None], rng.normal(0.3, 0.6, (count, 30)), 0.0)
    e = np.where(np.arange(30) < m[:, None], rng.normal(0.2, 0.4, (count, 30)), 0.0)
    S = np.stack([m, f.sum(1), (f**2).sum(1), e.sum(1), (f * e).sum(1)], axis=1)
    new_f, new_e = rng.normal(0, 1, count), rng.normal(-0.2, 0.4, count)
    shrink = Shrinkage(0.15 * 20, 0.03 * 20)
    change, _ = add_effect(S, new_f, new_e, shrink)
    i, g = solve_notes(S, shrink)
    below = new_e - i - new_f * g < 0
    past = new_f * S[:, 1] > S[:, 2] + shrink.factor
    violations = int(((change > 0) != past)[below & (np.abs(change) > 1e-12)].sum())
    model = _fitted(run)
    found = paradox_table(
        model_stats(model), model.mu_, model.rater_intercept_, model.rater_factor_, Shrinkage.of(model)
    )
    by_leverage = float(np.mean(found.leverage > 1e-12))
    return Outcome(
        holds=violations == 0 and found.share > 0,
        measured=f"{violations} violations in {int(below.sum()):,} notes; NotHelpful from an observed position raises "
        f"{found.share:.0%} of notes ({by_leverage:.2%} by leverage, the rest from raters predicted below 0); "
        "alone it carries "
        f"{int(found.crosses.sum())} over the line",
        values={
            "violations": violations,
            "share": found.share,
            "leverage": by_leverage,
            "crosses": int(found.crosses.sum()),
        },
    )


def measure_mitigations(run: Run) -> Outcome:
    """C4: what deployed and other defences leave of the attack, and what they cost honest notes."""
    model, report = _audit(run, "harsh")
    some = report.low[run.streams.numpy("sample").permutation(report.low.size)[: run.size(tiny=60, quick=600)]]
    defences = [*report.defences, robust_defence(model, Positions.named(model, "harsh"), 9, some, 1)]
    before, after = (float(defences[k].shares[-1]) for k in (0, 1))
    planned = [
        attack(model, int(n), Positions.named(model, "harsh"), 9, width=50) for n in some[: run.size(tiny=10, quick=60)]
    ]
    knowing = float(np.mean([r.k is not None for r in planned]))
    names = [d.name for d in defences]
    figure = plots.mitigations(
        run.out / "mitigations",
        names,
        np.array([d.shares[-1] for d in defences]),
        np.array([d.collateral for d in defences]),
    )[0]
    return Outcome(
        holds=after <= 0.5 * before,
        measured="attacks that pass with 9 ratings, honest notes lost: "
        + "; ".join(f"{d.name} {d.shares[-1]:.1%}, {d.collateral:.0%}" for d in defences)
        + f". A search that plans for the deployed rules passes on {knowing:.0%} of {len(planned)} notes",
        values={"shares": {d.name: float(d.shares[-1]) for d in defences}, "knowing": knowing},
        figures=[figure],
    )


def measure_cost(run: Run) -> Outcome:
    """C5: prices with and without the agree-ratio rule, alone and amortised."""
    model, report = _audit(run, "harsh")
    decisions, positions = apply(model, StatusRules.default()), Positions.named(model, "harsh")
    reachable = report.low[report.least > 0]
    some = reachable[run.streams.numpy("notes").permutation(reachable.size)[: run.size(tiny=4, quick=25)]]
    attacks = [r for r in fragility(model, some, positions, 9, StatusRules.intercept_only()) if r.k]
    spread, rows, curves = (1, 3, 10, 30, 100), {}, {}
    for name, costs in (("with the agree-ratio rule", CostModel()), ("without it", CostModel(agree_ratio=0.0))):
        priced = [price(model, decisions, r, costs) for r in attacks]
        amounts = [[p.amortised(t, costs, r.k or 0) for t in spread] for p, r in zip(priced, attacks, strict=True)]
        curves[name] = (np.array(spread), np.mean(amounts, axis=0))
        rows[name] = tuple(
            float(np.mean(x))
            for x in (
                [p.total for p in priced],
                [p.position_ratings / p.accounts for p in priced],
                [p.missed / p.accounts for p in priced],
            )
        )
    figure = plots.cost_frontier(run.out / "cost", curves)[0]
    ruled, free = rows["with the agree-ratio rule"], rows["without it"]
    words = [
        f"{n} {c:.1f} a note, {r:.1f} ratings to earn a position, {m:.0%} not reached" for n, (c, r, m) in rows.items()
    ]
    k = float(np.mean([r.k for r in attacks]))
    return Outcome(
        holds=ruled[0] > 1.01 * free[0] or ruled[2] > free[2],
        measured=f"{len(attacks)} notes that need {k:.1f} ratings on average (an account 10, a rating 0.1): "
        + "; ".join(words)
        + f"; over 100 notes {curves['with the agree-ratio rule'][1][-1]:.2f} a note",
        values={"rows": rows, "mean_k": k},
        figures=[figure],
    )


def measure_optimiser(run: Run) -> Outcome:
    """C6: how far the deployed optimiser's stopping rule leaves note intercepts from the minimum."""
    rng = run.streams.numpy("optimiser")
    sizes = run.size(tiny=(600, 300, 15_000), quick=(2000, 1000, 60_000), long=(5000, 4000, 220_000))
    ratings = synthetic(*sizes, "dense", rng=rng)[0].filter()
    started = time.perf_counter()
    exact = BridgingMF(random_state=run.seed, n_init=1, tol=1e-11).fit(ratings)
    ours = time.perf_counter() - started
    started = time.perf_counter()
    deployed = BridgingMF(random_state=run.seed, n_init=1, solver="torch").fit(ratings)
    theirs = time.perf_counter() - started
    error = np.abs(deployed.note_intercept_ - exact.note_intercept_)
    return Outcome(
        holds=bool(error.max() > 0.005),
        measured=f"{ratings.size:,} ratings: intercepts off by up to {error.max():.4f} (rms "
        f"{np.sqrt(np.mean(error**2)):.4f}); loss "
        f"{deployed.loss_:.6f} against {exact.loss_:.6f}; {theirs:.1f} s against {ours:.2f} s",
        values={"max_error": float(error.max()), "loss": [deployed.loss_, exact.loss_], "ratio": theirs / ours},
    )


PAPER = Paper(
    slug="synthetic-consensus",
    package="synthetic_consensus",
    distribution="papershelf-synthetic-consensus",
    title="Gaming Consensus: Coordinated Manipulation in Crowdsourced Fact-Checking",
    authors=(
        "Nikil Roashan Selvam",
        "Jay Baxter",
        "Sophie Hilgard",
        "Brad Miller",
        "Keith Coleman",
        "Ellen Vitercik",
        "Sanmi Koyejo",
    ),
    year=2026,
    venue="International Conference on Machine Learning",
    arxiv="2607.01824",
    summary="Audit bridging-based fact-checking: exact scores, which notes few coordinated ratings would "
    "move, what stops it",
    note=NOTE,
    claims=(
        Claim(
            id="C1",
            statement="A noticeable share of low notes can be carried over the threshold with fewer than ten ratings",
            paper="up to 10.7 % of lower-quality notes, production data 2021-01 to 2025-01, 80/20 split",
            criterion="sparse synthetic population, greedy, 9 ratings: at least 5 % from typical positions, "
            "more from the lowest "
            "1 % of intercepts",
            measure=measure_vulnerable,
            recipe="synthetic-consensus reproduce C1 --full --data FOLDER",
            needs="the public Community Notes files in FOLDER",
            options={"data": str},
        ),
        Claim(
            id="C2",
            statement="Synthetic consensus beats brigading",
            paper="not available",
            criterion="typical positions carry at least three times as many low notes as a Helpful-only "
            "brigade of the larger camp",
            measure=measure_bridging_beats_brigading,
            options={"data": str},
        ),
        Claim(
            id="C3",
            statement="A NotHelpful rating can raise a note's score",
            paper="the effect is the paper's; the exact condition is ours",
            criterion="no violation of the condition f Σf > Σf² + Λ among 100,000 random notes; the share of "
            "notes is above 0",
            measure=measure_paradox,
            options={"data": str},
        ),
        Claim(
            id="C4",
            statement="Deployed rules stop most of it",
            paper="mitigations deployed after disclosure",
            criterion="net-helpful and balance rules at least halve what the threshold alone lets pass, at 9 ratings",
            measure=measure_mitigations,
            options={"data": str},
        ),
        Claim(
            id="C5",
            statement="The agree-ratio rule makes it dearer",
            paper="not available; the cost model is ours",
            criterion="mean cost with the rule at least 1 % above that without, or more positions out of reach",
            measure=measure_cost,
            options={"data": str},
        ),
        Claim(
            id="C6",
            statement="The deployed optimiser stops short of the minimum",
            paper="ours, not in the paper",
            criterion="largest error of a note intercept above 0.005 at its stopping rule",
            measure=measure_optimiser,
        ),
    ),
    methods=(
        Method(
            name="mf",
            summary="exact bridging matrix factorisation",
            files=("mf.py",),
            requires=("numpy", "numba", "scipy", "torch"),
        ),
        Method(
            name="marginal",
            summary="closed-form effect of ratings on a note, influence with raters free",
            files=("mf.py", "marginal.py"),
            requires=("numpy", "numba", "scipy", "torch"),
        ),
        Method(
            name="attack",
            summary="cheapest coordinated ratings against status rules",
            files=("mf.py", "marginal.py", "rules.py", "attack.py"),
            requires=("numpy", "numba", "scipy", "torch", "pandas"),
        ),
    ),
)
