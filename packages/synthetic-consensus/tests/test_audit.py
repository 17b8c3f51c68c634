"""Closed-form effects, the paradox, rules by hand-made notes, searches against enumeration, defences, cost."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic_consensus import (
    BridgingMF,
    CostModel,
    NoteStats,
    Positions,
    Ratings,
    Shrinkage,
    StatusRules,
    add_effect,
    apply,
    attack,
    attack_all,
    audit,
    coordinated_groups,
    decide,
    effect,
    expanded_consensus,
    flip_point,
    gaussian_bridging,
    group_informed_consensus,
    influence,
    merged_groups,
    model_stats,
    paradox_table,
    plan_position,
    price,
    quality_sensitive,
    remove_effect,
    robust_intercept,
    robust_intercepts,
    solve_notes,
    synthetic,
    two_stage_scoring,
)
from synthetic_consensus.attack import lower_bound, one_sided, two_sided_naive
from synthetic_consensus.audit import robust_defence
from synthetic_consensus.marginal import refit
from synthetic_consensus.mitigate import leverage_capped, leverages, majority_share, smoothed_share
from synthetic_consensus.rules import (
    CRH,
    CRNH,
    NMR,
    Decisions,
    RaterBounds,
    net_helpful,
    population_sample_veto,
    rater_helpfulness,
    subset_vetoes,
    without_most_active,
)


@pytest.fixture(scope="module")
def model():
    ratings = synthetic(1200, 600, 40_000, "sparse", rng=1)[0].filter()
    return BridgingMF(n_init=1, random_state=0, tol=1e-9).fit(ratings)


def stats_of(f, e):
    f, e = np.asarray(f, dtype=float), np.asarray(e, dtype=float)
    return np.array([f.size, f.sum(), f @ f, e.sum(), f @ e])


notes = st.lists(st.tuples(st.floats(-2, 2), st.floats(-1, 1)), min_size=1, max_size=25)


@given(rows=notes, f=st.floats(-3, 3), e=st.floats(-1, 1), k=st.floats(1, 60))
@settings(max_examples=300, deadline=None)
def test_effect_of_a_rating_is_the_refit_and_the_theorem_says_its_sign(rows, f, e, k):
    S, shrink = stats_of(*zip(*rows, strict=True)), Shrinkage(0.15 * k, 0.03 * k)
    before, grown = solve_notes(S, shrink), S + np.array([1, f, f * f, e, f * e])
    after, change = solve_notes(grown, shrink), add_effect(S, f, e, shrink)
    assert change[0] == pytest.approx(after[0] - before[0], abs=1e-10)
    assert change[1] == pytest.approx(after[1] - before[1], abs=1e-10)
    back = remove_effect(grown, f, e, shrink)
    assert back[0] == pytest.approx(-change[0], abs=1e-10)
    residual = e - before[0] - f * before[1]
    if residual < -1e-6 and abs(f * S[1] - S[2] - shrink.factor) > 1e-6:
        assert (change[0] > 0) == (f * S[1] > S[2] + shrink.factor)


def test_worked_example_of_the_paradox():
    S, shrink = stats_of([0.6] * 8, [0.5] * 8), Shrinkage(0.15 * 20, 0.03 * 20)
    np.testing.assert_allclose(solve_notes(S, shrink), (0.15748, 0.47244), atol=5e-6)
    assert flip_point(S, shrink) == pytest.approx(0.725)
    changes = [float(add_effect(S, f, -0.2, shrink)[0]) for f in (0.2, 0.6, 0.8, 1.0)]
    np.testing.assert_allclose(changes, [-0.0661, -0.0227, 0.0146, 0.0544], atol=5e-5)
    assert float(add_effect(S, 0.725, -0.2, shrink)[0]) == pytest.approx(0, abs=1e-12)


def test_paradox_table_is_the_largest_rise_over_positions(model):
    stats, shrink = model_stats(model), Shrinkage.of(model)
    f, i = model.rater_factor_[:80, 0], model.rater_intercept_[:80]
    found = paradox_table(stats, model.mu_, i, f, shrink)
    for n in range(0, len(stats.S), 40):
        before = solve_notes(stats.S[n], shrink)
        rises = {"leverage": 0.0, "residual": 0.0}
        for a, b in zip(f, i, strict=True):
            e = -model.mu_ - b
            rise = float(add_effect(stats.S[n], a, e, shrink)[0])
            kind = "leverage" if e - before[0] - a * before[1] < 0 else "residual"
            rises[kind] = max(rises[kind], rise)
        assert found.leverage[n] == pytest.approx(rises["leverage"])
        assert found.residual[n] == pytest.approx(rises["residual"])
    assert 0 < found.share < 1


def test_influence_with_leverage_is_near_the_refit():
    ratings = synthetic(300, 200, 6500, rng=2)[0].filter()
    fitted = BridgingMF(n_init=1, random_state=0, tol=1e-14, max_iter=5000).fit(ratings)
    rng, errors = np.random.default_rng(3), []
    for _ in range(12):
        note = int(rng.integers(ratings.n_notes))
        rater = int(rng.choice(np.setdiff1d(np.arange(ratings.n_raters), ratings.rater[ratings.note == note])))
        exact = refit(fitted, rater, note, 1.0).parameters.note_intercept[note] - fitted.note_intercept_[note]
        first = influence(fitted, rater, note, 1.0).note_intercept[note]
        errors.append(abs(first - exact) / abs(exact))
    assert np.median(errors) < 0.01
    assert np.quantile(errors, 0.75) < 0.05
    frozen = effect(fitted, note, 1.0, rater=rater)[0]
    assert effect(fitted, note, 1.0, rater=rater, mode="influence")[0] == pytest.approx(first)
    assert effect(fitted, note, 1.0, rater=rater, mode="refit")[0] == pytest.approx(exact, rel=1e-3)
    assert np.sign(frozen) == np.sign(exact)


# --- rules -----------------------------------------------------------------------------------------------------------


def note(counts, i, f):
    """Statistics that carry these counts; the scores are given beside them."""
    return NoteStats(np.zeros((1, 5)), np.array([counts])), (np.array([i]), np.array([f]))


@pytest.mark.parametrize(
    ("counts", "i", "f", "status", "rule"),
    [
        ([[0, 0, 6], [0, 0, 6]], 0.45, 0.1, CRH, "helpful intercept"),
        ([[0, 0, 6], [0, 0, 6]], 0.40, 0.1, CRH, "helpful intercept"),
        ([[0, 0, 6], [0, 0, 6]], 0.39, 0.1, NMR, "between the thresholds"),
        ([[0, 0, 6], [0, 0, 6]], 0.45, 0.51, NMR, "large factor"),
        ([[0, 0, 6], [3, 0, 6]], 0.45, 0.1, NMR, "net-helpful minimum"),
        ([[0, 0, 6], [2, 0, 6]], 0.45, 0.1, CRH, "helpful intercept"),
        ([[0, 90, 20], [0, 0, 4]], 0.45, 0.1, NMR, "rater balance"),
        ([[0, 0, 2], [0, 0, 2]], 0.45, 0.1, NMR, "too few ratings"),
        ([[4, 0, 0], [0, 0, 4]], -0.20, 0.1, CRNH, "not helpful: diamond"),
        ([[4, 0, 0], [0, 0, 4]], -0.12, 0.1, NMR, "between the thresholds"),
        ([[3, 0, 1], [3, 0, 0]], 0.1, 0.1, CRNH, "not helpful: ratio"),
        ([[3, 0, 1], [2, 0, 0]], 0.1, 0.1, NMR, "between the thresholds"),
    ],
)
def test_rules_on_hand_made_notes(counts, i, f, status, rule):
    stats, scores = note(counts, i, f)
    found = decide(stats, Shrinkage(1, 1), StatusRules.default(), scores=scores)
    assert (found.status[0], found.rule[0]) == (status, rule)


def test_inertia_keeps_a_helpful_note_and_nothing_else():
    stats, _ = note([[0, 0, 6], [0, 0, 6]], 0, 0)
    for i, was, expected in ((0.395, True, CRH), (0.395, False, NMR), (0.385, True, NMR)):
        scores = (np.array([i]), np.array([0.0]))
        found = decide(stats, Shrinkage(1, 1), StatusRules.default(), scores=scores, was_crh=np.array([was]))
        assert found.status[0] == expected


def test_another_model_lifts_only_notes_that_the_core_does_not_reject_firmly():
    for i, expected in ((0.35, CRH), (0.29, NMR), (0.30, CRH)):
        stats, scores = note([[0, 0, 6], [0, 0, 6]], i, 0.1)
        found = decide(stats, Shrinkage(1, 1), StatusRules.default(), scores=scores, lifts={"group": np.array([True])})
        assert found.status[0] == expected
    stats, scores = note([[0, 0, 6], [0, 0, 6]], 0.35, 0.6)  # the factor's rule still holds
    assert (
        decide(stats, Shrinkage(1, 1), StatusRules.default(), scores=scores, lifts={"group": np.array([True])}).status[
            0
        ]
        == NMR
    )


def test_authors_of_rejected_notes_are_left_out():
    ratings = Ratings.of(np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4), np.tile([1.0, 0.0, 1.0], 4))
    decisions = Decisions(np.array([CRH, CRNH, NMR]), np.empty(3, object), np.array([0.5, -0.3, 0.02]), np.zeros(3))
    authors = np.array([0, 1, 2])
    kept = rater_helpfulness(ratings, decisions, authors=authors).keep
    assert kept.tolist() == [True, False, False, True]  # 1 wrote a rejected note, 2 one of too low a score, 3 none
    assert rater_helpfulness(ratings, decisions).keep.all()
    assert rater_helpfulness(ratings, decisions, authors=np.array([9, 9, 9])).keep.all()
    with pytest.raises(ValueError, match="author of each of 3 notes"):
        rater_helpfulness(ratings, decisions, authors=np.array([1]))


def test_net_helpful_ignores_somewhat_and_counts_zero_as_positive():
    assert net_helpful(np.array([[2, 50, 7], [1, 0, 9]])) == 5
    ratings = Ratings.of(np.arange(4), np.zeros(4, int), [1, 1, 0, 0.5])
    stats = NoteStats.of(ratings, 0.0, np.zeros(4), np.array([-0.1, 0.0, 0.2, -0.3]))
    assert stats.counts[0].tolist() == [[0, 1, 1], [1, 0, 1]]


def test_upper_bound_rule_needs_and_uses_extremes(model):
    rules = StatusRules(crnh_ucb=-0.04)
    decisions = apply(model, rules)
    stats, shrink, bounds = model_stats(model), Shrinkage.of(model), RaterBounds.of(model)
    best = np.max(
        [
            solve_notes(stats.S + np.array([1, f, f * f, e, f * e]), shrink)[0]
            for f in (bounds.least_factor, 0, bounds.most_factor)
            for e in [1 - model.mu_ - bounds.least_intercept]
        ],
        axis=0,
    )
    assert (best[decisions.rule == "not helpful: upper bound"] < -0.04).all()
    with pytest.raises(ValueError, match="needs the bounds"):
        decide(stats, shrink, rules)


def test_statuses_do_not_depend_on_the_sign_of_the_factors(model):
    flipped = BridgingMF(**model.get_params())
    for name in ("ratings_", "ratio_", "mu_", "rater_intercept_", "note_intercept_"):
        setattr(flipped, name, getattr(model, name))
    flipped.rater_factor_, flipped.note_factor_ = -model.rater_factor_, -model.note_factor_
    np.testing.assert_array_equal(
        apply(flipped, StatusRules.default()).status, apply(model, StatusRules.default()).status
    )


def test_safeguards_refuse_notes_that_lean_on_a_few_raters(model):
    data = model.ratings_
    keep = without_most_active(data, 0.01)
    assert 0 < (~keep).sum() < data.size
    most = np.bincount(data.rater).argmax()
    assert not keep[data.rater == most].any()
    vetoes = subset_vetoes(model, {"engagement": keep})
    refused = apply(model, StatusRules.intercept_only(), vetoes=vetoes)
    plain = apply(model, StatusRules.intercept_only())
    lost = (plain.status == CRH) & (refused.status != CRH)
    assert (refused.rule[lost] == "engagement").all()
    with pytest.raises(ValueError, match="population sample"):
        population_sample_veto(model)


def test_population_sample_contradicts_a_brigaded_note():
    ratings, _ = synthetic(400, 120, 12_000, rng=4)
    rng = np.random.default_rng(5)
    source = (rng.random(ratings.size) < 0.5).astype(np.int8)
    value = ratings.value.copy()
    rows = ratings.note == 3
    value[rows & (source == 0)], value[rows & (source == 1)] = 1.0, 0.0
    made = Ratings(ratings.rater, ratings.note, value, ratings.rater_ids, ratings.note_ids, source)
    fitted = BridgingMF(n_init=1, random_state=0).fit(made)
    veto = population_sample_veto(fitted)
    assert veto[3]
    assert veto.mean() < 0.2


def test_two_stages_drop_raters_who_disagree_with_statuses():
    ratings, _ = synthetic(500, 150, 25_000, rng=6)
    contrary = ratings.rater < 15
    value = np.where(contrary, 1 - ratings.value, ratings.value)
    stage = two_stage_scoring(
        Ratings(ratings.rater, ratings.note, value, ratings.rater_ids, ratings.note_ids), n_init=1, random_state=0
    )
    trained = stage.first.ratings_
    agree = stage.helpfulness.agree
    bad = np.isin(trained.rater_ids, ratings.rater_ids[:15])
    assert np.nanmean(agree[bad]) < np.nanmean(agree[~bad]) - 0.3
    assert stage.helpfulness.keep[bad].mean() < 0.3
    assert stage.helpfulness.keep[~bad].mean() > 0.6
    assert len(stage.decisions.status) == stage.ratings.n_notes


# --- searches --------------------------------------------------------------------------------------------------------


def test_beam_is_exact_on_small_problems_and_no_worse_than_greedy(model):
    stats = model_stats(model)
    low = np.flatnonzero((model.note_intercept_ < 0.4) & (model.note_intercept_ > 0.2))[:12]
    where = Positions.of(model, np.array([-0.7, 0.7]), np.array([-0.2, -0.2]), 4)
    for n in low:
        for rules in (StatusRules.intercept_only(), StatusRules.default()):
            exact = attack(model, int(n), where, 5, rules=rules, search="exact", stats=stats)
            beam = attack(model, int(n), where, 5, rules=rules, stats=stats)
            greedy = attack(model, int(n), where, 5, rules=rules, search="greedy", stats=stats)
            assert beam.k == exact.k
            assert exact.exact
            if greedy.k is not None:
                assert beam.k <= greedy.k


def test_an_attack_found_is_one_by_refit(model):
    stats, shrink = model_stats(model), Shrinkage.of(model)
    low = np.flatnonzero(model.note_intercept_ < 0.4)
    where = Positions.named(model, "harsh")
    least = attack_all(model, where, 9, rules=StatusRules.intercept_only(), notes=low, stats=stats)
    assert (least > 0).any()
    for n in low[least > 0][:5]:
        result = attack(model, int(n), where, 9, rules=StatusRules.intercept_only(), stats=stats)
        f, i, v = np.array(result.ratings).T
        grown = stats.added(int(n), f, v - model.mu_ - i, v)
        after = solve_notes(grown.S[0], shrink)[0]
        assert after >= 0.4
        assert after == pytest.approx(result.intercept_path[-1])
        assert result.intercept_path[-2] < 0.4
        assert len(result.ratings) == result.k <= least[low == n][0]
        assert result.status_path[-1] == CRH


def test_greedy_on_all_notes_is_greedy_on_each(model):
    stats, where = model_stats(model), Positions.named(model, "typical")
    low = np.flatnonzero(model.note_intercept_ < 0.4)
    for rules in (StatusRules.intercept_only(), StatusRules.default()):
        least = attack_all(model, where, 9, rules=rules, notes=low, stats=stats)
        for j in range(0, low.size, 60):
            one = attack(model, int(low[j]), where, 9, rules=rules, search="greedy", stats=stats)
            assert (one.k or 0) == least[j]


def test_accounts_rate_a_note_once(model):
    n = int(np.argsort(model.note_intercept_)[-40])
    one = Positions.of(model, np.array([-0.5, 0.5]), np.array([-0.3, -0.3]), 1)
    result = attack(model, n, one, 9, "max", rules=StatusRules.intercept_only())
    assert result.k is None
    assert attack(model, n, one, 2, "max", rules=StatusRules.intercept_only()).k == 2
    used = [r[:2] for r in attack(model, n, one, 2, "max").ratings]
    assert len(set(used)) == 2


def test_pushing_down_and_extremes_by_enumeration(model):
    stats, shrink = model_stats(model), Shrinkage.of(model)
    n = int(np.argsort(model.note_intercept_)[100])
    where = Positions.of(model, np.array([-0.6, 0.4]), np.array([0.1, -0.1]))
    for objective, best in (("max", max), ("min", min)):
        found = attack(model, n, where, 3, objective, search="exact", stats=stats).intercept_path[-1]
        values = []
        types = list(itertools.product(zip(where.factor, where.intercept, strict=True), (0.0, 0.5, 1.0)))
        for chosen in itertools.combinations_with_replacement(types, 3):
            f, e = np.array([p[0] for p, _ in chosen]), np.array([v - model.mu_ - p[1] for p, v in chosen])
            values.append(float(solve_notes(stats.added(n, f, e, np.zeros(3)).S[0], shrink)[0]))
        assert found == pytest.approx(best(values))
    down = attack(model, n, where, 9, "crnh", stats=stats)
    if down.k:
        assert down.status_path[-1] == CRNH


def test_no_attack_beats_the_lower_bound():
    shrink = Shrinkage(6.0, 1.2)
    bound = lower_bound(shrink, 0.9)
    assert bound == 5
    assert solve_notes(stats_of([0.0] * 5, [0.9] * 5), shrink)[0] >= 0.4
    assert solve_notes(stats_of([0.0] * 4, [0.9] * 4), shrink)[0] < 0.4
    assert lower_bound(shrink, 0.3) == np.inf


def test_audit_orders_what_it_must(model):
    report = audit(model, Positions.named(model, "harsh"), 9)
    by_name = {d.name: d for d in report.defences}
    free = by_name["threshold only"]
    assert (np.diff(free.shares) >= 0).all()
    assert free.shares[-1] == pytest.approx(np.mean(report.least > 0))
    for d in report.defences[1:]:
        assert d.shares[-1] <= free.shares[-1] + 1e-12
    assert by_name["deployed and five a side"].shares[-1] <= by_name["all deployed rules"].shares[-1]
    assert report.brigade[-1] <= report.brigade_best[-1] <= free.shares[-1]
    assert not report.extrapolated
    fragile = report.most_fragile(5)
    assert (np.diff(report.least[np.searchsorted(report.low, fragile)]) >= 0).all()
    naive = two_sided_naive(model, 9, rules=StatusRules.intercept_only())
    best = attack_all(model, Positions.named(model, "harsh"), 9, rules=StatusRules.intercept_only())
    assert (naive > 0).sum() < (best > 0).sum()
    assert ((one_sided(model, 9, rules=StatusRules.intercept_only()) == -1) == (best == -1)).all()


# --- defences --------------------------------------------------------------------------------------------------------


def test_leave_q_out_is_enumeration(model):
    rng, shrink = np.random.default_rng(7), Shrinkage(3.0, 0.6)
    for _ in range(20):
        f, e = rng.normal(size=9), rng.normal(0.4, 0.4, 9)
        for q in (0, 1, 2):
            exact = min(
                float(solve_notes(stats_of(np.delete(f, s), np.delete(e, s)), shrink)[0])
                for size in range(q + 1)
                for s in itertools.combinations(range(9), size)
            )
            assert robust_intercept(f, e, shrink, q, exact=True) == pytest.approx(exact)
            if q < 2:
                assert robust_intercept(f, e, shrink, q) == pytest.approx(exact)
            else:
                assert robust_intercept(f, e, shrink, q) >= exact - 1e-12
    one = robust_intercepts(model, 1)
    data = model.ratings_
    for n in (0, 50, 200):
        rows = data.note == n
        f, e = (
            model.rater_factor_[data.rater[rows], 0],
            data.value[rows] - model.mu_ - model.rater_intercept_[data.rater[rows]],
        )
        assert one[n] == pytest.approx(robust_intercept(f, e, Shrinkage.of(model), 1))
    defence = robust_defence(
        model, Positions.named(model, "harsh"), 5, np.flatnonzero(model.note_intercept_ < 0.4)[:40]
    )
    assert (np.diff(defence.shares) >= 0).all()


def test_leverages_are_diagonals_of_the_hat_matrix():
    f, shrink = np.random.default_rng(8).normal(size=12), Shrinkage(2.0, 0.4)
    X = np.column_stack([np.ones(12), f])
    hat = X @ np.linalg.solve(X.T @ X + np.diag([2.0, 0.4]), X.T)
    np.testing.assert_allclose(leverages(f, shrink), np.diagonal(hat))
    far, e = np.append(f, 9.0), np.zeros(13)
    e[-1] = 1.0
    assert leverage_capped(far, e, shrink, 0.5)[0] == pytest.approx(0, abs=1e-12)


def test_other_scores_prefer_notes_that_both_camps_like():
    rater = np.repeat(np.arange(60), 12)
    note = np.tile(np.arange(12), 60)
    left = rater < 32
    rng = np.random.default_rng(9)
    liked = np.where(note < 4, 0.9, np.where(note < 8, np.where(left, 0.9, 0.1), np.where(left, 0.1, 0.9)))
    ratings = Ratings.of(rater, note, (rng.random(liked.size) < liked).astype(float))
    fitted = BridgingMF(random_state=0).fit(ratings)
    scores = {
        "deployed": fitted.note_intercept_,
        "gaussian": gaussian_bridging(fitted),
        "quality": quality_sensitive(ratings, random_state=0).intercept,
        "groups": group_informed_consensus(fitted),
    }
    for name, score in scores.items():
        assert score[:4].min() > score[4:].max(), name
    population, truth = synthetic(600, 200, 25_000, rng=11)
    found = expanded_consensus(population, 0)
    assert np.corrcoef(found.intercept, truth.quality[population.note_ids])[0, 1] > 0.6
    assert abs(np.corrcoef(found.factor, truth.polarity[population.note_ids])[0, 1]) > 0.8
    share = majority_share(ratings)
    np.testing.assert_allclose(share[3], ratings.value[ratings.note == 3].mean())
    assert abs(smoothed_share(ratings)[3] - 0.35) < abs(share[3] - 0.35)


def test_planted_groups_are_found_and_merged():
    ratings, truth = synthetic(300, 200, 6000, coordinated=12, rng=10)
    groups = coordinated_groups(ratings, jaccard=0.4, z=3.0)
    planted = truth.coordinated[ratings.rater_ids]
    assert (groups[planted] >= 0).mean() > 0.9
    assert (groups[~planted] >= 0).mean() < 0.02
    merged = merged_groups(ratings, groups)
    assert merged.n_raters == ratings.n_raters - (groups >= 0).sum() + np.unique(groups[groups >= 0]).size


# --- cost ------------------------------------------------------------------------------------------------------------


def test_a_planned_position_is_what_the_rater_s_ridge_gives(model):
    decisions = apply(model, StatusRules.default())
    plan = plan_position(model, decisions, -0.4, 0.0, CostModel())
    k = model.ratings_.size / model.ratings_.n_raters
    f, e = model.note_factor_[plan.notes, 0], plan.values - model.mu_ - model.note_intercept_[plan.notes]
    i, g = solve_notes(stats_of(f, e), Shrinkage(0.15 * k, 0.03 * k))
    assert (g, i) == (pytest.approx(plan.factor), pytest.approx(plan.intercept))
    assert plan.distance == pytest.approx(np.hypot(g + 0.4, i))
    assert len(plan.notes) >= 10
    assert len(set(plan.notes)) == len(plan.notes)
    assert plan.agree >= 0.66 or np.isnan(plan.agree)


def test_the_agree_ratio_never_makes_it_cheaper_and_prices_add_up(model):
    decisions = apply(model, StatusRules.default())
    low = np.flatnonzero(model.note_intercept_ < 0.4)
    where = Positions.named(model, "harsh")
    least = attack_all(model, where, 9, rules=StatusRules.intercept_only(), notes=low)
    n = int(low[np.argmax(least)])
    result = attack(model, n, where, 9, rules=StatusRules.intercept_only())
    free, ruled = (price(model, decisions, result, CostModel(agree_ratio=a)) for a in (0.0, 0.66))
    assert ruled.missed >= free.missed
    assert free.accounts == result.k
    assert free.total == pytest.approx(10 * free.accounts + 0.1 * (free.position_ratings + result.k))
    costs = CostModel(agree_ratio=0.0)
    assert free.amortised(1, costs, result.k) == pytest.approx(free.total)
    assert free.amortised(1000, costs, result.k) == pytest.approx(0.1 * result.k, abs=0.2)
    with pytest.raises(ValueError, match="prices must be >= 0"):
        CostModel(account=-1)


def test_positions_outside_the_raters_are_marked(model):
    assert Positions.of(model, np.array([0.0, 99.0]), np.array([0.0, 0.0])).extrapolated.tolist() == [False, True]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: Positions.named(m, "wild"), ValueError, "got 'wild'"),
        (lambda m: Positions.of(m, np.array([]), np.array([])), ValueError, "at least one finite position"),
        (lambda m: attack(m, 0, Positions.named(m, "typical"), 0), ValueError, "K must be >= 1, got 0"),
        (lambda m: attack(m, -1, Positions.named(m, "typical")), KeyError, "no note -1"),
        (lambda m: attack(m, 0, Positions.named(m, "typical"), objective="up"), ValueError, "got 'up'"),
        (
            lambda m: attack(m, 0, Positions.named(m, "typical"), 2, "max", search="exact"),
            ValueError,
            "at most 12 types",
        ),
        (lambda m: attack(m, 0, Positions.named(m, "typical"), 2, "max", search="all"), ValueError, "got 'all'"),
        (lambda m: effect(m, 0, 2.0, rater=0), ValueError, r"\[0, 1\], got 2"),
        (lambda m: effect(m, 0, 1.0), ValueError, "either rater or factor"),
        (lambda m: effect(m, 0, 1.0, factor=0.1, mode="refit"), ValueError, "needs an existing rater"),
        (lambda m: robust_intercept(np.ones(3), np.ones(3), Shrinkage(1, 1), 4), ValueError, "between 0 and 3, got 4"),
    ],
)
def test_bad_input_is_named(model, call, error, message):
    with pytest.raises(error, match=message):
        call(model)
