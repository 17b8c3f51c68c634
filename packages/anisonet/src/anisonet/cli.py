"""The ``anisonet`` command."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from scipy.special import softmax

from anisonet import bench as benchmarks
from anisonet import data as datasets
from anisonet import viz
from anisonet.ablation import ablate, ablation_grid
from anisonet.audit import INFERENCE_ORDERS, label_leakage, leakage_probe, locality, order_bias
from anisonet.baselines import BASELINES, baseline
from anisonet.claims import PAPER
from anisonet.clouds import Cloud, read_points, sample_surface, write_ply
from anisonet.curves import ORDERS, codes, serialize
from anisonet.ellipsoid import MODES, descriptors
from anisonet.gisa import density, suggest_mode
from anisonet.metrics import ConfusionMeter
from anisonet.model import PRESETS, Config, PointNetwork, count, network
from anisonet.train import Trainer, evaluate, recipe_for, seeded, vote
from papershelf import InputError
from papershelf import cli as shelf
from papershelf.files import atomic_write
from papershelf.reproduce import plain, progress_bar

READOUTS = ("causal", "final")
app = shelf.app(PAPER)
data_app = typer.Typer(help="Make the embedded data, check a folder of public data.", no_args_is_help=True)
app.add_typer(data_app, name="data")

File = Annotated[Path, typer.Argument(help="A .ply, .pcd, .xyz, .obj, .stl, .las, .npy or KITTI .bin file.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Where to write; never over the input.")]
Checkpoint = Annotated[Path, typer.Option("--checkpoint", "-c", help="A folder that 'train' or 'run' wrote.")]
Data = Annotated[str, typer.Option("--data", help="mw-scenes, mw-objects, or a folder of public data.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DropInvalid = Annotated[bool, typer.Option("--drop-invalid", help="Drop points with NaN or inf instead of refusing.")]
NoColour = Annotated[bool, typer.Option("--no-colour", help="Put zeros where the model wants colours.")]
Sample = Annotated[
    int, typer.Option("--sample", min=0, help="Sample that many points of a mesh's surface; 0: vertices.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, mps, ...")]
Votes_ = Annotated[int, typer.Option("--votes", min=1, help="Versions of the cloud that are averaged.")]
FileOrderOption = Annotated[
    str, typer.Option("--file-order", help="shuffle: the file's order cannot leak labels. keep: it can.")
]
Up = Annotated[str, typer.Option("--up", help="Axis that points up: x, y or z.")]


def _print_json(value: Any) -> None:
    print(json.dumps(plain(value), ensure_ascii=False))


def _show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _beside(path: Path, value: Any) -> Path:
    """Write results as JSON beside a file that a command made."""
    return atomic_write(path.with_suffix(".json"), json.dumps(plain(value), indent=1, ensure_ascii=False) + "\n")


def _axis(up: str) -> int:
    if up not in "xyz" or len(up) != 1:
        raise InputError(f"expected --up x, y or z, got {up!r}")
    return "xyz".index(up)


def _read(path: Path, drop_invalid: bool, sample: int, seed: int, no_colour: bool = False) -> Cloud:
    cloud = read_points(path, drop_invalid)
    if sample:
        cloud = sample_surface(cloud, sample, np.random.default_rng([seed, 7]))
    if no_colour:
        cloud = replace(cloud, colour=np.zeros((len(cloud), 3), dtype=np.float32))
    return cloud


def _target(source: Path, out: Path | None, suffix: str) -> Path:
    target = out or source.with_name(f"{source.stem}-{suffix}.ply")
    if target.resolve() == source.resolve():
        raise InputError(f"expected another file than the input for --out, got {target}")
    if target.suffix.lower() != ".ply":
        raise InputError(f"expected --out to end in .ply, got {target.name!r}")
    if not target.resolve().parent.is_dir():
        raise InputError(f"no folder {str(target.resolve().parent)!r}")
    return target


def _device(name: str) -> str:
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"no device {name!r}: {str(error).splitlines()[0]}") from None
    return name


def _classes(folder: Path) -> list[str]:
    path = folder / "classes.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def _load(folder: Path, device: str) -> PointNetwork:
    return PointNetwork.from_pretrained(folder).to(_device(device))


def _meter_rows(meter: ConfusionMeter, classes: tuple[str, ...]) -> list[list[str]]:
    iou = meter.iou()
    total = meter.matrix.sum(1)
    return [[name, f"{value:.3f}", f"{n:,}"] for name, value, n in zip(classes, iou, total, strict=True)]


def _scores(meter: ConfusionMeter, classes: tuple[str, ...], seed: int) -> dict[str, Any]:
    interval = meter.interval(np.random.default_rng(seed))
    return {
        "miou": meter.miou,
        "miou_interval": [interval.low, interval.high],
        "mean_accuracy": meter.mean_accuracy,
        "accuracy": meter.accuracy,
        "iou": dict(zip(classes, meter.iou().tolist(), strict=True)),
        "confusion": meter.matrix,
    }


@app.command()
def run(
    out: Annotated[Path, typer.Option("--out", help="Folder for model, tables and pictures.")] = Path("anisonet-run"),
    steps: Annotated[int, typer.Option("--steps", min=1, help="Training steps.")] = 160,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """From nothing to a trained model, a table, pictures and the audit: about two minutes on two cores.

    Trains seg_tiny on mw-scenes (44 robot scenes that the package ships) with shuffled points, tests it on 11
    scenes that it never saw, and shows what the file's order alone would have brought.
    """
    dataset = datasets.mw_scenes()
    with seeded(seed, torch.device("cpu")):
        model = network("seg_tiny")
    trainer = Trainer(model, dataset.train, recipe_for("seg_tiny", steps=steps, seed=seed), out)
    with progress_bar() as progress:
        trainer.resume()
        trainer.run(progress)
        meter = evaluate(trainer.model, dataset.test, progress=progress, seed=seed)
        bias = order_bias(trainer.model, dataset.test[::6], seed=seed, progress=progress)
        probe = leakage_probe([c.labels for c in dataset.train if c.labels is not None], seed, progress=progress)
    leak = label_leakage(np.asarray(dataset.train[0].labels), np.random.default_rng(seed))
    trainer.model.save_pretrained(out)
    atomic_write(out / "classes.json", json.dumps(dataset.classes))
    one = dataset.test[0]
    found = vote(trainer.model, one).argmax(1)
    picture, _ = viz.render_png(
        one.xyz, found, out / "scene.png", dataset.classes, one.labels, title=f"{one.name}, predicted"
    )
    result: dict[str, Any] = {
        **_scores(meter, dataset.classes, seed),
        "orders": [row._asdict() for row in bias],
        "leakage": leak._asdict(),
        "probe": vars(probe),
        "file_order": "shuffle",
        "steps": steps,
        "seed": seed,
    }
    atomic_write(out / "result.json", json.dumps(plain(result), indent=1))
    if as_json:
        _print_json(result)
        return
    _show("Unseen scenes, trained on shuffled points", ["class", "IoU", "points"], _meter_rows(meter, dataset.classes))
    low, high = result["miou_interval"]
    print(f"mean IoU {meter.miou:.3f} [{low:.3f}, {high:.3f}], accuracy {meter.accuracy:.3f}\n")
    _show_orders(bias)
    print(
        f"\naudit: in this file a run of one label is {leak.run_length_ratio:.0f} times longer than chance, and "
        f"the position "
        f"says {leak.information:.2f} of {leak.entropy:.2f} bits of the label (p = {leak.p_value:.3f}).\nA "
        f"recurrence that "
        f"sees only noise is right on {probe.file_order:.0%} of the points in file order and on "
        f"{probe.fed_shuffled:.0%} once "
        f"they are shuffled (commonest class {probe.chance:.0%}): scores on file order would be scores of the file."
    )
    print(f"written: {out}/model.safetensors, result.json, {picture.name}")


def _show_orders(rows: list[Any]) -> None:
    _show(
        "Only the order of the recurrence changes",
        ["order", "score", "accuracy", "labels that flip", "mean |change of logits|", "KL"],
        [
            [
                r.order,
                f"{r.miou:.3f}",
                f"{r.accuracy:.3f}",
                f"{r.flips:.1%}",
                f"{r.logit_change:.3f}",
                f"{r.divergence:.4f}",
            ]
            for r in rows
        ],
    )


@app.command()
def train(
    config: Annotated[str, typer.Argument(help=f"One of {', '.join(PRESETS)}, or a .json of a configuration.")],
    data: Data = "mw-scenes",
    out: Annotated[Path, typer.Option("--out", help="Folder for checkpoints and the model.")] = Path("anisonet-model"),
    order: Annotated[str | None, typer.Option("--order", help=f"Of the recurrence: {', '.join(ORDERS)}.")] = None,
    file_order: FileOrderOption = "shuffle",
    ese: Annotated[str | None, typer.Option("--ese", help="ellipsoid, sphere or none.")] = None,
    gisa: Annotated[bool, typer.Option("--gisa/--no-gisa", help="With or without the recurrence.")] = True,
    readout: Annotated[str | None, typer.Option("--readout", help="causal or final.")] = None,
    network_name: Annotated[
        str | None, typer.Option("--network", help=f"A baseline instead: {', '.join(BASELINES)}.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="In place of the preset's.")] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Clouds a step, in place of the preset's.")
    ] = None,
    lr: Annotated[float | None, typer.Option("--lr", min=0, help="In place of the preset's.")] = None,
    device: Device = "cpu",
    resume: Annotated[bool, typer.Option("--resume/--restart", help="Go on from the folder's checkpoint.")] = True,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Through accelerate; start with torchrun or accelerate launch.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and stop.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train on a data set and test on its test part. A killed run goes on where it stopped, to the same weights."""
    if config.endswith(".json"):
        if not Path(config).is_file():
            raise InputError(f"no file {config!r}")
        base = Config.of(json.loads(Path(config).read_text(encoding="utf-8")))
    else:
        base = Config.of(config)
    dataset = datasets.load(data)
    changes: dict[str, Any] = {"classes": max(2, len(dataset.classes))}
    changes |= {k: v for k, v in (("order", order), ("ese", ese), ("readout", readout)) if v is not None}
    if not gisa:
        changes |= {"gisa_full": 0, "gisa_coarse": 0}
    cfg = Config.of(base, **changes)
    given = {k: v for k, v in (("steps", steps), ("batch", batch), ("lr", lr)) if v is not None}
    recipe = recipe_for(
        config if config in PRESETS else "seg_tiny",
        len(dataset.train),
        seed=seed,
        file_order=file_order,
        distributed=distributed,
        **given,
    )
    if network_name is not None and network_name not in BASELINES:
        raise InputError(f"expected a network of {', '.join(BASELINES)}, got {network_name!r}")
    with seeded(seed, torch.device("cpu")):
        model = baseline(network_name, cfg) if network_name else network(cfg)
    plan = {
        "data": dataset.name,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": len(dataset.classes),
        "network": type(model).__name__,
        "order": cfg.order,
        "file_order": file_order,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "lr": recipe.lr,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    if dry_run:
        _print_json(plan) if as_json else print("\n".join(f"{key}: {value}" for key, value in plan.items()))
        return
    trainer = Trainer(model, dataset.train, recipe, out, _device(device), dataset.up)
    if resume and trainer.resume() and not as_json:
        print(f"going on from step {trainer.step}")
    with progress_bar() as progress:
        trainer.run(progress)
        meter = evaluate(model, dataset.test, file_order=_file_order(file_order), up=dataset.up, progress=progress)
    model.save_pretrained(out)
    atomic_write(out / "classes.json", json.dumps(dataset.classes))
    result = {**plan, **_scores(meter, dataset.classes, seed)}
    atomic_write(out / "result.json", json.dumps(plain(result), indent=1))
    if as_json:
        _print_json(result)
        return
    _show(f"{dataset.name}, file order {file_order}", ["class", "IoU", "points"], _meter_rows(meter, dataset.classes))
    print(f"mean IoU {meter.miou:.3f}, accuracy {meter.accuracy:.3f}; file order {file_order}, order {cfg.order}")
    print(f"written: {out}")


def _file_order(name: str) -> Any:
    if name not in ("shuffle", "keep"):
        raise InputError(f"expected --file-order shuffle or keep, got {name!r}")
    return name


@app.command(name="eval")
def evaluate_command(
    checkpoint: Checkpoint,
    data: Data = "mw-scenes",
    votes: Votes_ = 1,
    file_order: FileOrderOption = "shuffle",
    order: Annotated[str | None, typer.Option("--order", help="In place of the model's.")] = None,
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Scores of a model on all points of a data set's test part."""
    model, dataset = _load(checkpoint, device), datasets.load(data)
    if order is not None and order not in ORDERS:
        raise InputError(f"expected --order of {', '.join(ORDERS)}, got {order!r}")
    with progress_bar() as progress:
        meter = evaluate(model, dataset.test, votes, order, _file_order(file_order), dataset.up, seed, progress)
    result: dict[str, Any] = {"file_order": file_order, "votes": votes, **_scores(meter, dataset.classes, seed)}
    if as_json:
        _print_json(result)
        return
    _show(f"{dataset.name}, file order {file_order}", ["class", "IoU", "points"], _meter_rows(meter, dataset.classes))
    low, high = result["miou_interval"]
    print(f"mean IoU {meter.miou:.3f} [{low:.3f}, {high:.3f}], accuracy {meter.accuracy:.3f}")


@app.command()
def segment(
    source: File,
    checkpoint: Checkpoint,
    out: Out = None,
    votes: Votes_ = 1,
    png: Annotated[bool, typer.Option("--png", help="Also draw a picture beside the result.")] = False,
    sample: Sample = 0,
    drop_invalid: DropInvalid = False,
    no_colour: NoColour = False,
    scale: Annotated[float, typer.Option("--scale", min=0, help="Factor from the file's units to the model's.")] = 1.0,
    up: Up = "z",
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Label every point of a file: a PLY with label, confidence and colour."""
    target = _target(source, out, "labels")
    model = _load(checkpoint, device)
    if model.cfg.task != "segmentation":
        raise InputError(f"expected a segmentation model, got one for {model.cfg.task}")
    cloud = _read(source, drop_invalid, sample, seed, no_colour)
    fed = replace(cloud, xyz=cloud.xyz * np.float32(scale))
    logits = vote(model, fed, votes, up=_axis(up), seed=seed)
    labels = logits.argmax(1)
    confidence = softmax(logits / votes, axis=1).max(1)
    colour = (255 * viz.colours_of(labels)).round()
    columns = {"label": labels, "confidence": confidence}
    columns |= {name: colour[:, i] for i, name in enumerate(("red", "green", "blue"))}
    write_ply(target, cloud.xyz + cloud.origin, columns)
    names = _classes(checkpoint)
    shares = np.bincount(labels, minlength=model.cfg.classes) / len(labels)
    result = {
        "points": len(cloud),
        "out": str(target),
        "votes": votes,
        "confidence": float(confidence.mean()),
        "shares": {names[i] if i < len(names) else str(i): float(s) for i, s in enumerate(shares)},
    }
    if png:
        picture, _ = viz.render_png(cloud.xyz, labels, target.with_suffix(".png"), names, title=source.name)
        result["picture"] = str(picture)
    _beside(target, result)
    if as_json:
        _print_json(result)
        return
    _show(
        f"{source.name}: {len(cloud):,} points",
        ["class", "share"],
        [[k, f"{v:.1%}"] for k, v in result["shares"].items()],
    )
    print(f"written: {target}" + (f", {result['picture']}" if png else ""))


@app.command()
def classify(
    source: File,
    checkpoint: Checkpoint,
    votes: Votes_ = 1,
    sample: Sample = 0,
    drop_invalid: DropInvalid = False,
    normalise: Annotated[bool, typer.Option("--normalise", help="Scale the cloud into the unit ball first.")] = False,
    up: Up = "z",
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Which object a file shows, with probabilities."""
    model = _load(checkpoint, device)
    if model.cfg.task != "classification":
        raise InputError(f"expected a classification model, got one for {model.cfg.task}")
    cloud = _read(source, drop_invalid, sample, seed)
    if normalise:
        radius = float(np.linalg.norm(cloud.xyz - cloud.xyz.mean(0), axis=1).max()) or 1.0
        cloud = replace(cloud, xyz=cloud.xyz / np.float32(radius))
    p = softmax(vote(model, cloud, votes, up=_axis(up), seed=seed)[0] / votes)
    names = _classes(checkpoint)
    ranked = [(names[i] if i < len(names) else str(i), float(p[i])) for i in np.argsort(-p)]
    if as_json:
        _print_json({"file": str(source), "points": len(cloud), "probabilities": dict(ranked)})
        return
    _show(f"{source.name}: {len(cloud):,} points", ["class", "probability"], [[n, f"{x:.1%}"] for n, x in ranked[:5]])


@app.command()
def describe(
    source: File,
    out: Out = None,
    k: Annotated[int, typer.Option("--k", min=2, help="Neighbours, the point included.")] = 24,
    png: Annotated[str | None, typer.Option("--png", help="Also draw this descriptor.")] = None,
    sample: Sample = 0,
    drop_invalid: DropInvalid = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Local shape of every point, without any model: linearity, planarity, sphericity, ... and normals in a PLY."""
    target = _target(source, out, "shape")
    cloud = _read(source, drop_invalid, sample, seed)
    found = {name: value.numpy() for name, value in descriptors(torch.from_numpy(cloud.xyz), k).items()}
    normals = found.pop("normals")
    if png is not None and png not in found:
        raise InputError(f"expected --png of {', '.join(found)}, got {png!r}")
    columns = {**found, **{name: normals[:, i] for i, name in enumerate(("nx", "ny", "nz"))}}
    write_ply(target, cloud.xyz + cloud.origin, columns)
    spacing = float(density(torch.from_numpy(cloud.xyz), k=k))
    result = {
        "points": len(cloud),
        "out": str(target),
        "normalised_spacing": spacing,
        "suggested_order": suggest_mode(torch.from_numpy(cloud.xyz), k=k),
        **{name: {"mean": float(v.mean()), "median": float(np.median(v))} for name, v in found.items()},
    }
    if png is not None:
        picture, _ = viz.render_png(cloud.xyz, None, target.with_suffix(".png"), values=found[png], title=png)
        result["picture"] = str(picture)
    _beside(target, result)
    if as_json:
        _print_json(result)
        return
    rows = [[name, f"{v.mean():.3f}", f"{np.median(v):.3f}"] for name, v in found.items()]
    _show(f"{source.name}: {len(cloud):,} points, k = {k}", ["descriptor", "mean", "median"], rows)
    print(f"normalised spacing {spacing:.4f}: the paper's rule suggests order {result['suggested_order']}")
    print(f"written: {target}")


@app.command(name="serialize")
def serialize_command(
    source: File,
    out: Out = None,
    curve: Annotated[str, typer.Option("--curve", help=f"One of {', '.join(ORDERS)}.")] = "hilbert",
    bits: Annotated[int, typer.Option("--bits", min=1, max=21, help="Bits an axis.")] = 16,
    drop_invalid: DropInvalid = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Write the points along a space-filling curve, with their rank (and code), and say how local it is."""
    target = _target(source, out, curve)
    cloud = read_points(source, drop_invalid)
    xyz = torch.from_numpy(cloud.xyz)
    order = serialize(xyz, None, curve, bits, generator=torch.Generator().manual_seed(seed)).numpy()
    columns: dict[str, np.ndarray] = {"rank": np.arange(len(order)), "original": order}
    if curve.startswith(("morton", "hilbert")) and bits <= 10:
        columns["code"] = codes(xyz, None, curve, bits).numpy()[order]
    write_ply(target, (cloud.xyz + cloud.origin)[order], columns)
    found = locality(curve, xyz, generator=torch.Generator().manual_seed(seed))
    result = {"points": len(cloud), "out": str(target), **found._asdict()}
    _beside(target, result)
    if as_json:
        _print_json(result)
        return
    shares = ", ".join(f"{share:.1%} within {w} steps" for w, share in found.within.items())
    print(
        f"{source.name}: {len(cloud):,} points along {curve}; neighbours: {shares}; a jump is {found.jump:.1f} spacings"
    )
    print(f"written: {target}")


@app.command()
def audit(
    data: Annotated[
        str, typer.Option("--data", help="mw-scenes, a folder of public data, or files with labels.")
    ] = "mw-scenes",
    checkpoint: Annotated[Path | None, typer.Option("--checkpoint", "-c", help="Also audit a trained model.")] = None,
    probe: Annotated[bool, typer.Option("--probe/--no-probe", help="Train a recurrence on noise (10 s).")] = True,
    out: Annotated[Path | None, typer.Option("--out", help="Write the result as JSON.")] = None,
    device: Device = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Does the order of the files carry the labels, and does a model live on it?"""
    root = Path(data)
    plain_files = root.is_file() or (root.is_dir() and not _known_layout(root))
    if plain_files:
        clouds, name, up = list(itertools.islice(datasets.labelled_files(data), 200)), root.name, 2
        test = clouds
    else:
        dataset = datasets.load(data)
        clouds, test, name, up = dataset.train, dataset.test, dataset.name, dataset.up
    labels = [c.labels for c in clouds if c.labels is not None and int((c.labels >= 0).sum()) > 1]
    if not labels:
        raise InputError(f"{data}: expected labelled points, found none")
    rng = np.random.default_rng(seed)
    leaks = [label_leakage(one, rng, permutations=100) for one in labels[:20]]
    result: dict[str, Any] = {
        "data": name,
        "files": len(labels),
        "run_length_ratio": float(np.mean([x.run_length_ratio for x in leaks])),
        "information_bits": float(np.mean([x.information - x.shuffled_information for x in leaks])),
        "entropy_bits": float(np.mean([x.entropy for x in leaks])),
        "largest_p_value": max(x.p_value for x in leaks),
    }
    with progress_bar() as progress:
        if probe and len(labels) >= 4:
            short = [one[:: -(-len(one) // 1024)] for one in labels]
            result["probe"] = vars(leakage_probe(short, seed, progress=progress))
        if checkpoint is not None:
            model = _load(checkpoint, device)
            usable = [c for c in test if c.labels is not None][:20]
            result["orders"] = [r._asdict() for r in order_bias(model, usable, INFERENCE_ORDERS, up, seed, progress)]
    share = result["information_bits"] / max(result["entropy_bits"], 1e-9)
    result["verdict"] = (
        "the order carries the labels: train with --file-order shuffle"
        if share > 0.1 and result["largest_p_value"] <= 0.05
        else "no sign that the order carries the labels"
    )
    if out is not None:
        atomic_write(out, json.dumps(plain(result), indent=1) + "\n")
    if as_json:
        _print_json(result)
        return
    print(
        f"{name}, {len(labels)} files: runs of one label are {result['run_length_ratio']:.1f} times longer than "
        f"chance; the "
        f"position says {result['information_bits']:.2f} of {result['entropy_bits']:.2f} bits of the label "
        f"(p <= {result['largest_p_value']:.3f} in each of {len(leaks)} files)"
    )
    if "probe" in result:
        p = result["probe"]
        print(
            f"a recurrence on noise: {p['file_order']:.1%} right in file order, {p['fed_shuffled']:.1%} once shuffled, "
            f"{p['shuffled']:.1%} trained shuffled; commonest class {p['chance']:.1%}"
        )
    if "orders" in result:
        from anisonet.audit import OrderRow

        _show_orders([OrderRow(**row) for row in result["orders"]])
    print(result["verdict"])


def _known_layout(root: Path) -> bool:
    try:
        datasets.layout_of(root)
    except InputError:
        return False
    return True


@app.command(name="ablate")
def ablate_command(
    out: Annotated[Path, typer.Option("--out", help="Folder; finished settings are kept there.")] = Path("ablation"),
    data: Data = "mw-scenes",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Training steps of every setting.")] = 160,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of every setting.")] = 1,
    ese: Annotated[str, typer.Option("--ese", help="Encodings, by commas.")] = "none,sphere,ellipsoid",
    orders: Annotated[str, typer.Option("--orders", help="Orders, by commas.")] = "identity,morton,hilbert,random",
    readouts: Annotated[str, typer.Option("--readouts", help="Read-outs, by commas.")] = "causal,final",
    file_order: FileOrderOption = "shuffle",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Settings at a time.")] = 1,
    engine: Annotated[str, typer.Option("--engine", help="local, ray or dask.")] = "local",
    as_json: Json = False,
) -> None:
    """Encoding x recurrence x order x read-out, trained alike (27 settings of half a minute); goes on where it
    stopped."""
    for given, known, name in ((ese, MODES, "--ese"), (orders, ORDERS, "--orders"), (readouts, READOUTS, "--readouts")):
        if unknown := [x for x in given.split(",") if x not in known]:
            raise InputError(f"expected {name} of {', '.join(known)}, got {unknown[0]!r}")
    if engine not in ("local", "ray", "dask"):
        raise InputError(f"expected --engine local, ray or dask, got {engine!r}")
    grid = ablation_grid(
        ese.split(","), orders.split(","), readouts.split(","), seeds, steps, _file_order(file_order), data
    )
    backend: Any = engine
    with progress_bar() as progress:
        cells = ablate(grid, jobs, backend, out, progress)
    rows: list[dict[str, Any]] = [{**cell.params, **cell.value, "seconds": cell.seconds} for cell in cells]
    atomic_write(out / "ablation.json", json.dumps(plain(rows), indent=1))
    if as_json:
        _print_json(rows)
        return
    _show(
        f"{data}, {steps} steps, file order {file_order}",
        ["encoding", "recurrence", "order", "read-out", "seed", "mean IoU", "accuracy"],
        [
            [
                r["ese"],
                "GISA" if r["gisa"] else "none",
                r["order"] if r["gisa"] else "-",
                r["readout"] if r["gisa"] else "-",
                str(r["seed"]),
                f"{r['miou']:.3f}",
                f"{r['accuracy']:.3f}",
            ]
            for r in rows
        ],
    )


@app.command(name="count")
def count_command(
    config: Annotated[
        str, typer.Argument(help=f"One of {', '.join(PRESETS)}; 'all' for all and the baselines.")
    ] = "all",
    points: Annotated[int, typer.Option("--points", min=1, help="Points of the first stage.")] = 15_000,
    as_json: Json = False,
) -> None:
    """Parameters and operations. GMACs count a multiply and an add as one; this field's "GFLOPs" are usually GMACs."""
    rows = []
    for name in PRESETS if config == "all" else [config]:
        found = count(name, points)
        rows.append((name, found))
    if config == "all":
        for name in BASELINES:
            rows.append((f"{name} at seg_tiny's sizes", count(baseline(name, "seg_tiny"), min(points, 2_000))))
    if as_json:
        _print_json({name: {**b._asdict(), "flops": 2 * b.macs} for name, b in rows})
        return
    _show(
        "Budgets (stage ratio 3)",
        ["network", "points", "parameters", "GMACs", "GFLOPs (2 a MAC)"],
        [
            [n, f"{b.points:,}", f"{b.parameters / 1e6:.3f}M", f"{b.macs / 1e9:.2f}", f"{2 * b.macs / 1e9:.2f}"]
            for n, b in rows
        ],
    )


@app.command(name="bench")
def bench_command(
    what: Annotated[str, typer.Argument(help="peers or scaling.")] = "peers",
    out: Annotated[Path, typer.Option("--out", help="Folder for the figures.")] = Path("anisonet-bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes.")] = False,
) -> None:
    """Speed beside other libraries (peers) or growth with the number of points (scaling)."""
    kinds = {"peers": benchmarks.peers, "scaling": benchmarks.scaling}
    if what not in kinds:
        raise InputError(f"expected peers or scaling, got {what!r}")
    out.mkdir(parents=True, exist_ok=True)
    for title, table in kinds[what](out, quick).items():
        print(f"{title}\n\n{table}\n")


@data_app.command(name="check")
def check_data(
    path: Annotated[str, typer.Argument(help="mw-scenes, mw-objects or a folder of public data.")],
    as_json: Json = False,
) -> None:
    """Read a data set whole and say what is in it."""
    dataset = datasets.load(path)
    rows = datasets.summary(dataset)
    found = {"name": dataset.name, "train": len(dataset.train), "test": len(dataset.test), "up": "xyz"[dataset.up]}
    if as_json:
        _print_json({**found, "classes": {n: [a, b] for n, a, b in rows}})
        return
    print(", ".join(f"{key} {value}" for key, value in found.items()))
    _show("Labels", ["class", "training", "test"], [[n, f"{a:,}", f"{b:,}"] for n, a, b in rows])


@data_app.command(name="make-mw")
def make_mw() -> None:
    """How the two embedded data sets are made again from the Meta-World wheel."""
    print(
        "pip download --no-deps metaworld==3.1.1\n"
        "unzip metaworld-3.1.1-py3-none-any.whl -d wheel\n"
        "pip install 'mujoco>=3.3'\n"
        "python packages/anisonet/tools/make_mw.py wheel packages/anisonet/src/anisonet/embedded/data"
    )
