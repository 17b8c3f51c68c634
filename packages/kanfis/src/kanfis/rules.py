"""Rule bases that say what the model computes, and their exchange: text, Markdown, LaTeX, JSON, Python, C, Matlab
.fis, FCL.

A rule base is a *sum*: every rule adds its consequent times its membership. Rules with one antecedent are never
joined by AND; only pair rules, whose membership is a product or minimum, are.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from kanfis.membership import Partition, Term, bell, gaussian, sigmoid, trapezoid
from kanfis.typereduce import interval_hull, karnik_mendel, nie_tan

FORMATS = ("text", "md", "tex", "json", "pmml", "fcl", "fis", "python", "c")


@dataclass(frozen=True)
class Antecedent:
    """One condition of a rule: a feature and one of its terms."""

    feature: str
    label: str
    kind: str
    centre: float
    width: float
    lower: float | None = None
    upper: float | None = None
    mask: float = 1.0
    shift: float = 0.0


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        index: number.
        antecedents: one condition; two for a pair rule.
        consequent: what full membership adds to every output, in the outputs' units (logits for classification).
        support: share of the training rows for which this is the strongest term of its feature(s).
        share: share of the summed absolute contributions.
        additive: True where several conditions are summed (paper structure), so that they must not be read as AND.
    """

    index: int
    antecedents: tuple[Antecedent, ...]
    consequent: tuple[float, ...]
    support: float
    share: float
    additive: bool = False


@dataclass(frozen=True)
class RuleBase:
    """An additive fuzzy model: outputs are intercept + sum of coefficients times memberships.

    Attributes:
        task: ``regression`` or ``classification``.
        features: names.
        partition: terms of every feature.
        antecedents: for every rule its (feature, term) pairs, one or two.
        coef: shape (R, O).
        intercept: shape (O,).
        outputs: names of the outputs.
        classes: labels, for classification.
        link: ``identity``, ``softmax`` or ``argmax`` (one-hot least squares).
        tnorm: ``product`` or ``min``, of pair rules.
        centre: mean membership of every rule over the training data, shape (R,).
        support, share: of every rule, as in ``Rule``.
        levels: words of categorical columns' levels by code, where there are any.
    """

    task: str
    features: tuple[str, ...]
    partition: Partition
    antecedents: tuple[tuple[tuple[int, int], ...], ...]
    coef: np.ndarray
    intercept: np.ndarray
    outputs: tuple[str, ...]
    classes: tuple[Any, ...] | None = None
    link: str = "identity"
    tnorm: str = "product"
    centre: np.ndarray = field(default_factory=lambda: np.zeros(0))
    support: np.ndarray = field(default_factory=lambda: np.zeros(0))
    share: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def _columns(self) -> list[list[int]]:
        start = np.concatenate([[0], np.cumsum(self.partition.sizes)])
        return [[int(start[i]) + k for i, k in pairs] for pairs in self.antecedents]

    def _join(self, terms: np.ndarray) -> np.ndarray:
        columns = self._columns()
        if all(len(c) == 1 for c in columns):
            first = [c[0] for c in columns]
            return terms if first == list(range(terms.shape[1])) else terms[:, first]
        join = np.prod if self.tnorm == "product" else np.min
        return np.stack([terms[:, c[0]] if len(c) == 1 else join(terms[:, c], axis=1) for c in columns], 1)

    def basis(self, X: np.ndarray) -> np.ndarray:
        """Memberships of the rules, (n, R)."""
        return self._join(self.partition.basis(X))

    def bounds(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper memberships of the rules, (n, R) each."""
        lower, upper = self.partition.bounds(X)
        return self._join(lower), self._join(upper)

    def scores(self, X: np.ndarray) -> np.ndarray:
        """Outputs (logits for classification), (n, O), in chunks of 2**22 memberships."""
        rows = max(1, 2**22 // max(1, len(self.antecedents)))
        return np.concatenate(
            [self.basis(X[i : i + rows]) @ self.coef + self.intercept for i in range(0, max(1, len(X)), rows)]
        )

    def hull(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Range of the outputs over all memberships between lower and upper, (n, O) each: ambiguity, not a
        confidence."""
        low, high = interval_hull(*self.bounds(X), self.coef)
        return low + self.intercept, high + self.intercept

    def components(self) -> list[tuple[int, ...]]:
        """Features (and pairs of features) that have rules of their own, features first."""
        found = {tuple(sorted({i for i, _ in pairs})) for pairs in self.antecedents}
        return [(i,) for i in range(len(self.features))] + sorted(c for c in found if len(c) > 1)

    def contributions(self, X: np.ndarray) -> np.ndarray:
        """Centred contribution of every component, (n, components, O); they and ``base`` add up to the scores."""
        terms = self.basis(X) - self.centre
        every = self.components()
        where = {c: n for n, c in enumerate(every)}
        out = np.zeros((len(X), len(every), self.coef.shape[1]))
        groups: dict[int, list[int]] = {}
        for r, pairs in enumerate(self.antecedents):
            groups.setdefault(where[tuple(sorted({i for i, _ in pairs}))], []).append(r)
        for n, rules in groups.items():
            out[:, n] = terms[:, rules] @ self.coef[rules]
        return out

    @property
    def base(self) -> np.ndarray:
        """Mean output over the training data, (O,)."""
        return self.intercept + self.centre @ self.coef

    def rules(self, minimum_share: float = 0.0) -> list[Rule]:
        """Rules whose coefficients are not 0, in order of their share."""
        found = []
        for r, pairs in enumerate(self.antecedents):
            if not self.coef[r].any() or self.share[r] < minimum_share:
                continue
            conditions = tuple(_antecedent(self.features[i], self.partition.terms[i][k]) for i, k in pairs)
            found.append(
                Rule(r, conditions, tuple(map(float, self.coef[r])), float(self.support[r]), float(self.share[r]))
            )
        return sorted(found, key=lambda rule: -rule.share)

    def weighed(self, X: np.ndarray, weight: np.ndarray | None = None) -> RuleBase:
        """The same rules with centre, support and share taken from data."""
        w = np.ones(len(X)) if weight is None else weight
        total, absolute, strongest = np.zeros(len(self.antecedents)), np.zeros(len(self.antecedents)), None
        strongest = np.zeros(len(self.antecedents))
        rows = max(1, 2**22 // max(1, len(self.antecedents)))
        groups: dict[tuple[int, ...], list[int]] = {}
        for r, pairs in enumerate(self.antecedents):
            groups.setdefault(tuple(i for i, _ in pairs), []).append(r)
        centre = np.zeros(len(self.antecedents))
        for i in range(0, len(X), rows):
            centre += w[i : i + rows] @ self.basis(X[i : i + rows])
        centre /= w.sum()
        for i in range(0, len(X), rows):
            phi, part = self.basis(X[i : i + rows]), w[i : i + rows]
            total += part @ phi
            absolute += part @ np.abs(phi - centre)
            for members in groups.values():
                block = phi[:, members]
                best = block.argmax(1)
                hit = block.max(1) > 0
                strongest += np.bincount(np.array(members)[best[hit]], part[hit], minlength=len(strongest))
        size = absolute / w.sum() * np.abs(self.coef).mean(1)
        return replace(
            self, centre=centre, support=strongest / w.sum(), share=size / size.sum() if size.sum() > 0 else size
        )

    # --- exchange ---

    def to_dict(self) -> dict[str, Any]:
        """Plain values that ``from_dict`` turns into the same rule base, exactly."""
        return {
            "format": "kanfis-rules",
            "version": 1,
            "task": self.task,
            "link": self.link,
            "tnorm": self.tnorm,
            "outputs": list(self.outputs),
            "classes": None if self.classes is None else [c.item() if hasattr(c, "item") else c for c in self.classes],
            "intercept": self.intercept.tolist(),
            "features": [
                {
                    "name": name,
                    "low": _finite(float(low)),
                    "high": _finite(float(high)),
                    "terms": [{k: _finite(v) for k, v in asdict(t).items()} for t in terms],
                }
                for name, terms, low, high in zip(
                    self.features, self.partition.terms, self.partition.low, self.partition.high, strict=True
                )
            ],
            "rules": [
                {
                    "if": [{"feature": self.features[i], "term": k} for i, k in pairs],
                    "then": self.coef[r].tolist(),
                    "centre": float(self.centre[r]),
                    "support": float(self.support[r]),
                    "share": float(self.share[r]),
                }
                for r, pairs in enumerate(self.antecedents)
            ],
        }

    @classmethod
    def from_dict(cls, content: Any) -> RuleBase:
        """A rule base from plain values, edited or not.

        Raises:
            ValueError: naming the feature or rule that does not fit.
        """
        if not isinstance(content, dict) or content.get("format") != "kanfis-rules":
            raise ValueError("expected the JSON of a rule base, with format 'kanfis-rules'")
        for name in ("task", "outputs", "intercept", "features", "rules"):
            if name not in content:
                raise ValueError(f"expected the key {name!r} in a rule base, found {', '.join(content)}")
        names, terms, low, high = [], [], [], []
        for number, one in enumerate(content["features"]):
            try:
                names.append(str(one["name"]))
                terms.append(tuple(_term(t) for t in one["terms"]))
            except (KeyError, TypeError) as error:
                raise ValueError(f"feature {number}: {error}") from None
            low.append(-np.inf if one.get("low") is None else float(one["low"]))
            high.append(np.inf if one.get("high") is None else float(one["high"]))
        outputs = tuple(map(str, content["outputs"]))
        antecedents, coef, extra = [], [], []
        for number, rule in enumerate(content["rules"]):
            pairs = []
            for condition in rule.get("if", []):
                if condition.get("feature") not in names:
                    raise ValueError(f"rule {number}: no feature {condition.get('feature')!r}")
                i, k = names.index(condition["feature"]), condition.get("term")
                if not isinstance(k, int) or not 0 <= k < len(terms[i]):
                    raise ValueError(f"rule {number}: {names[i]} has terms 0 to {len(terms[i]) - 1}, got {k!r}")
                pairs.append((i, k))
            if len(pairs) not in (1, 2):
                raise ValueError(f"rule {number}: expected one or two conditions, got {len(pairs)}")
            then = rule.get("then")
            if not isinstance(then, list) or len(then) != len(outputs):
                raise ValueError(f"rule {number}: expected {len(outputs)} numbers in 'then', got {then!r}")
            values = [float(v) for v in then]
            if not all(map(math.isfinite, values)):
                raise ValueError(f"rule {number}: expected finite numbers in 'then', got {then!r}")
            antecedents.append(tuple(pairs))
            coef.append(values)
            extra.append([float(rule.get(k, 0.0)) for k in ("centre", "support", "share")])
        table = np.array(extra).reshape(-1, 3)
        classes = content.get("classes")
        return cls(
            task=str(content["task"]),
            features=tuple(names),
            partition=Partition(tuple(terms), np.array(low), np.array(high)),
            antecedents=tuple(antecedents),
            coef=np.array(coef, dtype=float).reshape(-1, len(outputs)),
            intercept=np.array(content["intercept"], dtype=float),
            outputs=outputs,
            classes=None if classes is None else tuple(classes),
            link=str(content.get("link", "identity")),
            tnorm=str(content.get("tnorm", "product")),
            centre=table[:, 0],
            support=table[:, 1],
            share=table[:, 2],
        )


def _term(values: dict[str, Any]) -> Term:
    """A term from plain values; a centre of null is that of a ``missing`` term."""
    given: dict[str, Any] = {k: float("nan") if v is None and k == "centre" else v for k, v in values.items()}
    return Term(**given)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _antecedent(feature: str, term: Term, mask: float = 1.0) -> Antecedent:
    return Antecedent(feature, term.label, term.kind, term.centre, term.width, term.lower, term.upper, mask, term.shift)


# --- words ---------------------------------------------------------------------------------------------------------


def condition_text(one: Antecedent) -> str:
    """``bmi is high (≈0.06)``."""
    if one.kind == "missing":
        return f"{one.feature} is missing"
    if one.kind == "singleton" or one.label.startswith("about "):
        return f"{one.feature} is {one.label}"
    return f"{one.feature} is {one.label} (≈{one.centre:.3g})"


def _effect(value: float, name: str) -> str:
    return f"{name} {value:+.3g}"


def rule_text(rule: Rule, outputs: Sequence[str], number: int | None = None) -> str:
    """One line that says what the rule adds."""
    index = rule.index if number is None else number
    if rule.additive:
        parts = " + ".join(f"{a.mask:.2f}·[{a.feature} is {a.label}]" for a in rule.antecedents)
        effects = ", ".join(
            _effect(v, n) if len(outputs) > 1 else f"{v:+.3g}" for v, n in zip(rule.consequent, outputs, strict=True)
        )
        return f"Rule {index}: {parts} → {effects}  [ADDS; share {rule.share:.0%}]"
    conditions = " AND ".join(condition_text(a) for a in rule.antecedents)
    effects = ", ".join(_effect(v, n) for v, n in zip(rule.consequent, outputs, strict=True))
    return f"IF {conditions} THEN {effects}  [support {rule.support:.0%}, share {rule.share:.0%}]"


def report(base: RuleBase, rules: Sequence[Rule] | None = None, top: int | None = None, style: str = "text") -> str:
    """All rules in words, as text, Markdown or LaTeX."""
    chosen = list(base.rules() if rules is None else rules)[:top]
    unit = "log-odds" if base.link == "softmax" else ("score" if base.task == "classification" else "")
    start = ", ".join(f"{n} {v:.4g}" for n, v in zip(base.outputs, base.base, strict=True))
    head = (
        f"Average: {start}{f' ({unit})' if unit else ''}. Every rule adds its effect times how true its condition is."
    )
    if style == "md":
        rows = ["| if | " + " | ".join(f"adds to {n}" for n in base.outputs) + " | support | share |"]
        rows.append("| --- |" + " ---: |" * (len(base.outputs) + 2))
        for rule in chosen:
            cells = " | ".join(f"{v:+.3g}" for v in rule.consequent)
            rows.append(f"| {_conditions(rule)} | {cells} | {rule.support:.0%} | {rule.share:.0%} |")
        return f"{head}\n\n" + "\n".join(rows) + "\n"
    if style == "tex":
        columns = "l" + "r" * (len(base.outputs) + 2)
        lines = [
            f"\\begin{{tabular}}{{{columns}}}",
            " & ".join(["if", *map(_tex, base.outputs), "support", "share"]) + r" \\",
            r"\hline",
        ]
        for rule in chosen:
            cells = [
                _tex(_conditions(rule)),
                *(f"${v:+.3g}$" for v in rule.consequent),
                f"{100 * rule.support:.0f}\\%",
                f"{100 * rule.share:.0f}\\%",
            ]
            lines.append(" & ".join(cells) + r" \\")
        return "\n".join([*lines, r"\end{tabular}"]) + "\n"
    return "\n".join([head, *(rule_text(r, base.outputs) for r in chosen)]) + "\n"


def _conditions(rule: Rule) -> str:
    if rule.additive:
        return " + ".join(f"{a.mask:.2f}·[{a.feature} is {a.label}]" for a in rule.antecedents)
    return " AND ".join(condition_text(a) for a in rule.antecedents)


def _tex(text: str) -> str:
    return (
        re.sub(r"([&%$#_{}])", r"\\\1", text).replace("≈", r"$\approx$").replace("→", r"$\to$").replace("·", r"$\cdot$")
    )


def interpretability(base: RuleBase, X: np.ndarray | None = None) -> dict[str, float]:
    """Numbers of how readable a rule base is.

    ``rules``; ``antecedents`` (mean a rule); ``length`` (all antecedents); ``nauck`` (classes / antecedents times
    coverage times
    mean normalised partition, after Nauck 2003); ``overlap`` (mean Jaccard overlap of neighbouring terms);
    ``distinguishability`` (1 - largest overlap); ``coverage`` (share of values with a membership of at least 0.5,
    with X).
    """
    used = [pairs for pairs, c in zip(base.antecedents, base.coef, strict=True) if c.any()]
    length = sum(len(p) for p in used)
    overlaps, sizes = [], []
    for terms, low, high in zip(base.partition.terms, base.partition.low, base.partition.high, strict=True):
        ordered = [t for t in terms if t.kind not in ("singleton", "missing")]
        sizes.append(max(1, len(terms)))
        if len(ordered) < 2:
            continue
        span = ordered[-1].centre - ordered[0].centre
        grid = np.linspace(max(low, ordered[0].centre - span / 2), min(high, ordered[-1].centre + span / 2), 201)
        for a, b in itertools.pairwise(ordered):
            x, y = a(grid), b(grid)
            overlaps.append(float(np.minimum(x, y).sum() / max(np.maximum(x, y).sum(), 1e-300)))
    coverage = 1.0
    if X is not None:
        strongest = []
        mu, start = base.partition.basis(X), 0
        for size in base.partition.sizes:
            strongest.append(mu[:, start : start + size].max(1))
            start += size
        coverage = float((np.stack(strongest) >= 0.5).mean())
    outputs = max(1, len(base.outputs))
    return {
        "rules": len(used),
        "antecedents": length / max(1, len(used)),
        "length": length,
        "nauck": outputs / max(1, length) * coverage * float(np.mean([1 / max(1, s - 1) for s in sizes])),
        "overlap": float(np.mean(overlaps)) if overlaps else 0.0,
        "distinguishability": 1 - max(overlaps, default=0.0),
        "coverage": coverage,
    }


# --- code ----------------------------------------------------------------------------------------------------------


def _identifier(text: str) -> str:
    found = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "x"
    return found if not found[0].isdigit() else f"x_{found}"


def _expression(term: Term, x: str, c: bool) -> str:
    """Membership of a term as an expression of C or Python."""
    exp, absolute, power, tanh, largest, smallest = (
        ("exp", "fabs", "pow", "tanh", "fmax", "fmin") if c else ("math.exp", "abs", "pow", "math.tanh", "max", "min")
    )

    def at(width: float, centre: float = term.centre) -> str:
        d = f"(({x} - ({centre!r})) / {width!r})"
        if term.kind == "gaussian":
            return f"{exp}(-0.5 * {d} * {d})"
        if term.kind == "triangle":
            return f"{largest}(0.0, 1.0 - {absolute}({d}))"
        if term.kind == "bell":
            return f"(1.0 / (1.0 + {power}({absolute}({d}), {2 * term.power!r})))"
        if term.kind == "sigmoid":
            return f"(0.5 * (1.0 + {tanh}(0.5 * {width!r} * ({x} - ({centre!r})))))"
        half = 0.5 * width
        rise, fall = (
            f"(({x} - ({centre - width!r})) / {half!r})",
            f"((({centre + width!r}) - {x}) / {half!r})",
        )
        return f"{largest}(0.0, {smallest}(1.0, {smallest}({rise}, {fall})))"

    missing = f"isnan({x})" if c else f"math.isnan({x})"
    if term.kind == "missing":
        return f"({missing} ? 1.0 : 0.0)" if c else f"(1.0 if {missing} else 0.0)"
    if term.kind == "singleton":
        return f"({x} == {term.centre!r} ? 1.0 : 0.0)" if c else f"(1.0 if {x} == {term.centre!r} else 0.0)"
    if term.shift > 0:
        one, two = at(term.width, term.centre - term.shift), at(term.width, term.centre + term.shift)
        value = f"(0.5 * ({one} + {two}))"
        if term.kind != "sigmoid":
            inside = f"{absolute}({x} - ({term.centre!r})) <= {term.shift!r}"
            plateau = f"(0.5 * (1.0 + {smallest}({one}, {two})))"
            value = f"({inside} ? {plateau} : {value})" if c else f"({plateau} if {inside} else {value})"
    elif term.lower is None or term.upper is None:
        value = at(term.width)
    else:
        value = f"(0.5 * ({at(term.lower)} + {at(term.upper)}))"
    return f"({missing} ? 0.0 : {value})" if c else f"(0.0 if {missing} else {value})"


def to_code(base: RuleBase, language: str) -> str:
    """A standalone function that computes the outputs: Python or C99.

    C: ``void kanfis_predict(const double *x, double *out)``; Python: ``predict(x) -> list``. Inputs in the order of
    the features (codes for categorical ones), outputs as ``RuleBase.scores``: log-odds for classification.
    """
    c = language == "c"
    if language not in ("c", "python"):
        raise ValueError(f"expected a language of c or python, got {language!r}")
    end = ";" if c else ""
    lines = []
    start = np.concatenate([[0], np.cumsum(base.partition.sizes)])
    used = {
        int(start[i]) + k for pairs, w in zip(base.antecedents, base.coef, strict=True) if w.any() for i, k in pairs
    }
    for i, (low, high) in enumerate(zip(base.partition.low, base.partition.high, strict=True)):
        if not any(int(start[i]) <= u < int(start[i + 1]) for u in used):
            continue
        lines.append(
            f"{'double ' if c else ''}v{i} = x[{i}]{end}"
            + (f"  /* {_identifier(base.features[i])} */" if c else f"  # {_identifier(base.features[i])}")
        )
        if np.isfinite(low):
            if c:
                lines.append(f"if (v{i} < {float(low)!r}) v{i} = {float(low)!r};")
                lines.append(f"if (v{i} > {float(high)!r}) v{i} = {float(high)!r};")
            else:
                lines.append(f"v{i} = v{i} if math.isnan(v{i}) else min(max(v{i}, {float(low)!r}), {float(high)!r})")
    for m, (i, k) in enumerate(base.partition.columns):
        if m in used:
            lines.append(f"{'double ' if c else ''}m{m} = {_expression(base.partition.terms[i][k], f'v{i}', c)}{end}")
    smallest = "fmin" if c else "min"
    sums = []
    for o in range(len(base.outputs)):
        parts = [repr(float(base.intercept[o]))]
        for columns, w in zip(base._columns(), base.coef, strict=True):
            if w[o]:
                names = [f"m{m}" for m in columns]
                joined = (
                    names[0]
                    if len(names) == 1
                    else (" * ".join(names) if base.tnorm == "product" else f"{smallest}({', '.join(names)})")
                )
                parts.append(f"({float(w[o])!r}) * {joined}")
        sums.append("\n        + ".join(parts))
    if c:
        body = "\n    ".join([*lines, *(f"out[{o}] = {s};" for o, s in enumerate(sums))])
        names = ", ".join(_identifier(n) for n in base.outputs)
        head = f"#include <math.h>\n\n/* outputs: {names} */\nvoid kanfis_predict(const double *x, double *out)"
        return f"{head} {{\n    {body}\n}}\n"
    body = "\n    ".join(lines)
    result = ",\n        ".join(f"({s})" for s in sums)
    return f"import math\n\n\ndef predict(x):\n    {body}\n    return [\n        {result},\n    ]\n"


# --- Sugeno systems ------------------------------------------------------------------------------------------------

_FIS_KINDS: dict[str, Callable[..., np.ndarray]] = {
    "gaussmf": lambda x, s, c: gaussian(x, c, s),
    "gbellmf": lambda x, s, b, c: bell(x, c, s, b),
    "sigmf": lambda x, a, c: sigmoid(x, c, a),
    "trimf": lambda x, a, b, c: trapezoid(x, a, b, b, c),
    "trapmf": lambda x, a, b, c, d: trapezoid(x, a, b, c, d),
}


@dataclass(frozen=True)
class FuzzySet:
    """A membership function of a Sugeno system in Matlab's parameters; ``lower`` holds those of a Type-2 lower
    function."""

    name: str
    kind: str
    params: tuple[float, ...]
    lower: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in _FIS_KINDS:
            raise ValueError(f"expected a membership of {', '.join(_FIS_KINDS)}, got {self.kind!r}")

    def bounds(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper membership."""
        upper = _FIS_KINDS[self.kind](x, *self.params)
        if self.lower is None:
            return upper, upper
        lower = _FIS_KINDS[self.kind](x, *self.lower)
        return np.minimum(lower, upper), np.maximum(lower, upper)


@dataclass(frozen=True)
class SugenoRule:
    """Terms of the inputs (0: none, negative: NOT), the output's consequent of every output, weight, AND or OR."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    weight: float = 1.0
    conjunction: bool = True


@dataclass(frozen=True)
class SugenoSystem:
    """A Sugeno (TSK) system, Type-1 or interval Type-2, as Matlab's Fuzzy Logic Toolbox stores it.

    Attributes:
        name: of the system.
        inputs: (name, range, sets) of every input.
        outputs: (name, range, consequents); a consequent holds one number (constant) or D + 1 (linear, constant last).
        rules: as ``SugenoRule``.
        and_method, or_method: ``prod`` or ``min``; ``probor`` or ``max``.
        defuzzification: ``wtaver`` (weighted average) or ``wtsum`` (weighted sum).
    """

    name: str
    inputs: tuple[tuple[str, tuple[float, float], tuple[FuzzySet, ...]], ...]
    outputs: tuple[tuple[str, tuple[float, float], tuple[tuple[float, ...], ...]], ...]
    rules: tuple[SugenoRule, ...]
    and_method: str = "prod"
    or_method: str = "probor"
    defuzzification: str = "wtaver"

    @property
    def type2(self) -> bool:
        """Whether any membership is Type-2."""
        return any(s.lower is not None for _, _, sets in self.inputs for s in sets)

    def firing(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper firing of every rule, (n, R) each."""
        X = np.asarray(X, dtype=float)
        if X.ndim != 2 or X.shape[1] != len(self.inputs):
            raise ValueError(f"expected inputs of shape (n, {len(self.inputs)}), got {X.shape}")
        sets = [[s.bounds(X[:, i]) for s in members] for i, (_, _, members) in enumerate(self.inputs)]
        ends = []
        for end in (0, 1):
            columns = []
            for rule in self.rules:
                parts = []
                for i, term in enumerate(rule.inputs):
                    if term > 0:
                        parts.append(sets[i][term - 1][end])
                    elif term < 0:
                        parts.append(1 - sets[i][-term - 1][1 - end])
                columns.append(rule.weight * self._combine(parts, rule.conjunction, len(X)))
            ends.append(np.stack(columns, 1))
        return ends[0], ends[1]

    def _combine(self, parts: list[np.ndarray], conjunction: bool, n: int) -> np.ndarray:
        if not parts:
            return np.ones(n)
        table = np.stack(parts)
        if conjunction:
            return table.prod(0) if self.and_method == "prod" else table.min(0)
        return table.max(0) if self.or_method == "max" else 1 - (1 - table).prod(0)

    def consequents(self, X: np.ndarray, output: int) -> np.ndarray:
        """Consequents of every rule, (n, R), or (R,) where all are constant."""
        found = [self.outputs[output][2][abs(rule.outputs[output]) - 1] for rule in self.rules]
        if all(len(c) == 1 for c in found):
            return np.array([c[0] for c in found])
        D = X.shape[1]
        table = np.array([c if len(c) == D + 1 else (0.0,) * D + (c[-1],) for c in found])
        return X @ table[:, :-1].T + table[:, -1]

    def evaluate(self, X: np.ndarray, type_reduction: str = "km") -> np.ndarray:
        """Outputs, (n, O): weighted average or sum; Type-2 by ``km`` (middle of the Karnik-Mendel interval) or
        ``nie_tan``."""
        X = np.asarray(X, dtype=float)
        if type_reduction not in ("km", "nie_tan"):
            raise ValueError(f"expected a type reduction of km or nie_tan, got {type_reduction!r}")
        lower, upper = self.firing(X)
        out = []
        for o in range(len(self.outputs)):
            c = self.consequents(X, o)
            if self.defuzzification == "wtsum":
                out.append(((lower + upper) / 2 * c).sum(1))
            elif type_reduction == "nie_tan" or not self.type2:
                out.append(nie_tan(c, lower, upper))
            else:
                left, right = karnik_mendel(c, lower, upper)
                out.append((left + right) / 2)
        return np.stack(out, 1)


def to_sugeno(base: RuleBase) -> SugenoSystem:
    """The rule base as a Sugeno system with a weighted *sum*, which computes the same outputs within the training
    range.

    The intercept becomes a rule whose term is always true. Singletons become trapezoids of no width around their level.

    Raises:
        ValueError: if a term is ``missing``, which Sugeno systems do not know.
    """
    inputs = []
    for i, (name, terms) in enumerate(zip(base.features, base.partition.terms, strict=True)):
        sets = []
        for t in terms:
            if t.kind == "missing":
                raise ValueError(f"{name}: a Sugeno system has no term for missing values")
            sets.append(_fuzzy_set(t))
        low, high = float(base.partition.low[i]), float(base.partition.high[i])
        if not math.isfinite(low):
            centres = [t.centre for t in terms] or [0.0]
            low, high = min(centres), max(centres)
        if i == 0:
            sets.append(FuzzySet("any", "trapmf", (-1e30, -1e30, 1e30, 1e30)))
        inputs.append((name, (low, high), tuple(sets)))
    D, always = len(base.features), len(base.partition.terms[0]) + 1
    rules = []
    for r, pairs in enumerate(base.antecedents):
        terms = [0] * D
        for i, k in pairs:
            terms[i] = k + 1
        rules.append(SugenoRule(tuple(terms), (r + 1,) * len(base.outputs)))
    rules.append(SugenoRule((always, *[0] * (D - 1)), (len(rules) + 1,) * len(base.outputs)))
    outputs = tuple(
        (name, (float(min(0, c.min(initial=0))), float(max(1, c.max(initial=1)))), tuple((float(v),) for v in [*c, b]))
        for name, c, b in zip(base.outputs, base.coef.T, base.intercept, strict=True)
    )
    method = "prod" if base.tnorm == "product" else "min"
    return SugenoSystem("kanfis", tuple(inputs), outputs, tuple(rules), method, "probor", "wtsum")


def _fuzzy_set(term: Term) -> FuzzySet:
    c = term.centre
    if term.kind == "singleton":
        return FuzzySet(term.label, "trapmf", (c, c, c, c))

    def params(width: float) -> tuple[str, tuple[float, ...]]:
        if term.kind == "gaussian":
            return "gaussmf", (width, c)
        if term.kind == "triangle":
            return "trimf", (c - width, c, c + width)
        if term.kind == "bell":
            return "gbellmf", (width, term.power, c)
        if term.kind == "sigmoid":
            return "sigmf", (width, c)
        return "trapmf", (c - width, c - width / 2, c + width / 2, c + width)

    if term.shift > 0:
        raise ValueError(
            f"term {term.label!r} is Type-2 of uncertain mean, which .fis and FCL do not know; "
            "fit fuzzy_type='t1' or 'it2', or export C, Python or JSON"
        )
    if term.lower is None or term.upper is None:
        return FuzzySet(term.label, *params(term.width))
    kind, upper = params(term.upper)
    return FuzzySet(term.label, kind, upper, params(term.lower)[1])


def _numbers(values: Sequence[float]) -> str:
    return "[" + " ".join(repr(float(v)) for v in values) + "]"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "") + "'"


def write_fis(system: SugenoSystem) -> str:
    """Matlab's .fis text. A Type-2 membership is written as two lines, ``MFnU`` and ``MFnL``."""
    lines = [
        "[System]", f"Name={_quoted(system.name)}", f"Type='sugeno{'type2' if system.type2 else ''}'", "Version=2.0",
        f"NumInputs={len(system.inputs)}", f"NumOutputs={len(system.outputs)}", f"NumRules={len(system.rules)}",
        f"AndMethod='{system.and_method}'", f"OrMethod='{system.or_method}'", "ImpMethod='prod'", "AggMethod='sum'",
        f"DefuzzMethod='{system.defuzzification}'", "",
    ]  # fmt: skip
    for i, (name, span, sets) in enumerate(system.inputs, 1):
        lines += [f"[Input{i}]", f"Name={_quoted(name)}", f"Range={_numbers(span)}", f"NumMFs={len(sets)}"]
        for k, s in enumerate(sets, 1):
            if s.lower is None:
                lines.append(f"MF{k}={_quoted(s.name)}:'{s.kind}',{_numbers(s.params)}")
            else:
                lines.append(f"MF{k}U={_quoted(s.name)}:'{s.kind}',{_numbers(s.params)}")
                lines.append(f"MF{k}L={_quoted(s.name)}:'{s.kind}',{_numbers(s.lower)}")
        lines.append("")
    for o, (name, span, consequents) in enumerate(system.outputs, 1):
        lines += [f"[Output{o}]", f"Name={_quoted(name)}", f"Range={_numbers(span)}", f"NumMFs={len(consequents)}"]
        for k, c in enumerate(consequents, 1):
            lines.append(f"MF{k}='mf{k}':'{'constant' if len(c) == 1 else 'linear'}',{_numbers(c)}")
        lines.append("")
    lines.append("[Rules]")
    for rule in system.rules:
        terms, outs = " ".join(map(str, rule.inputs)), " ".join(map(str, rule.outputs))
        lines.append(f"{terms}, {outs} ({rule.weight!r}) : {1 if rule.conjunction else 2}")
    return "\n".join(lines) + "\n"


def read_fis(text: str) -> SugenoSystem:
    """A Sugeno system from Matlab's .fis text.

    Raises:
        ValueError: naming the line that is not understood, or that the system is not of Sugeno's kind.
    """
    section, values, order = "", {}, []
    rules: list[tuple[int, str]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("%"):
            continue
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
            order.append(section)
            values[section] = {}
        elif section == "Rules":
            rules.append((number, line))
        elif "=" in line and section:
            key, value = line.split("=", 1)
            values[section][key.strip()] = (number, value.strip())
        else:
            raise ValueError(f"line {number}: not understood: {line[:60]!r}")
    system = values.get("System")
    if system is None:
        raise ValueError("expected a section [System], found none")
    kind = _text(system.get("Type", (0, "''"))[1])
    if not kind.startswith("sugeno"):
        raise ValueError(f"expected a Sugeno system, got type {kind!r}")
    inputs = tuple(_fis_input(values[s]) for s in order if s.startswith("Input"))
    outputs = tuple(_fis_output(values[s], len(inputs)) for s in order if s.startswith("Output"))
    found = []
    for number, line in rules:
        match = re.fullmatch(r"([-\d\s]+),\s*([-\d\s]+)\(\s*([-\d.eE+]+)\s*\)\s*:\s*([12])", line)
        if match is None:
            raise ValueError(f"line {number}: not a rule: {line[:60]!r}")
        ins, outs = tuple(map(int, match[1].split())), tuple(map(int, match[2].split()))
        if len(ins) != len(inputs) or len(outs) != len(outputs):
            raise ValueError(
                f"line {number}: expected {len(inputs)} inputs and {len(outputs)} outputs, got {len(ins)} and "
                f"{len(outs)}"
            )
        for i, t in enumerate(ins):
            if abs(t) > len(inputs[i][2]):
                raise ValueError(f"line {number}: input {i + 1} has {len(inputs[i][2])} terms, got {t}")
        for o, t in enumerate(outs):
            if not 1 <= abs(t) <= len(outputs[o][2]):
                raise ValueError(f"line {number}: output {o + 1} has {len(outputs[o][2])} consequents, got {t}")
        found.append(SugenoRule(ins, outs, float(match[3]), match[4] == "1"))
    return SugenoSystem(
        _text(system.get("Name", (0, "''"))[1]),
        inputs,
        outputs,
        tuple(found),
        _text(system.get("AndMethod", (0, "'prod'"))[1]),
        _text(system.get("OrMethod", (0, "'probor'"))[1]),
        _text(system.get("DefuzzMethod", (0, "'wtaver'"))[1]),
    )


def _text(value: str) -> str:
    return value.strip().strip("'\"")


def _vector(value: str, number: int) -> tuple[float, ...]:
    match = re.search(r"\[([^\]]*)\]", value)
    try:
        if match is None:
            raise ValueError
        return tuple(float(x) for x in match[1].replace(",", " ").split())
    except ValueError:
        raise ValueError(f"line {number}: expected numbers in brackets, got {value[:60]!r}") from None


def _fis_sets(section: dict[str, tuple[int, str]]) -> list[tuple[str, str, str, tuple[float, ...], int]]:
    found = []
    for key, (number, value) in section.items():
        if match := re.fullmatch(r"MF(\d+)([UL]?)", key):
            parts = re.match(r"'([^']*)'\s*:\s*'([^']*)'\s*,", value)
            if parts is None:
                raise ValueError(f"line {number}: not a membership function: {value[:60]!r}")
            found.append((f"{int(match[1]):09d}{match[2]}", parts[1], parts[2], _vector(value, number), number))
    return sorted(found)


def _fis_input(section: dict[str, tuple[int, str]]) -> tuple[str, tuple[float, float], tuple[FuzzySet, ...]]:
    lower = {key[:9]: params for key, _, _, params, _ in _fis_sets(section) if key.endswith("L")}
    sets = []
    for key, name, kind, params, number in _fis_sets(section):
        if not key.endswith("L"):
            try:
                sets.append(FuzzySet(name, kind, params, lower.get(key[:9])))
                sets[-1].bounds(np.zeros(1))
            except (ValueError, TypeError) as error:
                raise ValueError(f"line {number}: {error}") from None
    span = _vector(section["Range"][1], section["Range"][0]) if "Range" in section else (0.0, 1.0)
    return _text(section.get("Name", (0, "'input'"))[1]), (span[0], span[1]), tuple(sets)


def _fis_output(
    section: dict[str, tuple[int, str]], D: int
) -> tuple[str, tuple[float, float], tuple[tuple[float, ...], ...]]:
    consequents = []
    for _, _, kind, params, number in _fis_sets(section):
        wanted = {"constant": 1, "linear": D + 1}.get(kind)
        if wanted is None or len(params) != wanted:
            raise ValueError(
                f"line {number}: expected a constant or {D + 1} linear coefficients, got {kind} with {len(params)}"
            )
        consequents.append(params)
    span = _vector(section["Range"][1], section["Range"][0]) if "Range" in section else (0.0, 1.0)
    return _text(section.get("Name", (0, "'output'"))[1]), (span[0], span[1]), tuple(consequents)


_FCL_KINDS = {"gaussmf": "GAUSS", "gbellmf": "GBELL", "sigmf": "SIGM", "trimf": "TRIAN", "trapmf": "TRAPE"}


def write_fcl(system: SugenoSystem) -> str:
    """IEC 61131-7 text with jFuzzyLogic's functions (GAUSS mean sigma, TRIAN, TRAPE, GBELL, SIGM).

    FCL knows weighted averages only. A system that sums is marked so in a comment and in ``METHOD : SUM``, an
    extension that ``read_fcl`` understands.
    """
    if system.type2:
        raise ValueError("FCL has no Type-2 sets: export a Type-1 model, or .fis, C or Python")
    names = [_identifier(n) for n, _, _ in system.inputs]
    lines = [
        f"FUNCTION_BLOCK {_identifier(system.name)}",
        "VAR_INPUT",
        *(f"    {n} : REAL;" for n in names),
        "END_VAR",
        "VAR_OUTPUT",
    ]
    lines += [*(f"    {_identifier(n)} : REAL;" for n, _, _ in system.outputs), "END_VAR"]
    words = []
    for name, (_, _, sets) in zip(names, system.inputs, strict=True):
        unique = [f"{_identifier(s.name)}_{k}" for k, s in enumerate(sets)]
        words.append(unique)
        lines.append(f"FUZZIFY {name}")
        for word, s in zip(unique, sets, strict=True):
            p = s.params
            shown = (p[1], p[0]) if s.kind == "gaussmf" else p
            lines.append(f"    TERM {word} := {_FCL_KINDS[s.kind]} {' '.join(repr(float(v)) for v in shown)};")
        lines.append("END_FUZZIFY")
    for name, _, consequents in system.outputs:
        lines.append(f"DEFUZZIFY {_identifier(name)}")
        for k, c in enumerate(consequents, 1):
            if len(c) != 1:
                raise ValueError("FCL has constant consequents only")
            lines.append(f"    TERM c{k} := {c[0]!r};")
        method = "SUM" if system.defuzzification == "wtsum" else "COGS"
        lines += [
            f"    METHOD : {method};"
            + (" (* every rule adds consequent times membership *)" if method == "SUM" else ""),
            "END_DEFUZZIFY",
        ]
    lines += ["RULEBLOCK rules", f"    AND : {'PROD' if system.and_method == 'prod' else 'MIN'};"]
    for r, rule in enumerate(system.rules, 1):
        joined = " AND " if rule.conjunction else " OR "
        parts = [
            f"{names[i]} IS {'NOT ' if t < 0 else ''}{words[i][abs(t) - 1]}" for i, t in enumerate(rule.inputs) if t
        ]
        then = ", ".join(f"{_identifier(n)} IS c{k}" for (n, _, _), k in zip(system.outputs, rule.outputs, strict=True))
        weight = "" if rule.weight == 1 else f" WITH {rule.weight!r}"
        lines.append(f"    RULE {r} : IF {joined.join(parts)} THEN {then}{weight};")
    return "\n".join([*lines, "END_RULEBLOCK", "END_FUNCTION_BLOCK"]) + "\n"


def read_fcl(text: str) -> SugenoSystem:
    """A Sugeno system from FCL text with constant consequents.

    Raises:
        ValueError: naming what is not understood.
    """
    text = re.sub(r"\(\*.*?\*\)|//[^\n]*", " ", text, flags=re.DOTALL)
    name = re.search(r"FUNCTION_BLOCK\s+(\w+)", text)
    kinds = {v: k for k, v in _FCL_KINDS.items()}
    inputs, terms = [], {}
    for match in re.finditer(r"FUZZIFY\s+(\w+)(.*?)END_FUZZIFY", text, re.DOTALL):
        if text[: match.start()].rstrip().endswith("DE"):
            continue
        sets = []
        for word, body in re.findall(r"TERM\s+(\w+)\s*:=\s*([^;]*);", match[2]):
            points = re.findall(r"\(\s*([-\d.eE+]+)\s*,\s*([-\d.eE+]+)\s*\)", body)
            if points:
                sets.append(_fcl_points(word, [(float(a), float(b)) for a, b in points]))
                continue
            kind, *numbers = body.split()
            if kind.upper() not in kinds:
                raise ValueError(f"term {word}: expected {', '.join(kinds)} or points, got {kind!r}")
            p = tuple(map(float, numbers))
            sets.append(FuzzySet(word, kinds[kind.upper()], (p[1], p[0]) if kind.upper() == "GAUSS" else p))
        terms[match[1]] = [s.name for s in sets]
        inputs.append((match[1], (0.0, 1.0), tuple(sets)))
    outputs, words, method = [], {}, "COGS"
    for match in re.finditer(r"DEFUZZIFY\s+(\w+)(.*?)END_DEFUZZIFY", text, re.DOTALL):
        found = re.findall(r"TERM\s+(\w+)\s*:=\s*([-\d.eE+]+)\s*;", match[2])
        words[match[1]] = [w for w, _ in found]
        outputs.append((match[1], (0.0, 1.0), tuple((float(v),) for _, v in found)))
        if m := re.search(r"METHOD\s*:\s*(\w+)", match[2]):
            method = m[1].upper()
    if not inputs or not outputs:
        raise ValueError("expected FUZZIFY and DEFUZZIFY blocks, found none")
    if method not in ("COGS", "SUM"):
        raise ValueError(f"expected METHOD COGS or SUM, got {method}")
    rules = []
    for number, condition, then in re.findall(r"RULE\s+(\w+)\s*:\s*IF\s+(.*?)\s+THEN\s+(.*?);", text, re.DOTALL):
        weight = re.search(r"WITH\s+([-\d.eE+]+)", then)
        ins, outs = [0] * len(inputs), [1] * len(outputs)
        names = [n for n, _, _ in inputs]
        for variable, negated, word in re.findall(r"(\w+)\s+IS\s+(NOT\s+)?(\w+)", condition):
            if variable not in terms or word not in terms[variable]:
                raise ValueError(f"rule {number}: no term {word} of {variable}")
            ins[names.index(variable)] = (terms[variable].index(word) + 1) * (-1 if negated else 1)
        for variable, word in re.findall(r"(\w+)\s+IS\s+(\w+)", then):
            if variable not in words or word not in words[variable]:
                raise ValueError(f"rule {number}: no consequent {word} of {variable}")
            outs[[n for n, _, _ in outputs].index(variable)] = words[variable].index(word) + 1
        rules.append(SugenoRule(tuple(ins), tuple(outs), float(weight[1]) if weight else 1.0, " OR " not in condition))
    both = re.search(r"AND\s*:\s*(\w+)", text)
    return SugenoSystem(
        name[1] if name else "fcl", tuple(inputs), tuple(outputs), tuple(rules),
        "min" if both and both[1].upper() == "MIN" else "prod", "probor", "wtsum" if method == "SUM" else "wtaver",
    )  # fmt: skip


def _fcl_points(word: str, points: list[tuple[float, float]]) -> FuzzySet:
    x = [a for a, _ in points]
    heights = [b for _, b in points]
    if heights == [0, 1, 0]:
        return FuzzySet(word, "trimf", (x[0], x[1], x[2]))
    if heights == [0, 1, 1, 0]:
        return FuzzySet(word, "trapmf", (x[0], x[1], x[2], x[3]))
    if heights == [1, 0]:
        return FuzzySet(word, "trapmf", (-1e30, -1e30, x[0], x[1]))
    if heights == [0, 1]:
        return FuzzySet(word, "trapmf", (x[0], x[1], 1e30, 1e30))
    raise ValueError(f"term {word}: expected a triangle, trapezoid or shoulder, got heights {heights}")


def render(base: RuleBase, form: str, rules: Sequence[Rule] | None = None) -> str:
    """The rule base in a format of ``FORMATS``."""
    if form in ("text", "md", "tex"):
        return report(base, rules, style=form)
    if form == "json":
        return json.dumps(base.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if form == "pmml":
        return json.dumps(_pmml(base), indent=1, ensure_ascii=False) + "\n"
    if form == "fis":
        return write_fis(to_sugeno(base))
    if form == "fcl":
        return write_fcl(to_sugeno(base))
    if form in ("python", "c"):
        return to_code(base, form)
    raise ValueError(f"expected a format of {', '.join(FORMATS)}, got {form!r}")


def _pmml(base: RuleBase) -> dict[str, Any]:
    """A JSON after PMML's general additive form: data dictionary, fuzzy terms as derived fields, one regression
    table an output."""
    content = base.to_dict()
    derived = [
        {"name": f"{name}.{k}", "field": name, **{key: v for key, v in term.items() if v is not None}}
        for name, one in ((f["name"], f) for f in content["features"])
        for k, term in enumerate(one["terms"])
    ]
    tables = [
        {
            "target": output,
            "intercept": base.intercept[o],
            "terms": [
                {"fields": [f"{c['feature']}.{c['term']}" for c in rule["if"]], "coefficient": rule["then"][o]}
                for rule in content["rules"]
            ],
        }
        for o, output in enumerate(base.outputs)
    ]
    return {
        "DataDictionary": [{"name": f["name"], "low": f["low"], "high": f["high"]} for f in content["features"]],
        "DerivedFields": derived,
        "RegressionTables": tables,
        "normalization": {"identity": "none", "softmax": "softmax", "argmax": "none"}[base.link],
    }
