"""Files, public layouts (made here in the exact layout), metrics, training, resume, voting, audit, estimators."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, jaccard_score, mutual_info_score

from anisonet import audit, data
from anisonet.batches import Augmentation, augmented, collate, crop, elastic_distortion, features
from anisonet.clouds import Cloud, PlyError, make_cloud, read_ply, read_points, sample_surface, write_ply
from anisonet.estimator import PointClassifier, PointSegmenter
from anisonet.metrics import ConfusionMeter
from anisonet.model import Config, network
from anisonet.train import PRESET_VOTES, Recipe, Trainer, Votes, evaluate, learning_rate, recipe_for, seeded, vote
from papershelf import InputError


def rng(seed=0):
    return np.random.default_rng(seed)


# --- PLY -----------------------------------------------------------------------------------------------------------

HEADER = """ply
format {kind} 1.0
comment made by a test
element vertex 4
property float x
property float y
property float z
property uchar red
property uchar green
property uchar blue
property int label
element face 2
property list uchar int vertex_indices
end_header
"""
XYZ = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0.5]])


def ply_bytes(kind):
    head = HEADER.format(kind=kind).encode()
    if kind == "ascii":
        rows = [f"{x} {y} {z} {255 * i // 3} 0 255 {i}" for i, (x, y, z) in enumerate(XYZ)]
        return head + ("\n".join([*rows, "3 0 1 2", "3 0 2 3"]) + "\n").encode()
    e = "<" if kind.endswith("little_endian") else ">"
    rows = np.zeros(4, [("p", e + "f4", 3), ("c", "u1", 3), ("l", e + "i4")])
    rows["p"], rows["l"] = XYZ, range(4)
    rows["c"] = [[255 * i // 3, 0, 255] for i in range(4)]
    faces = np.zeros(2, [("n", "u1"), ("v", e + "i4", 3)])
    faces["n"], faces["v"] = 3, [[0, 1, 2], [0, 2, 3]]
    return head + rows.tobytes() + faces.tobytes()


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply_in_all_three_formats(tmp_path, kind):
    path = tmp_path / "a.ply"
    path.write_bytes(ply_bytes(kind))
    cloud = read_ply(path)
    assert np.allclose(cloud.xyz + cloud.origin, XYZ)
    assert cloud.labels.tolist() == [0, 1, 2, 3]
    assert np.allclose(cloud.colour[:, 0], [0, 1 / 3, 2 / 3, 1])
    assert cloud.faces.tolist() == [[0, 1, 2], [0, 2, 3]]


def test_polygons_become_triangles(tmp_path):
    head = HEADER.format(kind="binary_little_endian").replace("element face 2", "element face 1").encode()
    body = ply_bytes("binary_little_endian")[len(HEADER.format(kind="binary_little_endian")) :][: 4 * 19]
    path = tmp_path / "a.ply"
    path.write_bytes(head + body + bytes([4]) + np.arange(4, dtype="<i4").tobytes())
    assert read_ply(path).faces.tolist() == [[0, 1, 2], [0, 2, 3]]
    path.write_bytes(
        HEADER.format(kind="ascii").replace("face 2", "face 1").encode() + b"0 0 0 0 0 0 0\n" * 4 + b"4 0 1 2 3\n"
    )
    assert read_ply(path).faces.tolist() == [[0, 1, 2], [0, 2, 3]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plx\n", "line 1: expected 'ply'"),
        (b"ply\nformat ascii 1.0\nelement face 1\nend_header\n", "expected an element 'vertex'"),
        (b"ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\n", "the header ends at line 5"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty list uchar int x\nend_header\n", "list property 'x'"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty half x\nend_header\n", "line 4: not understood"),
        (b"ply\nformat funny 1.0\nelement vertex 0\nend_header\n", "expected format ascii"),
        (ply_bytes("binary_little_endian")[:-60], "byte [0-9]+: the file ends, 4 rows of vertex need"),
        (ply_bytes("binary_little_endian")[:-4], "the file ends in face 1 of 2"),
        (ply_bytes("ascii")[:-30], "line 18: expected 7 values, got 3"),
        (ply_bytes("ascii").replace(b"1.0 1.0 0.0", b"1.0 one 0.0"), "vertex rows from line"),
        (ply_bytes("ascii").replace(b"3 0 2 3", b"3 0 2 9"), "a face names vertex 9 of 4"),
    ],
)
def test_broken_ply_files_say_where(tmp_path, content, message):
    path = tmp_path / "a.ply"
    path.write_bytes(content)
    with pytest.raises(PlyError, match=message):
        read_ply(path)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 50), st.floats(-1e6, 1e6))
def test_written_ply_files_read_the_same(tmp_path_factory, n, shift):
    path = tmp_path_factory.mktemp("ply") / "a.ply"
    xyz = rng(n).normal(size=(n, 3)) + shift
    write_ply(path, xyz, {"label": np.arange(n), "value": xyz[:, 0] / 2, "red": np.arange(n) % 256})
    cloud = read_ply(path)
    assert np.allclose(cloud.xyz + cloud.origin, xyz, atol=2e-6)
    assert cloud.labels.tolist() == list(range(n))
    assert np.allclose(cloud.scalars["value"], xyz[:, 0] / 2, rtol=1e-6)


def test_other_formats(tmp_path):
    obj = tmp_path / "a.obj"
    obj.write_text("# t\nv 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nf 1/1 2/2 3/3 4/4\nf -4 -3 -2\n")
    mesh = read_points(obj)
    assert mesh.faces.tolist() == [[0, 1, 2], [0, 2, 3], [0, 1, 2]]
    points = sample_surface(mesh, 500, rng())
    assert np.allclose(points.xyz[:, 2], 0)
    assert 0.4 < points.xyz[:, :2].mean() < 0.6
    stl = tmp_path / "a.stl"
    corners = mesh.xyz[mesh.faces[:2]].astype("<f4")
    body = b"".join(np.zeros(3, "<f4").tobytes() + tri.tobytes() + b"\0\0" for tri in corners)
    stl.write_bytes(b"\0" * 80 + (2).to_bytes(4, "little") + body)
    assert len(read_points(stl)) == 4
    ascii_stl = tmp_path / "b.stl"
    ascii_stl.write_text(
        "solid x\n"
        + "".join("facet\nouter loop\n" + "".join(f"vertex {a} {b} {c}\n" for a, b, c in t) for t in corners)
    )
    assert len(read_points(ascii_stl)) == 4
    xyz = tmp_path / "a.xyz"
    xyz.write_text("x,y,z,r,g,b,label\n0,0,0,255,0,0,1\n1,1,1,0,255,0,2\n")
    cloud = read_points(xyz)
    assert cloud.labels.tolist() == [1, 2]
    assert cloud.colour.tolist() == [[1, 0, 0], [0, 1, 0]]
    np.save(tmp_path / "a.npy", np.ones((3, 6)))
    assert read_points(tmp_path / "a.npy").colour.tolist() == [[1, 1, 1]] * 3
    pcd = tmp_path / "a.pcd"
    head = (
        "# .PCD\nVERSION .7\nFIELDS x y z rgb\nSIZE 4 4 4 4\nTYPE F F F F\nCOUNT 1 1 1 1\nWIDTH 2\nHEIGHT 1\nPOINTS 2\n"
    )
    packed = np.array([0xFF0000, 0x0000FF], dtype=np.uint32).view(np.float32)
    rows = np.array([[0, 0, 0, packed[0]], [1, 2, 3, packed[1]]], dtype="<f4")
    pcd.write_bytes(head.encode() + b"DATA binary\n" + rows.tobytes())
    cloud = read_points(pcd)
    assert cloud.colour.tolist() == [[1, 0, 0], [0, 0, 1]]
    pcd.write_text(
        head.replace(" rgb", "").replace("4 4 4 4", "4 4 4").replace("F F F F", "F F F").replace("1 1 1 1", "1 1 1")
        + "DATA ascii\n0 0 0\n1 2 3\n"
    )
    assert (read_points(pcd).xyz + read_points(pcd).origin).tolist() == [[0, 0, 0], [1, 2, 3]]


def test_las(tmp_path):
    laspy = pytest.importorskip("laspy")
    las = laspy.create(point_format=2)
    las.header.scales, las.header.offsets = [0.001] * 3, [5e5, 4e6, 0]
    xyz = rng().uniform(size=(20, 3)) + np.array([5e5, 4e6, 100])
    las.x, las.y, las.z = xyz.T
    las.classification = np.arange(20, dtype=np.uint8) % 3
    las.red, las.green, las.blue = (np.full(20, v, dtype=np.uint16) for v in (65535, 0, 256))
    las.write(tmp_path / "a.las")
    cloud = read_points(tmp_path / "a.las")
    assert np.allclose(cloud.xyz + cloud.origin, xyz, atol=1e-3)
    assert cloud.labels.tolist() == [i % 3 for i in range(20)]
    assert cloud.colour[0, 0] == 1.0


def test_open3d_reads_and_grids_what_we_write(tmp_path):
    pytest.importorskip("open3d")
    from anisonet.clouds import to_open3d, voxel_grid
    from anisonet.pyramid import grid_subsample

    xyz = rng().uniform(size=(300, 3))
    write_ply(tmp_path / "a.ply", xyz, {c: np.full(300, 10) for c in ("red", "green", "blue")})
    cloud = read_points(tmp_path / "a.ply")
    assert np.allclose(np.asarray(to_open3d(cloud).points), xyz, atol=1e-6)
    import open3d

    theirs = open3d.io.read_point_cloud(str(tmp_path / "a.ply"))
    assert np.allclose(np.asarray(theirs.points), xyz, atol=1e-6)
    compressed = tmp_path / "a.pcd"
    open3d.io.write_point_cloud(str(compressed), theirs, compressed=True)
    again = read_points(compressed)
    assert np.allclose(again.xyz + again.origin, xyz, atol=1e-6)
    kept = grid_subsample(torch.from_numpy(cloud.xyz), 0.2).numpy()
    ours = {tuple(row) for row in np.floor(cloud.xyz[kept].astype(float) / 0.2).astype(int)}
    assert {tuple(row) for row in voxel_grid(cloud, 0.2)} == ours


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.foo", b"", "ends in .ply"),
        ("a.obj", b"v 0 0 zero\n", "line 1"),
        ("a.obj", b"v 0 0 0\nf 1 2 3\n", "names vertex 3 of 1"),
        ("a.stl", b"xyz", "neither ascii nor"),
        ("a.xyz", b"1 2\n", "at least x y z"),
        ("a.bin", b"12345", "rows of four float32"),
        ("a.pcd", b"VERSION .7\n", "ends without DATA"),
        ("a.xyz", b"0 0 0\nnan 0 0\n0 0 1\n", "1 points with NaN or inf, the first at index 1"),
    ],
)
def test_broken_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_points(path)


def test_invalid_points_are_dropped_on_request(tmp_path):
    path = tmp_path / "a.xyz"
    path.write_text("0 0 0\nnan 0 0\n0 0 1\n")
    with pytest.warns(UserWarning, match="dropped 1 points"):
        assert len(read_points(path, drop_invalid=True)) == 2
    with pytest.raises(InputError, match="at least one point, got none"):
        make_cloud(np.zeros((0, 3)))


def test_open3d_draws_without_a_display(tmp_path):
    pytest.importorskip("open3d")
    from anisonet.viz import show_open3d

    cloud = make_cloud(rng().uniform(size=(500, 3)))
    try:
        path = show_open3d(cloud, np.arange(500) % 3, tmp_path / "view.png")
    except ImportError as error:  # no Vulkan on this machine: the message says what to install
        if "libvulkan1" not in str(error):
            raise
        pytest.skip(str(error))
    assert path.stat().st_size > 1000


def test_missing_open3d_names_the_extra_or_the_library(monkeypatch):
    import builtins
    import sys

    from anisonet import clouds

    monkeypatch.setitem(sys.modules, "open3d", None)
    with pytest.raises(ImportError, match=r"papershelf-anisonet\[open3d\]"):
        clouds.load_open3d()
    monkeypatch.undo()
    real = builtins.__import__

    def broken(name, *args, **kwargs):
        if name == "open3d":
            raise OSError("libGL.so.1: cannot open shared object file")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(clouds, "require", lambda *_: None)
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(ImportError, match=r"libGL\.so\.1.*apt-get install libgl1"):
        clouds.load_open3d()


# --- layouts -------------------------------------------------------------------------------------------------------


def test_s3dis_in_both_layouts(tmp_path):
    for area in (1, 5):
        folder = tmp_path / f"Area_{area}" / "office_1" / "Annotations"
        folder.mkdir(parents=True)
        (folder / "chair_1.txt").write_text("1 1 1 255 0 0\n2 2 2 0 0 255\n")
        (folder / "wall_1.txt").write_bytes(b"0 0 0 10 10 10\n3.0\x10 3 3 10 10 10\n")  # the release's illegal byte
        (folder / "stairs_1.txt").write_text("4 4 4 1 1 1\n")
    room = tmp_path / "Area_2" / "hall"
    room.mkdir(parents=True)
    np.save(room / "coord.npy", np.eye(3, dtype=np.float32))
    np.save(room / "color.npy", np.full((3, 3), 128, dtype=np.uint8))
    np.save(room / "segment.npy", np.array([[0], [1], [2]]))
    found = data.load(str(tmp_path))
    assert (found.name, len(found.train), len(found.test)) == ("s3dis", 2, 1)
    assert found.test[0].labels.tolist() == [8, 8, 12, 2, 2]  # file names in order: chair, stairs, wall
    assert (found.test[0].xyz + found.test[0].origin)[4].tolist() == [3, 3, 3]
    assert found.train[1].labels.tolist() == [0, 1, 2]
    (tmp_path / "Area_1" / "office_1" / "Annotations" / "wall_1.txt").write_text("0 0 0 10 10 10\n1 2 three 1 1 1\n")
    with pytest.raises(InputError, match=r"office_1/Annotations/wall_1\.txt: row 2: expected x y z r g b"):
        data.load(str(tmp_path))


def test_scannet(tmp_path):
    for scene in ("scene0000_00", "scene0001_00"):
        folder = tmp_path / "scans" / scene
        folder.mkdir(parents=True)
        (folder / f"{scene}_vh_clean_2.ply").write_bytes(
            ply_bytes("binary_little_endian").replace(b"int label", b"int other")
        )
        write_ply(folder / f"{scene}_vh_clean_2.labels.ply", XYZ, {"label": np.array([1, 39, 13, 0])})
    (tmp_path / "scannetv2_train.txt").write_text("scene0000_00\n")
    (tmp_path / "scannetv2_val.txt").write_text("scene0001_00\n")
    found = data.load(str(tmp_path))
    assert found.name == "scannet"
    assert found.train[0].labels.tolist() == [0, 19, -1, -1]
    assert np.allclose(np.linalg.norm(found.train[0].normals, axis=1), 1)
    (tmp_path / "scannetv2_val.txt").write_text("scene0009_00\n")
    with pytest.raises(InputError, match="1 scenes are not there, the first is scene0009_00"):
        data.load(str(tmp_path))


def test_object_sets(tmp_path):
    h5py = pytest.importorskip("h5py")
    clouds = rng().normal(size=(3, 50, 3)).astype(np.float32)
    for name in ("training", "test"):
        with h5py.File(tmp_path / f"{name}_objectdataset_augmentedrot_scale75.h5", "w") as file:
            file["data"], file["label"] = clouds, np.array([0, 14, 3])
    found = data.load(str(tmp_path))
    assert (found.name, [c.label for c in found.test], found.up) == ("scanobjectnn", [0, 14, 3], 1)
    assert np.allclose(found.test[1].xyz + found.test[1].origin, clouds[1], atol=1e-6)
    root = tmp_path / "m40"
    root.mkdir()
    for name in ("train0", "test0"):
        with h5py.File(root / f"ply_data_{name}.h5", "w") as file:
            file["data"], file["label"] = clouds, np.array([[1], [2], [39]])
    (root / "shape_names.txt").write_text("\n".join(f"s{i}" for i in range(40)))
    found = data.load(str(root))
    assert (found.name, [c.label for c in found.train], found.classes[2]) == ("modelnet40", [1, 2, 39], "s2")
    with h5py.File(root / "ply_data_train0.h5", "w") as file:
        file["data"] = clouds
    with pytest.raises(InputError, match="keys data and label, label is missing"):
        data.load(str(root))


def test_modelnet_text_and_shapenet_parts(tmp_path):
    root = tmp_path / "modelnet40_normal_resampled"
    (root / "chair").mkdir(parents=True)
    (root / "modelnet40_shape_names.txt").write_text("airplane\nchair\n")
    table = rng().normal(size=(20, 6))
    np.savetxt(root / "chair" / "chair_0001.txt", table, delimiter=",")
    for name in ("train", "test"):
        (root / f"modelnet40_{name}.txt").write_text("chair_0001\n")
    found = data.load(str(root))
    assert found.train[0].label == 1
    assert np.allclose(found.train[0].normals, table[:, 3:], atol=1e-6)
    parts = tmp_path / "parts"
    (parts / "02691156").mkdir(parents=True)
    (parts / "train_test_split").mkdir()
    (parts / "synsetoffset2category.txt").write_text("Bag 02773838\nAirplane 02691156\n")
    np.savetxt(parts / "02691156" / "abc.txt", np.c_[table, np.arange(20) % 4])
    for name in ("train", "test"):
        (parts / "train_test_split" / f"shuffled_{name}_file_list.json").write_text(
            json.dumps(["shape_data/02691156/abc"])
        )
    found = data.load(str(parts))
    assert (found.name, found.train[0].label) == ("shapenetpart", 1)
    assert found.train[0].labels.tolist() == [i % 4 for i in range(20)]


def test_semantickitti_and_meshes(tmp_path):
    for sequence in ("00", "08"):
        folder = tmp_path / "sequences" / sequence
        (folder / "velodyne").mkdir(parents=True)
        (folder / "labels").mkdir()
        rng().normal(size=(5, 4)).astype("<f4").tofile(folder / "velodyne" / "000000.bin")
        np.array([10, 252 | 7 << 16, 0, 81, 48], dtype="<u4").tofile(folder / "labels" / "000000.label")
    found = data.load(str(tmp_path))
    assert (found.name, len(found.train), len(found.test)) == ("semantickitti", 1, 1)
    assert found.test[0].labels.tolist() == [0, 0, -1, 18, 10]
    assert found.test[0].instances.tolist() == [0, 7, 0, 0, 0]
    np.array([1], dtype="<u4").tofile(tmp_path / "sequences" / "08" / "labels" / "000000.label")
    with pytest.raises(InputError, match="expected 5 labels, got 1"):
        data.load(str(tmp_path))
    meshes = tmp_path / "assets"
    meshes.mkdir()
    (meshes / "cup.obj").write_text("v 0 0 0\nv 2 0 0\nv 0 2 0\nf 1 2 3\n")
    found = data.load(str(meshes))
    assert (found.name, len(found.train), found.classes) == ("liberomesh", 3, ("cup",))


def test_embedded_scenes_and_objects():
    scenes = data.mw_scenes()
    assert (len(scenes.train), len(scenes.test)) == (198, 66)
    assert not {c.name.split(":")[0] for c in scenes.train} & {c.name.split(":")[0] for c in scenes.test}
    labels = np.concatenate([c.labels for c in scenes.train + scenes.test])
    assert np.allclose(np.bincount(labels) / len(labels), [0.41, 0.30, 0.18, 0.05, 0.07], atol=0.03)
    assert all(len(c) == 1024 for c in scenes.train)
    objects = data.mw_objects()
    assert len(objects.classes) == 32
    assert len(objects.test) == 32 * 4
    again = data.mw_objects()
    assert np.array_equal(objects.train[5].xyz, again.train[5].xyz)
    assert [n for n, _, _ in data.summary(objects)] == list(objects.classes)
    with pytest.raises(InputError, match="expected mw-scenes, mw-objects or a folder"):
        data.load("nothing")
    with pytest.raises(ValueError, match="clutter"):
        data.mw_objects(clutter=1.0)


# --- metrics and batches -------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000))
def test_metrics_are_sklearn_s(seed):
    truth, found = rng(seed).integers(0, 4, (2, 300))
    meter = ConfusionMeter(5)
    for part in range(3):
        meter.update(found[part::3], truth[part::3])
    assert np.array_equal(meter.matrix, confusion_matrix(truth, found, labels=range(5)))
    assert np.allclose(meter.iou()[:4], jaccard_score(truth, found, average=None, labels=range(4)))
    assert math.isnan(meter.iou()[4])
    assert meter.accuracy == pytest.approx(float((truth == found).mean()))
    low, high = meter.interval(rng())[1:]
    assert low <= meter.miou <= high
    ignored = ConfusionMeter(4)
    ignored.update(found, np.where(truth == 3, -1, truth))
    assert ignored.matrix.sum() == (truth != 3).sum()


def test_labels_outside_the_classes_are_listed():
    with pytest.raises(ValueError, match=r"labels from 0 to 2 \(or -1 to ignore\), got 3, 9"):
        ConfusionMeter(3).update(np.zeros(4, int), np.array([0, 3, 9, -1]))
    with pytest.raises(ValueError, match="one shape"):
        ConfusionMeter(3).update(np.zeros(4, int), np.zeros(5, int))


def test_features_and_what_they_need():
    cloud = make_cloud(rng().uniform(size=(5, 3)) + 7, colour=np.full((5, 3), 100), scalars={"f0": np.arange(5.0)})
    table = features(cloud, ("r", "height", "one", "f0"))
    assert np.allclose(table[:, 0], 100 / 250)
    assert table[:, 1].min() == 0
    assert table[:, 3].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match=r"expected 4 features \(r,g,b,height\).*no colours; pass --no-colour"):
        features(make_cloud(np.eye(3)), ("r", "g", "b", "height"))
    with pytest.raises(InputError, match="wants normals"):
        features(cloud, ("nx",))
    with pytest.raises(InputError, match="no feature 'foo'"):
        features(cloud, ("foo",))
    half = make_cloud(np.eye(3), colour=np.full((3, 3), 0.5))  # colours from 0 to 1 stay
    assert half.colour[0, 0] == 0.5


def test_augmentation_keeps_what_it_should():
    cloud = make_cloud(rng().uniform(size=(50, 3)), labels=np.arange(50), normals=np.tile([0.0, 0.0, 1.0], (50, 1)))
    out = augmented(cloud, Augmentation(scale=(1.0, 1.0), flip=True), rng())
    before, after = (np.linalg.norm(c.xyz[:, None] - c.xyz[None], axis=2) for c in (cloud, out))
    assert np.allclose(before, after, atol=1e-5)
    assert np.allclose(out.normals, [0, 0, 1])
    assert np.allclose(out.xyz[:, 2], cloud.xyz[:, 2], atol=1e-6)
    moved = elastic_distortion(cloud.xyz.astype(float), 0.2, 0.1, rng())
    assert 0 < np.abs(moved - cloud.xyz).max() < 0.3
    part = crop(cloud, 20, rng())
    assert len(part) == 20
    assert (np.diff(part.labels) > 0).all()  # the file's order stays


# --- training ------------------------------------------------------------------------------------------------------


def few_scenes(n=4):
    return data.mw_scenes().train[: 6 * n : 6]


def small(seed=0, **changes):
    with seeded(seed, torch.device("cpu")):
        return network(
            "seg_tiny",
            dims=(8, 16),
            depths=(1, 1),
            ks=(6, 6),
            grid_sizes=(0.2,),
            coord_std=(1.0, 2.0),
            head_dim=16,
            heads=4,
            drop_path=0.1,
            **changes,
        )


def test_a_resumed_run_is_the_same_run_bit_by_bit(tmp_path):
    recipe = Recipe(steps=6, batch=2, thin=128, save_every=3, bn_batches=2)
    whole = Trainer(small(), few_scenes(), recipe)
    history = whole.run()
    broken = Trainer(small(), few_scenes(), recipe, tmp_path)
    for _ in range(4):
        value = broken.train_step()
        broken.history.step.append(broken.step)
        broken.history.loss.append(value)
        broken.history.lr.append(0.0)
        if broken.step == 3:
            broken.save()  # killed a step later
    again = Trainer(small(seed=9), few_scenes(), recipe, tmp_path)
    assert again.resume()
    assert again.step == 3
    assert again.run().loss == history.loss
    for a, b in zip(whole.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(InputError, match=r"made with lr = 0\.004, asked for 0\.1"):
        Trainer(small(), few_scenes(), Recipe(steps=6, batch=2, lr=0.1), tmp_path).resume()


def test_training_leaves_the_global_state_alone_and_depends_on_the_seed():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = Trainer(small(), few_scenes(), Recipe(steps=2, batch=2, thin=64, bn_batches=0)).run().loss
    assert torch.equal(torch.get_rng_state(), before)
    assert one == Trainer(small(), few_scenes(), Recipe(steps=2, batch=2, thin=64, bn_batches=0)).run().loss
    assert one != Trainer(small(), few_scenes(), Recipe(steps=2, batch=2, thin=64, bn_batches=0, seed=1)).run().loss


def test_file_order_is_shuffled_unless_kept():
    cloud = make_cloud(rng().uniform(size=(400, 3)), labels=np.repeat(np.arange(4), 100))
    kept = Trainer(small(), [cloud], Recipe(batch=1, file_order="keep")).chosen(0)[0].labels
    mixed = Trainer(small(), [cloud], Recipe(batch=1)).chosen(0)[0].labels
    assert (np.diff(kept) >= 0).all()
    assert (np.diff(mixed) != 0).mean() > 0.5


def test_rates_rise_and_fall():
    cosine = Recipe(steps=100, lr=1.0, schedule="cosine", warmup=0.1)
    rates = [learning_rate(cosine, t) for t in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(1.0)
    assert rates[-1] < 2e-3
    assert recipe_for("seg_s3dis", clouds=204).steps == 100 * 30 * 204 // 8
    assert recipe_for("seg_s3dis").lr == 6e-3
    assert recipe_for("cls_scanobjectnn", clouds=11416).batch == 32


def test_decay_spares_vectors():
    groups = Trainer(small(), few_scenes(1), Recipe()).optimizer.param_groups
    assert {p.ndim for p in groups[1]["params"]} == {1}
    assert groups[1]["weight_decay"] == 0
    assert min(p.ndim for p in groups[0]["params"]) == 2


@pytest.mark.parametrize(
    ("clouds", "message"),
    [
        ([], "at least one training cloud"),
        ([make_cloud(np.eye(3))], "expected labels, got none"),
        ([make_cloud(np.eye(3), labels=np.array([0, 1, 77]))], "got 77"),
    ],
)
def test_bad_training_data(clouds, message):
    with pytest.raises(ValueError, match=message):
        Trainer(small(), clouds, Recipe())


def test_bad_recipes():
    with pytest.raises(ValueError, match="file_order"):
        Recipe(file_order="sorted")
    with pytest.raises(ValueError, match="at least one step"):
        Recipe(steps=0)


def test_accelerate_gives_the_same_loss():
    pytest.importorskip("accelerate")
    one = Trainer(small(), few_scenes(), Recipe(steps=2, batch=2, thin=64, bn_batches=0)).run().loss
    two = Trainer(small(), few_scenes(), Recipe(steps=2, batch=2, thin=64, bn_batches=0, distributed=True)).run().loss
    assert one == pytest.approx(two, rel=1e-5)


def test_one_vote_is_plain_evaluation_and_all_points_get_a_label():
    net = small().eval()
    cloud = few_scenes(1)[0]
    batch = collate([cloud], net.cfg)
    with torch.no_grad():
        plain = net(net.build_pyramid(batch.xyz, None, pick="first"), batch.feats)
    assert np.allclose(vote(net, cloud, 1), plain.numpy(), atol=1e-5)
    gridded = small(grid=0.1).eval()
    assert vote(gridded, cloud, Votes(picks=3)).shape == (1024, 5)
    assert vote(net, cloud, 2).shape == (1024, 5)
    assert vote(net, cloud, 1, max_points=300).shape == (1024, 5)
    versions = PRESET_VOTES["seg_scannet"].versions(0.02)
    assert len(versions) == len(set(versions)) == 4 * 4 * 3  # picks x turns x scales
    assert len(Votes.of(3, 0.0).versions(0.0)) == len(Votes.of(3, 0.1).versions(0.1)) == 3
    with pytest.raises(ValueError, match="at least one vote"):
        vote(net, cloud, 0)
    meter = evaluate(gridded, [cloud])
    assert meter.matrix.sum() == 1024  # not the sub-sampled points


def test_tiny_classifier_learns_shapes():
    """Spheres, boxes, tubes, tori: the spec asks for 0.93 on 96 fresh clouds."""
    train, fresh = data.shapes(240, 128, rng(1)), data.shapes(96, 128, rng(2))
    with seeded(0, torch.device("cpu")):
        net = network("cls_tiny", depths=(1, 1, 1), ks=(8, 8, 8))
    trainer = Trainer(net, train, recipe_for("cls_tiny", augmentation=Augmentation(rotate=True, scale=(1.0, 1.0))))
    trainer.run()
    assert evaluate(net, fresh).accuracy >= 0.93


# --- audit ---------------------------------------------------------------------------------------------------------


def test_leakage_of_sorted_and_of_shuffled_labels():
    labels = np.repeat(np.arange(4), 256)
    found = audit.label_leakage(labels, rng(), permutations=50)
    assert found.run_length == 256
    assert found.information == pytest.approx(2.0)
    assert found.entropy == pytest.approx(2.0)
    assert found.p_value == pytest.approx(1 / 51)
    mixed = rng(1).permutation(labels)
    free = audit.label_leakage(mixed, rng(), permutations=200)
    assert free.run_length_ratio == pytest.approx(1, abs=0.1)
    assert free.p_value > 0.01
    parts = np.arange(1024) * 32 // 1024
    assert free.information == pytest.approx(mutual_info_score(mixed, parts) / math.log(2))
    with pytest.raises(ValueError, match="at least two labelled points"):
        audit.label_leakage(np.array([-1, 3]), rng())


def test_a_recurrence_reads_labels_off_the_file_s_order():
    draw = rng(3)
    labels = [np.repeat(np.arange(5), draw.multinomial(256, draw.dirichlet(np.full(5, 3.0)))) for _ in range(48)]
    found = audit.leakage_probe(labels, steps=120)
    assert found.file_order > 0.5
    assert found.fed_shuffled < 0.25
    assert found.shuffled < 0.25
    with pytest.raises(ValueError, match="at least four clouds"):
        audit.leakage_probe(labels[:3])


def test_order_bias_is_zero_without_recurrence():
    clouds = few_scenes(2)
    rows = audit.order_bias(small(gisa_full=0, gisa_coarse=0), clouds, ("identity", "random", "hilbert"))
    assert [r.flips for r in rows] == [0, 0, 0]
    assert max(r.divergence for r in rows) < 1e-9
    rows = audit.order_bias(small(), clouds, ("identity", "random"))
    assert rows[1].logit_change > 1e-3


def test_locality_of_orders():
    xyz = torch.rand(2000, 3, generator=torch.Generator().manual_seed(0))
    hilbert, free = (
        audit.locality("hilbert", xyz),
        audit.locality("random", xyz, generator=torch.Generator().manual_seed(1)),
    )
    assert hilbert.within[32] > 5 * free.within[32]
    assert hilbert.jump < free.jump / 5
    assert free.within[128] == pytest.approx(1 - (1 - 128 / 2000) ** 2, abs=0.01)
    line = torch.arange(100.0)[:, None] * torch.tensor([[1.0, 0, 0]])
    straight = audit.locality("identity", line, k=2)
    assert straight.jump == pytest.approx(1.0)
    assert straight.within[8] == 1.0


# --- estimators ----------------------------------------------------------------------------------------------------


def test_segmenter_learns_height_and_keeps_labels(tmp_path):
    clouds = [rng(i).uniform(size=(600, 3)) for i in range(4)]
    labels = [np.where(c[:, 2] > 0.5, "top", "base") for c in clouds]
    model = PointSegmenter(steps=40, batch=2, points=0, random_state=0).fit(clouds, labels)
    assert model.classes_.tolist() == ["base", "top"]
    assert model.score(clouds[:1], labels[:1]) > 0.85
    p = model.predict_proba(clouds[:1])[0]
    assert np.allclose(p.sum(1), 1)
    assert set(model.predict(clouds[:1])[0]) <= {"base", "top"}
    model.save(tmp_path / "m")
    assert (tmp_path / "m" / "model.safetensors").is_file()
    with pytest.raises(ValueError, match="pass \\[array\\]"):
        model.predict(clouds[0])
    with pytest.raises(ValueError, match="expected 600 labels for cloud 0, got 3"):
        PointSegmenter().fit(clouds, [labels[0][:3]] * 4)
    with pytest.raises(ValueError, match="labels of 4 clouds, got 2"):
        PointSegmenter().fit(clouds, labels[:2])


def test_classifier_estimator():
    clouds = data.shapes(40, 100, rng(0))
    names = np.array(data.SHAPES)[[c.label for c in clouds]]
    model = PointClassifier(steps=50, points=100).fit([c.xyz for c in clouds], names)
    assert model.score([c.xyz for c in clouds], names) > 0.6
    assert model.get_params()["steps"] == 50
    with pytest.raises(ValueError, match="at least two clouds"):
        PointClassifier().fit([clouds[0].xyz], ["a"])
    with pytest.raises(ValueError, match=r"shape \(N, 3 \+ features\), got \(4, 2\)"):
        model.predict([np.zeros((4, 2))])
    assert isinstance(Config.of("cls_tiny"), Config)
    assert isinstance(clouds[0], Cloud)
