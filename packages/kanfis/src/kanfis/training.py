"""Gradient training in torch: the paper's network, its hybrid start, fine-tuning of terms, rules and pruning of
networks."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_random_state
from torch import nn
from torch.nn import functional as F

from kanfis.layers import KANFISLayer, KANFISNet, inverse_softplus
from kanfis.membership import Partition, Term, labels_of
from kanfis.rules import Antecedent, Rule, RuleBase
from kanfis.solve import ALPHAS, Moments, ridge


def _device(name: str) -> str:
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def task_loss(out: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, classifier: bool) -> torch.Tensor:
    """Weighted mean of the squared error (summed over outputs' mean) or of the cross-entropy."""
    each = -(target * F.log_softmax(out, 1)).sum(1) if classifier else (out - target).square().mean(1)
    return (weight * each).sum() / weight.sum()


def fit_network(
    model: Any, X: np.ndarray, Y: np.ndarray, weight: np.ndarray, codes: np.ndarray | None, validation: Any
) -> None:
    """Train ``KANFISNet`` for an estimator: standardisation, start, early stopping on the task loss, rules.

    Follows the official code where ``fit_mode="paper"`` (section M5); ``hybrid`` starts from quantiles and a ridge
    head (M8).
    """
    classifier = model._classifier
    paper = model.fit_mode == "paper"
    rng = check_random_state(model.random_state)
    if validation is None and len(X) >= 5:
        train, held = model._split(len(X), model.validation_fraction, codes)
        if len(held) == 0:
            train, held = np.arange(len(X)), np.zeros(0, dtype=int)
    else:
        train, held = np.arange(len(X)), np.zeros(0, dtype=int)
        if validation is None:
            warnings.warn(
                f"{len(X)} rows are too few for a validation split: trained without early stopping", stacklevel=4
            )
    mean, scale = X[train].mean(0), X[train].std(0)
    scale = np.where(scale > 0, scale, 1.0)
    y_mean, y_scale = (np.zeros(Y.shape[1]), np.ones(Y.shape[1])) if classifier else (Y[train].mean(0), Y[train].std(0))
    y_scale = np.where(y_scale > 0, y_scale, 1.0)
    model.input_mean_, model.input_scale_, model.output_mean_, model.output_scale_ = mean, scale, y_mean, y_scale
    Z, T = (X - mean) / scale, (Y - y_mean) / y_scale
    if validation is not None:
        Zv, Tv, wv = (validation[0] - mean) / scale, (validation[1] - y_mean) / y_scale, np.ones(len(validation[0]))
    else:
        Zv, Tv, wv = Z[held], T[held], weight[held]
    k = model.n_memberships
    if not isinstance(k, (int, np.integer)):
        raise ValueError(f"the paper's structure has one number of memberships for all features, got {k!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.randint(2**31 - 1)))
        net = KANFISNet(
            X.shape[1],
            model.n_rules,
            Y.shape[1],
            model.n_layers,
            int(k),
            model.membership,
            model.fuzzy_type,
            model.mask,
            type_reduction=model.type_reduction,
        ).double()
        if not paper:
            quantile_start(net, Z[train], rng)
            if model.type_reduction != "km":
                ridge_head(net, Z[train], T[train], weight[train], classifier)
        net.to(_device(model.device))
        model.network_ = net
        _train(model, net, (Z[train], T[train], weight[train]), (Zv, Tv, wv), classifier, paper, rng)
    _adopt(model, X, weight)


def quantile_start(net: KANFISNet, Z: np.ndarray, rng: Any) -> None:
    """Centres at quantiles of the inputs with noise of 0.15, widths 2.4 / K (first layer)."""
    layer = cast(KANFISLayer, net.layers[0])
    d, r, k = layer.shape
    centres = np.quantile(Z, np.linspace(0.02, 0.98, k) if k > 1 else [0.5], axis=0).T[:, None]
    with torch.no_grad():
        layer.centers.copy_(torch.from_numpy(centres + 0.15 * rng.standard_normal((d, r, k))))
        raw = inverse_softplus(2.4 / k)
        if layer.fuzzy_type != "it2":
            layer.widths_raw.fill_(raw)
            if layer.fuzzy_type == "it2-mean":
                layer.shifts_raw.fill_(inverse_softplus(0.15 * 2.4 / k))
        else:
            layer.lower_widths_raw.fill_(inverse_softplus(0.85 * 2.4 / k))
            layer.width_differences_raw.fill_(inverse_softplus(0.3 * 2.4 / k))
        layer.mask.copy_(torch.from_numpy(1 + 0.3 * rng.standard_normal((d, r))))


def ridge_head(net: KANFISNet, Z: np.ndarray, T: np.ndarray, weight: np.ndarray, classifier: bool) -> None:
    """Head by ridge with GCV on the last layer's firings (for classes on one-hot targets, centred, times 4)."""
    with torch.no_grad():
        net.eval()
        h = torch.from_numpy(Z).to(net.final_layer.weight.device)
        for i, layer in enumerate(net.layers):
            h = layer(h if i == 0 else net.norms[i - 1](h))
        firing = h.cpu().numpy()
        target = 4 * (T - T.mean(0)) if classifier else T
        moments = Moments.of(lambda x: x, firing, target, weight, firing.shape[1])
        fit = ridge(moments, np.arange(firing.shape[1]), ALPHAS)
        net.final_layer.weight.copy_(torch.from_numpy(fit.coef.T))
        net.final_layer.bias.copy_(torch.from_numpy(fit.intercept))
        net.train()


def _optimizer(net: KANFISNet, lr: float, decay: float) -> torch.optim.AdamW:
    masks = [p for n, p in net.named_parameters() if n.endswith(".mask")]
    others = [p for n, p in net.named_parameters() if not n.endswith(".mask")]
    return torch.optim.AdamW(
        [{"params": others, "weight_decay": decay}, {"params": masks, "lr": 10 * lr, "weight_decay": 0.0}], lr=lr
    )


def _train(model: Any, net: KANFISNet, train: Any, held: Any, classifier: bool, paper: bool, rng: Any) -> None:
    device = net.final_layer.weight.device
    x, t, w = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in train)
    xv, tv, wv = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in held)
    lr = model.learning_rate if model.learning_rate is not None else (1e-3 if paper else 1e-2)
    optimizer = _optimizer(net, lr, model.weight_decay if paper else 0.0)
    best, best_state, waited = math.inf, copy.deepcopy(net.state_dict()), 0
    history: dict[str, list[float]] = {"train": [], "validation": []}
    model.converged_ = False
    ramp = max(1, math.floor(0.3 * model.max_epochs))
    for epoch in range(model.max_epochs):
        strength = min(1.0, epoch / ramp)
        order = torch.from_numpy(rng.permutation(len(x))).to(device)
        net.train()
        total = torch.zeros((), dtype=torch.float64, device=device)
        for rows in order.split(model.batch_size):
            out, firing = net(x[rows], return_firing=True)
            loss = task_loss(out, t[rows], w[rows], classifier)
            whole = loss + net.penalty(strength * model.lambda_entropy, model.lambda_distinct, firing)
            optimizer.zero_grad(set_to_none=True)
            whole.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            total += loss.detach() * len(rows)
        net.eval()
        with torch.no_grad():
            history["train"].append(float(total) / len(x))
            watched = float(task_loss(net(xv), tv, wv, classifier)) if len(xv) else history["train"][-1]
        history["validation"].append(watched)
        if model.verbose:
            print(f"epoch {epoch + 1}: loss {history['train'][-1]:.4f}, validation {watched:.4f}")
        if not math.isfinite(watched) or not math.isfinite(history["train"][-1]):
            warnings.warn(
                f"the loss of epoch {epoch + 1} is not finite: the best state before was kept",
                ConvergenceWarning,
                stacklevel=6,
            )
            break
        if watched < best - model.min_delta:
            best, best_state, waited = watched, copy.deepcopy(net.state_dict()), 0
        else:
            waited += 1
            if waited >= model.patience:
                model.converged_ = True
                break
    net.load_state_dict(best_state)
    net.eval()
    model.history_ = history


def network_scores(model: Any, X: np.ndarray) -> np.ndarray:
    """Outputs of the network in the targets' units, (n, O)."""
    net = model.network_
    with torch.no_grad():
        z = torch.from_numpy((X - model.input_mean_) / model.input_scale_).to(net.final_layer.weight.device)
        out = net(z).cpu().numpy()
    return out * model.output_scale_ + model.output_mean_


def network_rulebase(model: Any) -> RuleBase:
    """A one-layer network as a rule base with one rule a membership: exactly the same outputs."""
    net = model.network_
    layer = cast(KANFISLayer, net.layers[0])
    with torch.no_grad():
        centres = layer.centers.cpu().numpy()
        lower, upper = (w.detach().cpu().numpy() for w in layer.widths())
        shifts, mask = layer.shifts().cpu().numpy(), layer.effective_mask().cpu().numpy()
        head, bias = net.final_layer.weight.cpu().numpy(), net.final_layer.bias.cpu().numpy()
        beta = (
            (F.softplus(layer.slopes_raw) + 0.5).cpu().numpy() if layer.membership == "bell" else np.ones_like(centres)
        )
    d, r, k = layer.shape
    rescale = (lambda w, s: w / s) if layer.membership == "sigmoid" else (lambda w, s: w * s)
    every, antecedents, coef = [], [], []
    for i in range(d):
        s, m = float(model.input_scale_[i]), float(model.input_mean_[i])
        flat = [(float(centres[i, j, q]) * s + m, j, q) for j in range(r) for q in range(k)]
        rank = {f"{j},{q}": n for n, (_, j, q) in enumerate(sorted(flat))}
        words = labels_of(sorted(c for c, _, _ in flat)) if r * k <= 5 else None
        terms = []
        for n, (c, j, q) in enumerate(flat):
            lo, up = rescale(float(lower[i, j, q]), s), rescale(float(upper[i, j, q]), s)
            label = words[rank[f"{j},{q}"]] if words else f"about {c:.4g}"
            fuzzy = (lo, up) if layer.fuzzy_type == "it2" else (None, None)
            kind, shift = cast(Any, layer.membership), float(shifts[i, j, q]) * s
            terms.append(Term(kind, c, (lo + up) / 2, *fuzzy, label, float(beta[i, j, q]), shift))
            antecedents.append(((i, n),))
            coef.append(mask[i, j] * head[:, j] * model.output_scale_)
        every.append(tuple(terms))
    partition = Partition(tuple(every), np.full(d, -np.inf), np.full(d, np.inf))
    base = model._empty(partition, tuple(antecedents), len(bias))
    return replace(base, coef=np.array(coef), intercept=bias * model.output_scale_ + model.output_mean_)


def _adopt(model: Any, X: np.ndarray, weight: np.ndarray) -> None:
    """Rules of the trained network: its own where it is additive, else a term model of its outputs."""
    model.alpha_ = float("nan")
    model.exact_rules_ = model.n_layers == 1 and model.type_reduction != "km"
    if model.exact_rules_:
        model._store(network_rulebase(model), X, weight)
        return
    outputs = network_scores(model, X)
    partition = Partition.from_quantiles(X, 5, weight=weight)
    base = model._empty(partition, tuple(((i, k),) for i, k in partition.columns), outputs.shape[1])
    moments = Moments.of(base.basis, X, outputs, weight, len(base.antecedents))
    fit = ridge(moments, np.arange(len(base.antecedents)), ALPHAS)
    base = replace(base, coef=fit.coef, intercept=fit.intercept)
    residual = outputs - base.scores(X)
    model.surrogate_fidelity_ = float(1 - residual.var() / max(outputs.var(), 1e-300))
    model._store(base, X, weight)


def paper_rules(model: Any) -> list[Rule]:
    """The network's rules: sums of masked memberships, with masks scaled so that their absolute values add up to 1.

    Signs and scales of mask and consequent can be exchanged freely; here the masks' sum is never negative.
    """
    layer = cast(KANFISLayer, model.network_.layers[0])
    mask = layer.effective_mask().detach().cpu().numpy()
    centres = layer.centers.detach().cpu().numpy()
    lower, upper = (w.detach().cpu().numpy() for w in layer.widths())
    head = model.network_.final_layer.weight.detach().cpu().numpy()
    names, found = model._names(), []
    _d, r, _k = layer.shape
    shares = np.zeros(r)
    for j in range(r):
        size = np.abs(mask[:, j]).sum()
        sign = -1.0 if mask[:, j].sum() < 0 else 1.0
        conditions = []
        for i in np.argsort(-np.abs(mask[:, j])):
            if mask[i, j] == 0:
                continue
            c = centres[i, j] * model.input_scale_[i] + model.input_mean_[i]
            words = " or ".join(_words(centres[i, j]))
            width = float(np.mean(lower[i, j]) * model.input_scale_[i])
            conditions.append(
                Antecedent(
                    names[i],
                    words,
                    layer.membership,
                    float(c.mean()),
                    width,
                    float(lower[i, j].min()),
                    float(upper[i, j].max()),
                    float(sign * mask[i, j] / max(size, 1e-300)),
                )
            )
        shares[j] = size * np.abs(head[:, j]).mean()
        found.append((tuple(conditions), tuple((sign * size * head[:, j] * model.output_scale_).tolist())))
    total = max(shares.sum(), 1e-300)
    rules = [
        Rule(j, conditions, consequent, 1.0, float(shares[j] / total), additive=True)
        for j, (conditions, consequent) in enumerate(found)
        if conditions
    ]
    return sorted(rules, key=lambda rule: -rule.share)


def _words(centres: np.ndarray) -> list[str]:
    """low, medium or high for standardised centres, each once."""
    names = ["low" if c < -0.5 else "high" if c > 0.5 else "medium" for c in np.sort(centres)]
    return list(dict.fromkeys(names))


def prune_network(model: Any, threshold: float, relative: bool, X: Any, y: Any) -> None:
    """Set small masks to 0, drop rules without any, and solve the head again where data is given."""
    layer = cast(KANFISLayer, model.network_.layers[0])
    if layer.mask_kind != "linear":
        raise ValueError(f"prune needs mask='linear', got {layer.mask_kind!r}")
    with torch.no_grad():
        size = layer.mask.abs()
        limit = threshold * (size.amax(0, keepdim=True) if relative else 1.0)
        layer.mask.masked_fill_(size < limit, 0.0)
        dead = (layer.mask.abs().sum(0) == 0) | (
            model.network_.final_layer.weight.abs().sum(0) < 1e-12
            if model.n_layers == 1
            else torch.zeros(layer.shape[1], dtype=torch.bool, device=layer.mask.device)
        )
        layer.mask[:, dead] = 0.0
    if X is None:
        rows = np.tile(model.input_mean_, (2, 1))
        weight = np.ones(2)
        if model.exact_rules_:
            base = network_rulebase(model)
            old = model.rulebase_
            model.rulebase_ = replace(base, centre=old.centre, support=old.support, share=old.share)
            model._finish()
            return
    else:
        rows, targets, weight, _ = model._targets(X, y, None, reset=False)
        Z = (rows - model.input_mean_) / model.input_scale_
        if model.type_reduction != "km" and not model._classifier:
            ridge_head(model.network_, Z, (targets - model.output_mean_) / model.output_scale_, weight, False)
            model.network_.eval()
    _adopt(model, rows, weight)
    model._finish()


# --- fine-tuning of terms ------------------------------------------------------------------------------------------


def fine_tune(model: Any, X: np.ndarray, Y: np.ndarray, weight: np.ndarray, codes: np.ndarray | None) -> None:
    """Move centres and widths of Gaussian terms by AdamW, coefficients solved again every epoch (variable projection).

    Kept only where the validation loss falls by ``min_delta``; the closed-form fit stays otherwise.
    """
    base = model.rulebase_
    free = [(i, k) for i, k in base.partition.columns if base.partition.terms[i][k].kind == "gaussian"]
    if not free or len(X) < 5:
        return
    train, held = model._split(len(X), model.validation_fraction, codes)
    if len(held) == 0:
        return
    scale = np.array([np.std(X[:, i]) or 1.0 for i, _ in free])
    centre = torch.tensor([base.partition.terms[i][k].centre for i, k in free], dtype=torch.float64)
    width = torch.tensor([base.partition.terms[i][k].width for i, k in free], dtype=torch.float64)
    unit = torch.from_numpy(scale)
    move = torch.zeros(len(free), dtype=torch.float64, requires_grad=True)
    grow = torch.zeros(len(free), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([move, grow], lr=model.learning_rate or 1e-2, weight_decay=0.0)

    def partition() -> Partition:
        terms = [list(t) for t in base.partition.terms]
        c, s = (centre + move * unit).detach().numpy(), (width * grow.exp()).detach().numpy()
        for n, (i, k) in enumerate(free):
            old = terms[i][k]
            ratio = float(s[n]) / old.width
            both = (None, None) if old.lower is None or old.upper is None else (old.lower * ratio, old.upper * ratio)
            terms[i][k] = replace(
                old, centre=float(c[n]), width=float(s[n]), lower=both[0], upper=both[1], shift=old.shift * ratio
            )
        return replace(base.partition, terms=tuple(map(tuple, terms)))

    def solved(rows: np.ndarray, where: Partition) -> RuleBase:
        empty = replace(base, partition=where)
        fit = model._solve(empty, X[rows], Y[rows], weight[rows], np.flatnonzero(base.coef.any(1)))
        return replace(empty, coef=fit.coef, intercept=fit.intercept)

    def loss(rules: RuleBase, rows: np.ndarray) -> float:
        out = torch.from_numpy(rules.scores(X[rows]))
        soft = model._classifier and rules.link == "softmax"
        return float(task_loss(out, torch.from_numpy(Y[rows]), torch.from_numpy(weight[rows]), soft))

    start = np.concatenate([[0], np.cumsum(base.partition.sizes)])
    column = torch.tensor([int(start[i]) + k for i, k in free])
    feature = torch.tensor([i for i, _ in free])
    clipped = torch.from_numpy(base.partition.clipped(X[train]))
    target, w = torch.from_numpy(Y[train]), torch.from_numpy(weight[train])
    best_loss, best = loss(solved(train, base.partition), held), None
    spread = torch.tensor(
        [
            [(t.lower or t.width) / t.width, (t.upper or t.width) / t.width]
            for t in (base.partition.terms[i][k] for i, k in free)
        ],
        dtype=torch.float64,
    )
    shift = torch.tensor([base.partition.terms[i][k].shift for i, k in free], dtype=torch.float64)
    for _ in range(min(50, model.max_epochs)):
        rules = solved(train, partition())
        soft = model._classifier and rules.link == "softmax"
        phi = torch.from_numpy(rules.partition.basis(X[train]))
        d = clipped[:, feature] - (centre + move * unit)
        s, apart = width * grow.exp(), shift * grow.exp()
        one, two = (torch.exp(-0.5 * ((d + o * apart) / (s * spread[:, e])).square()) for e, o in ((0, -1), (1, 1)))
        mu = torch.where(d.abs() <= apart, 1 + torch.minimum(one, two), one + two) / 2
        phi = phi.index_copy(1, column, mu)
        singles = torch.from_numpy(rules.coef[: phi.shape[1]])
        rest = torch.from_numpy(rules.scores(X[train]) - phi.detach().numpy() @ rules.coef[: phi.shape[1]])
        out = phi @ singles + rest
        optimizer.zero_grad()
        task_loss(out, target, w, soft).backward()
        optimizer.step()
        now = loss(solved(train, partition()), held)
        model.history_.setdefault("fine_tune", []).append(now)
        if math.isfinite(now) and now < best_loss - model.min_delta * max(
            1.0, abs(best_loss) if not model._classifier else 1.0
        ):
            best_loss, best = now, partition()
    if best is not None:
        model._store(solved(np.arange(len(X)), best), X, weight)
