"""Make the two data sets that the package ships, mw-scenes and mw-objects, from an unpacked Meta-World wheel.

    pip download --no-deps metaworld==3.1.1 && unzip metaworld-3.1.1-py3-none-any.whl -d wheel
    pip install "mujoco>=3.3" && python tools/make_mw.py wheel src/anisonet/embedded/data

Meta-World (MIT licence, Farama Foundation) holds 44 robot scenes in MuJoCo's format. This script places every scene
in six
random joint configurations and samples the visible surfaces. metaworld itself is not imported, since it pins an old
MuJoCo.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import mujoco as _mujoco
import numpy as np

mujoco: Any = _mujoco  # a compiled module without type information

SCENE_POINTS, CONFIGURATIONS = 1024, 6
OBJECT_POINTS, DIRECTIONS = 4096, 12
CLASSES = ("table and walls", "robot base", "robot arm", "gripper", "task object")
FURNITURE = {"world", "tablelink", "RetainingWall"}
BASE = {"controller_box", "pedestal_feet", "torso", "pedestal", "right_arm_base_link", "head", "screen", "base"}
GRIPPER = {"right_hand", "hand", "rightclaw", "leftclaw", "rightpad", "leftpad"}


def grid_surface(function, rows: int, columns: int) -> np.ndarray:
    """Triangles, (T, 3, 3), of a surface given on the unit square."""
    u, v = np.meshgrid(np.linspace(0, 1, rows + 1), np.linspace(0, 1, columns + 1), indexing="ij")
    points = np.stack(function(u, v), -1)
    a, b, c, d = points[:-1, :-1], points[1:, :-1], points[1:, 1:], points[:-1, 1:]
    return np.concatenate([np.stack([a, b, c], 2).reshape(-1, 3, 3), np.stack([a, c, d], 2).reshape(-1, 3, 3)])


def sphere(size: np.ndarray, stretch: float = 0.0) -> np.ndarray:
    def surface(u, v):
        polar, turn = np.pi * u, 2 * np.pi * v
        z = np.cos(polar)
        return (
            size[0] * np.sin(polar) * np.cos(turn),
            size[1] * np.sin(polar) * np.sin(turn),
            size[2] * z + stretch * np.sign(z),
        )

    return grid_surface(surface, 24, 24)


def cylinder(radius: float, half: float) -> np.ndarray:
    side = grid_surface(
        lambda u, v: (radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v), half * (2 * u - 1)), 4, 32
    )
    lids = [
        grid_surface(
            lambda u, v, z=z: (u * radius * np.cos(2 * np.pi * v), u * radius * np.sin(2 * np.pi * v), z + 0 * u), 4, 32
        )
        for z in (-half, half)
    ]
    return np.concatenate([side, *lids])


def box(size: np.ndarray) -> np.ndarray:
    faces = []
    for axis in range(3):
        others = [a for a in range(3) if a != axis]
        for sign in (-1, 1):

            def face(u, v, axis=axis, others=others, sign=sign):
                out = [None, None, None]
                out[axis] = sign * size[axis] + 0 * u
                out[others[0]] = size[others[0]] * (2 * u - 1)
                out[others[1]] = size[others[1]] * (2 * v - 1)
                return tuple(out)

            faces.append(grid_surface(face, 1, 1))
    return np.concatenate(faces)


def triangles(model: mujoco.MjModel, geom: int) -> np.ndarray | None:
    """Triangles of a geom in its own frame; None for planes and unknown kinds."""
    kind, size = model.geom_type[geom], model.geom_size[geom]
    types = mujoco.mjtGeom
    if kind == types.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        first, number = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        faces = model.mesh_face[model.mesh_faceadr[mesh] : model.mesh_faceadr[mesh] + model.mesh_facenum[mesh]]
        return model.mesh_vert[first : first + number][faces].astype(float)
    if kind == types.mjGEOM_BOX:
        return box(size)
    if kind == types.mjGEOM_SPHERE:
        return sphere(np.full(3, size[0]))
    if kind == types.mjGEOM_ELLIPSOID:
        return sphere(size)
    if kind == types.mjGEOM_CYLINDER:
        return cylinder(size[0], size[1])
    if kind == types.mjGEOM_CAPSULE:
        return sphere(np.full(3, size[0]), stretch=size[1])
    return None


def areas(tri: np.ndarray) -> np.ndarray:
    return np.linalg.norm(np.cross(tri[:, 1] - tri[:, 0], tri[:, 2] - tri[:, 0]), axis=1) / 2


def sample(tri: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """n points, uniform on the surface."""
    weight = areas(tri)
    chosen = tri[rng.choice(len(tri), n, p=weight / weight.sum())]
    u, v = rng.random((2, n, 1))
    flip = u + v > 1
    u, v = np.where(flip, 1 - u, u), np.where(flip, 1 - v, v)
    return chosen[:, 0] + u * (chosen[:, 1] - chosen[:, 0]) + v * (chosen[:, 2] - chosen[:, 0])


def label_of(model: mujoco.MjModel, geom: int) -> int:
    body = model.geom_bodyid[geom]
    name, root = model.body(body).name, model.body(model.body_rootid[body]).name
    if name in FURNITURE or root in FURNITURE:
        return 0
    if name in GRIPPER:
        return 3
    if name in BASE:
        return 1
    return 2 if root in ("base", "hand") else 4


def visible_geoms(model: mujoco.MjModel) -> list[tuple[int, np.ndarray]]:
    found = []
    for geom in range(model.ngeom):
        body = model.body(model.geom_bodyid[geom]).name
        if model.geom_group[geom] == 4 or model.geom_rgba[geom, 3] == 0 or body == "mocap":
            continue
        tri = triangles(model, geom)
        if tri is not None and areas(tri).sum() > 1e-8:
            found.append((geom, tri))
    return found


def pose(model: mujoco.MjModel, rng: np.random.Generator) -> mujoco.MjData:
    """Random angles and shifts of all limited joints, within their ranges; hinges without a range take +-1 rad."""
    data = mujoco.MjData(model)
    for joint in range(model.njnt):
        if model.jnt_type[joint] in (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE):
            low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (-1.0, 1.0)
            data.qpos[model.jnt_qposadr[joint]] = rng.uniform(low, high)
    mujoco.mj_kinematics(model, data)
    return data


def placed(data: mujoco.MjData, geom: int, points: np.ndarray) -> np.ndarray:
    return points @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom]


def visible(points: np.ndarray, dense: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """z-buffer of the dense points on a 96 x 96 image along a direction."""
    side = np.cross(direction, [0.3, 0.5, 0.81])
    side /= np.linalg.norm(side)
    frame = np.stack([side, np.cross(direction, side), direction], 1)
    here, there = dense @ frame, points @ frame
    low, extent = here[:, :2].min(0), np.ptp(here[:, :2], axis=0).max()

    def pixel(x):
        return tuple(np.clip(((x[:, :2] - low) / extent * 95.999).astype(int), 0, 95).T)

    depth = np.full((96, 96), -np.inf)
    np.maximum.at(depth, pixel(here), here[:, 2])
    return there[:, 2] > depth[pixel(there)] - 0.03 * extent


def directions(n: int) -> np.ndarray:
    """Directions of the upper hemisphere, on a golden spiral."""
    z = 0.15 + 0.75 * (np.arange(n) + 0.5) / n
    turn = np.pi * (3 - 5**0.5) * np.arange(n)
    return np.stack([np.sqrt(1 - z**2) * np.cos(turn), np.sqrt(1 - z**2) * np.sin(turn), z], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path, help="folder of the unpacked wheel")
    parser.add_argument("out", type=Path, help="folder for the archives")
    given = parser.parse_args()
    files = sorted((given.wheel / "metaworld/assets/sawyer_xyz").glob("*.xml"))
    names, xyz, labels, instances, scene = [], [], [], [], []
    objects: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for number, file in enumerate(files):
        model = mujoco.MjModel.from_xml_path(str(file))
        geoms = visible_geoms(model)
        names.append(file.stem)
        size = np.sqrt([areas(tri).sum() for _, tri in geoms])
        for configuration in range(CONFIGURATIONS):
            rng = np.random.default_rng([number, configuration])
            data = pose(model, rng)
            shares = rng.multinomial(SCENE_POINTS, size / size.sum())
            parts = [placed(data, g, sample(t, n, rng)) for (g, t), n in zip(geoms, shares, strict=True)]
            xyz.append(np.concatenate(parts))
            labels.append(np.repeat([label_of(model, g) for g, _ in geoms], shares))
            instances.append(np.repeat(np.arange(len(geoms)), shares))
            scene.append(number)
        rng = np.random.default_rng([number, 99])
        data = mujoco.MjData(model)
        mujoco.mj_kinematics(model, data)
        groups: dict[str, list[tuple[int, np.ndarray]]] = {}
        for geom, tri in geoms:
            if label_of(model, geom) == 4:
                groups.setdefault(model.body(model.body_rootid[model.geom_bodyid[geom]]).name, []).append((geom, tri))
        for root, members in groups.items():
            name = root or file.stem.removeprefix("sawyer_")
            if name in objects:
                continue
            tri = np.concatenate([placed(data, g, t.reshape(-1, 3)).reshape(-1, 3, 3) for g, t in members])
            dense, points = sample(tri, 200_000, rng), sample(tri, OBJECT_POINTS, rng)
            seen = np.stack([visible(points, dense, d) for d in directions(DIRECTIONS)])
            centre = points.mean(0)
            scale = np.linalg.norm(points - centre, axis=1).max()
            objects[name] = ((points - centre) / scale, seen)
    given.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        given.out / "mw_scenes.npz",
        xyz=np.stack(xyz).astype(np.float16),
        labels=np.stack(labels).astype(np.uint8),
        instances=np.stack(instances).astype(np.uint8),
        scene=np.array(scene, dtype=np.uint8),
        names=np.array(names),
        classes=np.array(CLASSES),
    )
    np.savez_compressed(
        given.out / "mw_objects.npz",
        xyz=np.stack([p for p, _ in objects.values()]).astype(np.float16),
        seen=np.packbits(np.stack([s for _, s in objects.values()]), axis=-1),
        names=np.array(list(objects)),
    )
    shares = np.bincount(np.stack(labels).ravel(), minlength=5) / np.stack(labels).size
    print(json.dumps({"scenes": len(names), "objects": list(objects), "shares": shares.round(3).tolist()}))


if __name__ == "__main__":
    main()
