"""The ``kanfis`` command."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table as Grid

from kanfis import bench as benchmarks
from kanfis import plots
from kanfis.baselines import baselines
from kanfis.claims import PAPER, numeric, score, split
from kanfis.data import NAMES, Table, load_table
from kanfis.estimators import SUFFIXES, KANFISClassifier, KANFISRegressor
from kanfis.peers import peers
from kanfis.rules import FORMATS, RuleBase, interpretability, render, rule_text
from papershelf import InputError
from papershelf import cli as shelf
from papershelf.files import atomic_write
from papershelf.reproduce import plain, progress_bar

app = shelf.app(PAPER)

Data = Annotated[str, typer.Option("--data", help=f"A file with a header, or one of {', '.join(NAMES)}.")]
Target = Annotated[str | None, typer.Option("--target", help="Column to predict; the last one unless named.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]
Model = Annotated[Path, typer.Argument(help="Rules that 'run' wrote (.json).")]
Type = Annotated[str, typer.Option("--type", help="t1, or interval Type-2: it2 (uncertain width), it2-mean (mean).")]


def _print_json(value: Any) -> None:
    print(json.dumps(plain(value), ensure_ascii=False))


def _rulebase(path: Path) -> RuleBase:
    if not path.is_file():
        raise InputError(f"no file {str(path)!r}")
    try:
        return RuleBase.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _terms(text: str) -> Any:
    if text == "auto":
        return text
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"expected --terms auto or a number from 1, got {text!r}")
    return int(text)


@app.command()
def run(
    data: Data = "diabetes",
    target: Target = None,
    fuzzy_type: Type = "t1",
    structure: Annotated[
        str, typer.Option("--structure", help="term: closed form. paper: the paper's network.")
    ] = "term",
    terms: Annotated[str, typer.Option("--terms", help="Terms a feature, or auto (3, 5 or 7).")] = "3",
    pairs: Annotated[int, typer.Option("--pairs", min=0, help="Pair rules to look for.")] = 0,
    select: Annotated[bool, typer.Option("--select", help="Drop features that do not help.")] = False,
    rules: Annotated[
        list[Path] | None, typer.Option("--rules", help=f"Write the rules; the suffix chooses: {' '.join(SUFFIXES)}.")
    ] = None,
    interval: Annotated[
        float | None, typer.Option("--interval", help="Share that intervals (or sets) may miss, for example 0.1.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Fit the baselines on the same split.")
    ] = True,
    out: Annotated[Path, typer.Option("--out", help="Folder for rules, pictures and scores.")] = Path("kanfis-run"),
    top: Annotated[int, typer.Option("--top", min=1, help="Rules printed.")] = 12,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Fit a table, show scores beside baselines and the rules in words, and draw terms, shapes and one row's
    prediction."""
    for path in rules or []:
        if path.suffix.lower() not in SUFFIXES:
            raise InputError(f"expected --rules to end in {', '.join(SUFFIXES)}, got {path.name!r}")
        if not path.resolve().parent.is_dir():
            raise InputError(f"no folder {str(path.resolve().parent)!r}")
    if interval is not None and not 0 < interval < 1:
        raise InputError(f"expected --interval between 0 and 1, got {interval}")
    table = load_table(data, target)
    kind: Any = KANFISClassifier if table.classification else KANFISRegressor
    missing = "term" if bool(table.X.isna().any(axis=None)) and structure == "term" else "error"
    model = kind(
        structure=structure,
        fuzzy_type=fuzzy_type,
        n_memberships=_terms(terms),
        n_interactions=pairs,
        select_features=select,
        missing=missing,
        calibration_fraction=0.25 if interval is not None else 0.0,
        random_state=seed,
    )
    a, b, c, d = split(table, seed)
    model.fit(a, c)
    measure = "accuracy" if table.classification else "RMSE"
    scores = {"kanfis": score(table, d, model.predict(b))}
    if compare and missing == "error":
        wide = pd.get_dummies(table.X).shape[1]
        found = baselines(table.classification, wide, seed)
        found |= {k: m for k, m in peers(table.classification, wide).items() if k in ("EBM", "pyGAM")}
        with progress_bar() as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a baseline that has not converged is still a baseline
            for name in progress(list(found), total=len(found), label="baselines"):
                try:
                    scores[name] = score(table, d, numeric(table, found[name]).fit(a, c).predict(b))
                except ImportError:
                    continue  # torch is not installed
    result: dict[str, Any] = {
        "data": table.name,
        "rows": len(table.X),
        "features": table.X.shape[1],
        "measure": measure,
        "scores": scores,
        "rules": len(model.rules()),
        "interpretability": interpretability(model.rulebase_),
    }
    if interval is not None:
        if table.classification:
            sets = model.predict_set(b, interval)
            inside = sets[np.arange(len(b)), np.searchsorted(model.classes_, d)]
            result["sets"] = {"covered": float(inside.mean()), "size": float(sets.sum(1).mean())}
        else:
            low, high = model.predict_interval(b, interval)
            result["intervals"] = {
                "covered": float(((d >= low) & (d <= high)).mean()),
                "width": float(np.mean(high - low)),
            }
    out.mkdir(parents=True, exist_ok=True)
    exact = model.exact_rules_
    if exact:
        model.export(out / "rules.json")
    model.export(out / "rules.md")
    for path in rules or []:
        model.export(path)
    pictures = [plots.memberships(model, out / "memberships.png")[0]]
    if exact:
        encoded = model._validated(a, reset=False)
        pictures.append(plots.shapes(model, out / "shapes.png", encoded)[0])
        pictures.append(plots.waterfall(model, b.iloc[:1], out / "row.png")[0])
    atomic_write(out / "result.json", json.dumps(plain(result), indent=1))
    if as_json:
        _print_json(result)
        return
    grid = Grid(
        title=f"{table.name}: {len(table.X):,} rows, {table.X.shape[1]} features",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    grid.add_column("model")
    grid.add_column(measure, justify="right")
    for name, value in sorted(scores.items(), key=lambda x: x[1], reverse=table.classification):
        grid.add_row(name, f"{value:.4g}")
    Console().print(grid)
    for key in ("intervals", "sets"):
        if key in result:
            print(f"{key} at {interval}: " + ", ".join(f"{k} {v:.3g}" for k, v in result[key].items()))
    print(f"\n{model.report(top)}")
    print(f"written: {out}/ ({', '.join(sorted(p.name for p in out.iterdir() if p.is_file()))})")


@app.command()
def rules(
    model: Model,
    form: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "text",
    out: Annotated[Path | None, typer.Option("--out", help="Write to a file instead of printing.")] = None,
) -> None:
    """Rules in words, as a table, as code, or for other fuzzy tools."""
    if form not in FORMATS:
        raise InputError(f"expected --format of {', '.join(FORMATS)}, got {form!r}")
    text = render(_rulebase(model), form)
    if out is None:
        print(text, end="")
    else:
        atomic_write(out, text)
        print(f"written: {out}")


def _rows(base: RuleBase, table: Table) -> np.ndarray:
    missing = [name for name in base.features if name not in table.X]
    if missing:
        raise InputError(f"{table.name}: no column {missing[0]!r}; the rules need {', '.join(base.features)}")
    out = np.empty((len(table.X), len(base.features)))
    for i, name in enumerate(base.features):
        column = table.X[name]
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            out[:, i] = column
            continue
        words = {t.label: t.centre for t in base.partition.terms[i] if t.kind == "singleton"}
        out[:, i] = [words.get(str(v), -1.0) if not pd.isna(v) else np.nan for v in column]
    return out


@app.command()
def explain(
    model: Model,
    data: Data = "diabetes",
    target: Target = None,
    row: Annotated[int, typer.Option("--row", min=0, help="Row of the table, from 0.")] = 0,
    output: Annotated[str | None, typer.Option("--output", help="Output or class; the likeliest unless named.")] = None,
    out: Annotated[Path | None, typer.Option("--plot", help="Draw the contributions (.png).")] = None,
    as_json: Json = False,
) -> None:
    """Why one row gets its prediction: what every feature adds, and the rules that are true of it."""
    base, table = _rulebase(model), load_table(data, target)
    if row >= len(table.X):
        raise InputError(f"expected --row from 0 to {len(table.X) - 1}, got {row}")
    X = _rows(base, table)[row : row + 1]
    scores = base.scores(X)[0]
    if output is not None and output not in base.outputs:
        raise InputError(f"expected --output of {', '.join(base.outputs)}, got {output!r}")
    o = (
        base.outputs.index(output)
        if output is not None
        else (int(scores.argmax()) if base.task == "classification" else 0)
    )
    parts = base.contributions(X)[0, :, o]
    names = [" x ".join(base.features[i] for i in c) for c in base.components()]
    fired = base.basis(X)[0] * base.coef[:, o]
    chosen = [r for r in base.rules() if abs(fired[r.index]) > 1e-9]
    chosen.sort(key=lambda r: -abs(fired[r.index]))
    order = np.argsort(-np.abs(parts))
    result = {
        "row": row,
        "output": base.outputs[o],
        "average": float(base.base[o]),
        "value": float(scores[o]),
        "contributions": {names[i]: float(parts[i]) for i in order},
        "rules": [{**asdict(r), "added": float(fired[r.index])} for r in chosen[:10]],
    }
    if out is not None:
        kind: Any = KANFISClassifier if base.task == "classification" else KANFISRegressor
        plots.waterfall(kind.from_rules(base), X, out, o)
    if as_json:
        _print_json(result)
        return
    unit = "log-odds of " if base.link == "softmax" else ""
    print(f"{unit}{base.outputs[o]}: {base.base[o]:.4g} on average, {scores[o]:.4g} for row {row} of {table.name}")
    for i in order[:10]:
        value = table.X.iloc[row][names[i]] if names[i] in table.X else ""
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        print(f"  {parts[i]:+9.4g}  {names[i]}{f' = {shown}' if shown else ''}")
    print("rules that are true of it:")
    for r in chosen[:5]:
        print(f"  {fired[r.index]:+9.4g}  {rule_text(r, base.outputs)}")


@app.command(name="bench")
def bench_command(
    out: Annotated[Path, typer.Option("--out", help="Folder for the figures.")] = Path("kanfis-bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes.")] = False,
) -> None:
    """Time and error beside paper training, EBM, anfis-toolbox, pykan and pyit2fls."""
    out.mkdir(parents=True, exist_ok=True)
    for title, text in benchmarks.bench_peers(out, quick).items():
        print(f"{title}\n\n{text}\n")
