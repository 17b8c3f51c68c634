"""Clouds as files: PLY (read and written), PCD, XYZ, OBJ, STL, LAS, NumPy and SemanticKITTI."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from papershelf import InputError, require
from papershelf.files import atomic_path


class PlyError(InputError):
    """A PLY file that cannot be read; names the line or the byte."""


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """One cloud.

    Attributes:
        xyz: coordinates minus ``origin``, float32, shape (N, 3).
        origin: what was subtracted, float64, shape (3,).
        colour: red, green, blue from 0 to 1, shape (N, 3), or None.
        normals: shape (N, 3), or None.
        labels: class of every point, shape (N,), or None.
        label: class of the whole cloud, or None.
        instances: object of every point, shape (N,), or None.
        name: where it came from.
        faces: triangles, shape (T, 3), where the file is a mesh.
        scalars: further columns of the file.
    """

    xyz: np.ndarray
    origin: np.ndarray = field(default_factory=lambda: np.zeros(3))
    colour: np.ndarray | None = None
    normals: np.ndarray | None = None
    labels: np.ndarray | None = None
    label: int | None = None
    instances: np.ndarray | None = None
    name: str = ""
    faces: np.ndarray | None = None
    scalars: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.xyz)

    def take(self, index: np.ndarray) -> Cloud:
        """The points of an index or mask, in its order."""
        picked: dict[str, Any] = {
            name: getattr(self, name)[index]
            for name in ("xyz", "colour", "normals", "labels", "instances")
            if getattr(self, name) is not None
        }
        scalars = {name: value[index] for name, value in self.scalars.items()}
        return replace(self, **picked, scalars=scalars, faces=None)


def make_cloud(points: np.ndarray, drop_invalid: bool = False, **columns: Any) -> Cloud:
    """A cloud whose minimum is moved to the origin in float64 before the coordinates become float32.

    Args:
        points: coordinates, shape (N, 3).
        drop_invalid: drop points with NaN or inf, with a warning, in place of refusing them.
        columns: the other fields of ``Cloud``; colours from 0 to 255 are scaled to 0 to 1 (decided by their maximum).

    Raises:
        InputError: without points, on another shape, or on coordinates that are not finite.
    """
    points = np.asarray(points, dtype=np.float64)
    name = str(columns.get("name", ""))
    at = f"{name}: " if name else ""
    if points.ndim != 2 or points.shape[1] != 3:
        raise InputError(f"{at}expected coordinates of shape (N, 3), got {points.shape}")
    if len(points) == 0:
        raise InputError(f"{at}expected at least one point, got none")
    colour = columns.get("colour")
    if colour is not None:
        colour = np.asarray(colour, dtype=np.float32)
        if float(colour.max(initial=0)) > 255:
            colour = colour / np.float32(65535)
        elif float(colour.max(initial=0)) > 1:
            colour = colour / np.float32(255)
        columns["colour"] = colour
    finite = np.asarray(np.isfinite(points).all(axis=1))
    if not finite.all():
        bad = np.flatnonzero(~finite)
        if not drop_invalid:
            raise InputError(
                f"{at}expected finite coordinates, got {len(bad)} points with NaN or inf, the first at index {bad[0]}; "
                "pass --drop-invalid (drop_invalid=True) to drop them"
            )
        warnings.warn(f"{at}dropped {len(bad)} points with NaN or inf", stacklevel=2)
        if not finite.any():
            raise InputError(f"{at}expected at least one finite point, got none")
    used = np.where(finite[:, None], points, np.nan)
    origin = np.nanmin(used, axis=0)
    cloud = Cloud(xyz=(points - origin).astype(np.float32), origin=origin, **columns)
    return cloud if finite.all() else cloud.take(finite)


# --- PLY -----------------------------------------------------------------------------------------------------------

_PLY_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2",
    "uint16": "u2", "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4",
    "double": "f8", "float64": "f8",
}  # fmt: skip


@dataclass
class _Element:
    name: str
    count: int
    columns: list[tuple[str, str]] = field(default_factory=list)
    lists: list[tuple[str, str, str]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)


def _ply_header(file: BinaryIO, path: Path) -> tuple[str, list[_Element], int]:
    kind, elements, line = "", [], 0
    while True:
        raw = file.readline()
        line += 1
        try:
            words = raw.decode("ascii").split()
        except UnicodeDecodeError:
            raise PlyError(f"{path}: line {line} of the header is not text") from None
        if line == 1 and words != ["ply"]:
            raise PlyError(f"{path}: line 1: expected 'ply', got {raw[:20]!r}")
        if not raw:
            raise PlyError(f"{path}: the header ends at line {line} without 'end_header'")
        if line == 1 or not words or words[0] in ("comment", "obj_info"):
            continue
        if words[0] == "end_header":
            break
        try:
            if words[0] == "format":
                kind = words[1]
            elif words[0] == "element":
                elements.append(_Element(words[1], int(words[2])))
            elif words[0] == "property" and words[1] == "list":
                elements[-1].lists.append((words[4], _PLY_TYPES[words[2]], _PLY_TYPES[words[3]]))
                elements[-1].order.append(words[4])
            elif words[0] == "property":
                elements[-1].columns.append((words[2], _PLY_TYPES[words[1]]))
                elements[-1].order.append(words[2])
            else:
                raise KeyError(words[0])
        except (KeyError, IndexError, ValueError):
            raise PlyError(f"{path}: line {line}: not understood: {raw.decode('ascii').strip()[:60]!r}") from None
    if kind not in ("ascii", "binary_little_endian", "binary_big_endian"):
        raise PlyError(f"{path}: expected format ascii, binary_little_endian or binary_big_endian, got {kind!r}")
    return kind, elements, line


def _ascii_rows(file: BinaryIO, element: _Element, path: Path, line: int) -> list[list[str]]:
    rows = []
    for number in range(element.count):
        raw = file.readline()
        if not raw:
            raise PlyError(
                f"{path}: line {line + number + 1}: expected {element.count} rows of {element.name}, got {number}"
            )
        rows.append(raw.decode("ascii", "replace").split())
    return rows


def _ascii_columns(rows: list[list[str]], element: _Element, path: Path, line: int) -> dict[str, np.ndarray]:
    for number, row in enumerate(rows):
        if len(row) < len(element.columns):
            raise PlyError(f"{path}: line {line + number + 1}: expected {len(element.columns)} values, got {len(row)}")
    try:
        table = np.array([row[: len(element.columns)] for row in rows], dtype=np.float64)
    except ValueError as error:
        raise PlyError(f"{path}: vertex rows from line {line + 1}: {error}") from None
    table = table.reshape(len(rows), len(element.columns))
    return {name: table[:, i].astype(kind) for i, (name, kind) in enumerate(element.columns)}


def _ascii_faces(rows: list[list[str]], path: Path, line: int) -> np.ndarray:
    found = []
    for number, row in enumerate(rows):
        try:
            size = int(row[0])
            corners = [int(x) for x in row[1 : 1 + size]]
        except (ValueError, IndexError):
            raise PlyError(f"{path}: line {line + number + 1}: expected a face, got {' '.join(row)[:40]!r}") from None
        found += [(corners[0], corners[i], corners[i + 1]) for i in range(1, len(corners) - 1)]
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def _binary_faces(data: bytes, at: int, element: _Element, byteorder: str, path: Path) -> tuple[np.ndarray, int]:
    """Triangles of a face element, (T, 3), and where the next element begins."""
    _, size_kind, index_kind = element.lists[0]
    plain = len(element.lists) == 1 and element.order[0] == element.lists[0][0]
    if plain:  # all triangles: one structured read
        dtype = np.dtype(
            [("n", byteorder + size_kind), ("v", byteorder + index_kind, (3,))]
            + [(name, byteorder + kind) for name, kind in element.columns]
        )
        if at + dtype.itemsize * element.count <= len(data):
            table: Any = np.frombuffer(data, dtype, element.count, at)
            if bool((table["n"] == 3).all()):
                return table["v"].astype(np.int64), at + dtype.itemsize * element.count
    found, kinds = [], dict(element.columns)
    lists = {name: (s, v) for name, s, v in element.lists}
    for number in range(element.count):
        for name in element.order:
            try:
                if name in lists:
                    size = int(np.frombuffer(data, byteorder + lists[name][0], 1, at)[0])
                    at += np.dtype(lists[name][0]).itemsize
                    corners = np.frombuffer(data, byteorder + lists[name][1], size, at)
                    at += corners.nbytes
                    if name == element.lists[0][0]:
                        found += [(corners[0], corners[i], corners[i + 1]) for i in range(1, size - 1)]
                else:
                    at += np.dtype(kinds[name]).itemsize
            except ValueError:
                raise PlyError(f"{path}: byte {at}: the file ends in face {number} of {element.count}") from None
    return np.array(found, dtype=np.int64).reshape(-1, 3), at


def _ply_tables(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    vertex: dict[str, np.ndarray] | None = None
    faces = None
    with path.open("rb") as file:
        kind, elements, line = _ply_header(file, path)
        if not any(e.name == "vertex" for e in elements):
            names = ", ".join(e.name for e in elements) or "no element"
            raise PlyError(f"{path}: expected an element 'vertex' in the {line} lines of the header, got {names}")
        for element in elements:
            if element.name == "vertex" and element.lists:
                raise PlyError(f"{path}: list property {element.lists[0][0]!r} of vertices is not supported")
        if kind == "ascii":
            for element in elements:
                rows = _ascii_rows(file, element, path, line)
                if element.name == "vertex":
                    vertex = _ascii_columns(rows, element, path, line)
                elif element.name == "face" and element.lists:
                    faces = _ascii_faces(rows, path, line)
                line += element.count
        else:
            byteorder, offset = "<" if kind.startswith("binary_l") else ">", file.tell()
            data = file.read()
            at = 0
            for element in elements:
                if not element.lists:
                    dtype = np.dtype([(name, byteorder + t) for name, t in element.columns])
                    if at + dtype.itemsize * element.count > len(data):
                        raise PlyError(
                            f"{path}: byte {offset + len(data)}: the file ends, {element.count} rows of {element.name} "
                            f"need {offset + at + dtype.itemsize * element.count} bytes"
                        )
                    table: Any = np.frombuffer(data, dtype, element.count, at)
                    at += table.nbytes
                    if element.name == "vertex":
                        vertex = {n: table[n].astype(table[n].dtype.newbyteorder("=")) for n in dtype.names or ()}
                elif element.name == "face":
                    faces, at = _binary_faces(data, at, element, byteorder, path)
                else:
                    break  # nothing that is needed can follow
    assert vertex is not None
    return vertex, faces


def _columns(table: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray | None:
    return np.stack([table[n] for n in names], 1) if all(n in table for n in names) else None


_LABEL_NAMES = ("label", "labels", "class", "classification", "scalar_label", "semantic")


def read_ply(path: Path, drop_invalid: bool = False) -> Cloud:
    """Read a PLY file, ascii or binary of either byte order, with its triangles.

    Raises:
        PlyError: naming the line or byte where reading ended.
    """
    table, faces = _ply_tables(Path(path))
    xyz = _columns(table, ("x", "y", "z"))
    if xyz is None:
        raise PlyError(f"{path}: expected vertex properties x, y, z, got {', '.join(table)}")
    if faces is not None and len(faces) and (int(faces.min()) < 0 or int(faces.max()) >= len(xyz)):
        raise PlyError(f"{path}: a face names vertex {int(faces.max())} of {len(xyz)}")
    return _from_table(Path(path).stem, table, xyz, faces, drop_invalid)


def _from_table(
    name: str, table: Mapping[str, np.ndarray], xyz: np.ndarray, faces: np.ndarray | None, drop_invalid: bool
) -> Cloud:
    colour = _columns(table, ("red", "green", "blue"))
    if colour is None:
        colour = _columns(table, ("r", "g", "b"))
    normals = _columns(table, ("nx", "ny", "nz"))
    label = next((n for n in _LABEL_NAMES if n in table), None)
    used = {"x", "y", "z", "red", "green", "blue", "nx", "ny", "nz", label}
    return make_cloud(
        xyz,
        drop_invalid,
        colour=colour,
        normals=None if normals is None else normals.astype(np.float32),
        labels=None if label is None else table[label].astype(np.int64),
        name=name,
        faces=faces,
        scalars={n: v for n, v in table.items() if n not in used},
    )


def write_ply(path: Path, xyz: np.ndarray, columns: Mapping[str, np.ndarray] | None = None) -> Path:
    """Write points and one column a name as a binary PLY, atomically.

    Args:
        path: target.
        xyz: shape (N, 3); kept as float64 where float32 would lose more than a micrometre.
        columns: float, integer (32 bits) or uint8 columns of shape (N,); ``red``, ``green``, ``blue`` are uint8.
    """
    table = {axis: xyz[:, i] for i, axis in enumerate("xyz")}
    if np.allclose(xyz, xyz.astype(np.float32), rtol=0, atol=1e-6):
        table = {axis: value.astype(np.float32) for axis, value in table.items()}
    for name, value in (columns or {}).items():
        value = np.asarray(value)
        if value.shape != (len(xyz),):
            raise InputError(f"expected column {name!r} of shape ({len(xyz)},), got {value.shape}")
        if name in ("red", "green", "blue"):
            table[name] = value.astype(np.uint8)
        else:
            table[name] = value.astype(np.int32 if value.dtype.kind in "iub" else np.float32)
    names = {"f4": "float", "f8": "double", "i4": "int", "u1": "uchar"}
    dtype = np.dtype([(n, v.dtype.newbyteorder("<")) for n, v in table.items()])
    rows: Any = np.empty(len(xyz), dtype)
    for name, value in table.items():
        rows[name] = value
    lines = ["ply", "format binary_little_endian 1.0", "comment written by anisonet", f"element vertex {len(xyz)}"]
    lines += [f"property {names[v.dtype.str[1:]]} {n}" for n, v in table.items()]
    with atomic_path(Path(path)) as temporary:
        temporary.write_bytes(("\n".join([*lines, "end_header"]) + "\n").encode() + rows.tobytes())
    return Path(path)


# --- other formats -------------------------------------------------------------------------------------------------


def read_pcd(path: Path, drop_invalid: bool = False) -> Cloud:
    """Read a PCD file, ascii or binary; ``binary_compressed`` through open3d (extra ``open3d``)."""
    header: dict[str, list[str]] = {}
    with Path(path).open("rb") as file:
        while True:
            raw = file.readline()
            if not raw:
                raise InputError(f"{path}: the header ends without DATA")
            words = raw.decode("ascii", "replace").split()
            if not words or words[0].startswith("#"):
                continue
            header[words[0]] = words[1:]
            if words[0] == "DATA":
                break
        rest = file.read()
    kind = (header["DATA"] or [""])[0]
    if kind == "binary_compressed":
        return _read_with_open3d(Path(path), drop_invalid)
    try:
        fields_, sizes, types = header["FIELDS"], [int(x) for x in header["SIZE"]], header["TYPE"]
        counts = [int(x) for x in header.get("COUNT", ["1"] * len(fields_))]
        n = int(header["POINTS"][0])
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(f"{path}: the header lacks or garbles {error}") from None
    dtype = np.dtype([(f, f"<{t.lower()}{s}", (c,)) for f, t, s, c in zip(fields_, types, sizes, counts, strict=True)])
    if kind == "binary":
        if len(rest) < n * dtype.itemsize:
            raise InputError(f"{path}: expected {n * dtype.itemsize} bytes of points, got {len(rest)}")
        rows: Any = np.frombuffer(rest, dtype, n)
        table = {f: rows[f][:, 0] for f in fields_}
    elif kind == "ascii":
        values = np.loadtxt(io.BytesIO(rest), ndmin=2, dtype=np.float64, max_rows=n)
        if values.shape != (n, sum(counts)):
            raise InputError(f"{path}: expected {n} rows of {sum(counts)} values, got {values.shape}")
        starts = np.cumsum([0, *counts[:-1]])
        table = {f: values[:, s] for f, s in zip(fields_, starts, strict=True)}
    else:
        raise InputError(f"{path}: expected DATA ascii, binary or binary_compressed, got {kind!r}")
    xyz = _columns(table, ("x", "y", "z"))
    if xyz is None:
        raise InputError(f"{path}: expected fields x, y, z, got {', '.join(fields_)}")
    if "rgb" in table:
        packed = np.ascontiguousarray(table["rgb"].astype(np.float32)).view(np.uint32)
        table |= {c: (packed >> s & 255).astype(np.uint8) for c, s in (("red", 16), ("green", 8), ("blue", 0))}
    return _from_table(Path(path).stem, table, xyz, None, drop_invalid)


def load_open3d() -> Any:
    """open3d, or an error that says what is missing: the extra, or a library of the system.

    Raises:
        ImportError: naming the extra or the system's library.
    """
    require("open3d", "papershelf-anisonet[open3d]")
    try:
        import open3d
    except (ImportError, OSError) as error:
        raise ImportError(
            f"open3d is installed but does not load ({error}); on Debian: apt-get install libgl1 libgomp1 libx11-6 "
            f"libegl1 libusb-1.0-0"
        ) from None
    return open3d


def _read_with_open3d(path: Path, drop_invalid: bool) -> Cloud:
    o3d = load_open3d()
    cloud = o3d.io.read_point_cloud(str(path), remove_nan_points=False)
    points = np.asarray(cloud.points)
    if len(points) == 0:
        raise InputError(f"{path}: open3d found no points")
    colour, normals = np.asarray(cloud.colors), np.asarray(cloud.normals)
    return make_cloud(
        points,
        drop_invalid,
        colour=colour if len(colour) else None,
        normals=normals.astype(np.float32) if len(normals) else None,
        name=path.stem,
    )


def to_open3d(cloud: Cloud) -> Any:
    """The cloud as ``open3d.geometry.PointCloud``, in the file's own coordinates."""
    o3d = load_open3d()
    out = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(cloud.xyz.astype(np.float64) + cloud.origin))
    if cloud.colour is not None:
        out.colors = o3d.utility.Vector3dVector(cloud.colour.astype(np.float64))
    if cloud.normals is not None:
        out.normals = o3d.utility.Vector3dVector(cloud.normals.astype(np.float64))
    return out


def voxel_grid(cloud: Cloud, size: float) -> np.ndarray:
    """Occupied cells of ``open3d.geometry.VoxelGrid``, with its corner at the cloud's minimum; integer, shape (V,
    3)."""
    o3d = load_open3d()
    points = to_open3d(cloud)
    corner = points.get_min_bound()
    grid = o3d.geometry.VoxelGrid.create_from_point_cloud_within_bounds(
        points, size, corner, points.get_max_bound() + size
    )
    return np.array([v.grid_index for v in grid.get_voxels()], dtype=np.int64).reshape(-1, 3)


def read_obj(path: Path, drop_invalid: bool = False) -> Cloud:
    """Vertices and triangles of a Wavefront OBJ file."""
    vertices, faces = [], []
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            try:
                if words and words[0] == "v":
                    vertices.append([float(x) for x in words[1:4]])
                elif words and words[0] == "f":
                    corners = [int(w.split("/")[0]) for w in words[1:]]
                    corners = [c - 1 if c > 0 else len(vertices) + c for c in corners]
                    faces += [(corners[0], corners[i], corners[i + 1]) for i in range(1, len(corners) - 1)]
            except ValueError:
                raise InputError(f"{path}: line {number}: not understood: {line.strip()[:60]!r}") from None
    tri = np.array(faces, dtype=np.int64).reshape(-1, 3)
    xyz = np.array(vertices, dtype=np.float64).reshape(-1, 3)
    if len(tri) and (int(tri.min()) < 0 or int(tri.max()) >= len(xyz)):
        raise InputError(f"{path}: a face names vertex {int(tri.max()) + 1} of {len(xyz)}")
    return make_cloud(xyz, drop_invalid, name=Path(path).stem, faces=tri)


def read_stl(path: Path, drop_invalid: bool = False) -> Cloud:
    """Triangles of an STL file, ascii or binary; corners at the same place become one vertex."""
    data = Path(path).read_bytes()
    number = int.from_bytes(data[80:84], "little") if len(data) >= 84 else -1
    if len(data) == 84 + 50 * number:
        table: Any = np.frombuffer(
            data, np.dtype([("normal", "<f4", 3), ("v", "<f4", (3, 3)), ("a", "<u2")]), number, 84
        )
        corners = table["v"].reshape(-1, 3).astype(np.float64)
    elif data.lstrip().startswith(b"solid"):
        words = [line.split() for line in data.decode("ascii", "replace").splitlines()]
        corners = np.array([[float(x) for x in w[1:4]] for w in words if w and w[0] == "vertex"]).reshape(-1, 3)
        corners = corners[: len(corners) // 3 * 3]
    else:
        raise InputError(f"{path}: expected an STL file, got {len(data)} bytes that are neither ascii nor 84 + 50 n")
    xyz, index = np.unique(corners, axis=0, return_inverse=True)
    return make_cloud(xyz, drop_invalid, name=Path(path).stem, faces=index.reshape(-1, 3))


def read_xyz(path: Path, drop_invalid: bool = False) -> Cloud:
    """Rows of x y z [r g b] [label], separated by blanks, commas or semicolons; a first row of names is skipped."""
    text = Path(path).read_text(encoding="utf-8", errors="replace").replace(",", " ").replace(";", " ")
    lines = text.splitlines()
    while lines and not _is_number((lines[0].split() or ["#"])[0]):
        lines.pop(0)
    try:
        values = np.loadtxt(lines, ndmin=2, dtype=np.float64)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if values.size == 0 or values.shape[1] < 3:
        raise InputError(f"{path}: expected rows of at least x y z, got shape {values.shape}")
    columns = values.shape[1]
    return make_cloud(
        values[:, :3],
        drop_invalid,
        colour=values[:, 3:6] if columns >= 6 else None,
        labels=values[:, -1].astype(np.int64) if columns in (4, 7) else None,
        name=Path(path).stem,
    )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_las(path: Path, drop_invalid: bool = False) -> Cloud:
    """A LAS or LAZ file through laspy (extra ``las``); the classification becomes the labels."""
    laspy = require("laspy", "papershelf-anisonet[las]")
    file = laspy.read(str(path))
    names = set(file.point_format.dimension_names)
    colour = np.stack([file.red, file.green, file.blue], 1) if {"red", "green", "blue"} <= names else None
    xyz = np.stack([np.asarray(file.x), np.asarray(file.y), np.asarray(file.z)], 1)
    labels = np.asarray(file.classification, dtype=np.int64)
    return make_cloud(xyz, drop_invalid, colour=colour, labels=labels, name=Path(path).stem)


def read_kitti(path: Path, drop_invalid: bool = False) -> Cloud:
    """A SemanticKITTI sweep, ``*.bin`` (x, y, z, remission as float32), with ``../labels/*.label`` where it exists."""
    path = Path(path)
    data = np.fromfile(path, dtype="<f4")
    if len(data) == 0 or len(data) % 4:
        raise InputError(f"{path}: expected rows of four float32, got {path.stat().st_size} bytes")
    table = data.reshape(-1, 4)
    label_path = path.parent.parent / "labels" / f"{path.stem}.label"
    labels = instances = None
    if label_path.is_file():
        packed = np.fromfile(label_path, dtype="<u4")
        if len(packed) != len(table):
            raise InputError(f"{label_path}: expected {len(table)} labels, got {len(packed)}")
        labels, instances = (packed & 0xFFFF).astype(np.int64), (packed >> 16).astype(np.int64)
    return make_cloud(
        table[:, :3],
        drop_invalid,
        labels=labels,
        instances=instances,
        name=path.stem,
        scalars={"remission": table[:, 3].copy()},
    )


def read_npy(path: Path, drop_invalid: bool = False) -> Cloud:
    """A NumPy array of shape (N, 3) or (N, 6) with colours."""
    try:
        values = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if values.ndim != 2 or values.shape[1] not in (3, 6):
        raise InputError(f"{path}: expected an array of shape (N, 3) or (N, 6), got {values.shape}")
    return make_cloud(
        values[:, :3], drop_invalid, colour=values[:, 3:] if values.shape[1] == 6 else None, name=Path(path).stem
    )


READERS = {
    ".ply": read_ply,
    ".pcd": read_pcd,
    ".obj": read_obj,
    ".stl": read_stl,
    ".xyz": read_xyz,
    ".txt": read_xyz,
    ".csv": read_xyz,
    ".las": read_las,
    ".laz": read_las,
    ".bin": read_kitti,
    ".npy": read_npy,
}


def read_points(path: Path, drop_invalid: bool = False) -> Cloud:
    """Read a cloud or the vertices of a mesh from any file of ``READERS``.

    Raises:
        InputError: if there is no such file, its suffix is unknown or it cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no file {str(path)!r}")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"expected a file that ends in {', '.join(READERS)}, got {path.name!r}")
    return reader(path, drop_invalid)


def sample_surface(cloud: Cloud, n: int, rng: np.random.Generator) -> Cloud:
    """n points drawn uniformly from the triangles of a mesh.

    Raises:
        InputError: if the cloud has no triangles.
    """
    if cloud.faces is None or len(cloud.faces) == 0:
        raise InputError(f"{cloud.name}: expected a mesh with faces, got points only")
    corners = cloud.xyz[cloud.faces].astype(np.float64)
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    if not area.sum() > 0:
        raise InputError(f"{cloud.name}: the mesh has no surface")
    chosen = rng.choice(len(corners), n, p=area / area.sum())
    u, v = rng.random((2, n, 1))
    flip = u + v > 1
    u, v = np.where(flip, 1 - u, u), np.where(flip, 1 - v, v)
    tri = corners[chosen]
    points = tri[:, 0] + u * (tri[:, 1] - tri[:, 0]) + v * (tri[:, 2] - tri[:, 0])
    labels = None if cloud.labels is None else cloud.labels[cloud.faces[chosen, 0]]
    return make_cloud(points + cloud.origin, labels=labels, name=cloud.name)
