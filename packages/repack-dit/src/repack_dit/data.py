"""Images: nine embedded photographs cut into crops, digits, and the user's own in the field's formats.

Folders, ImageNet's layout, WebDataset tars, Hugging Face ``datasets`` on disk, ADM's ``.npz`` batches; and the latent
caches of the paper's code.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from papershelf import InputError, require

PHOTOGRAPHS = (
    "astronaut",
    "coffee",
    "chelsea",
    "rocket",
    "hubble_deep_field",
    "immunohistochemistry",
    "retina",
    "china",
    "flower",
)
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class Images:
    """Labelled images in memory.

    Attributes:
        pixels: uint8, (N, H, W, 3).
        labels: int64, (N,), from 0 on.
        classes: name of each label.
        skipped: files that could not be read.
    """

    pixels: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    skipped: tuple[str, ...] = ()

    def signed(self, indices: np.ndarray | None = None) -> np.ndarray:
        """Pixels in [-1, 1], float32, (n, 3, H, W), of these images or of all."""
        pixels = self.pixels if indices is None else self.pixels[indices]
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32) / 127.5 - 1


def photographs() -> dict[str, np.ndarray]:
    """The nine colour photographs that scikit-image and scikit-learn carry, uint8 (H, W, 3), short side 128."""
    import skimage.data
    from sklearn.datasets import load_sample_image

    found = {}
    for name in PHOTOGRAPHS:
        pixels = load_sample_image(f"{name}.jpg") if name in ("china", "flower") else getattr(skimage.data, name)()
        image = Image.fromarray(np.asarray(pixels)[..., :3])
        scale = 128 / min(image.size)
        size = (max(128, round(image.width * scale)), max(128, round(image.height * scale)))
        found[name] = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
    return found


def photo_crops(
    rng: np.random.Generator, *, size: int = 32, train: int = 150, held_out: int = 30
) -> tuple[Images, Images]:
    """Random square crops with flips of the nine photographs, the label being the photograph.

    Crops of the two sets come from the same photographs and may overlap.

    Args:
        rng: where the crops lie.
        size: side in pixels, at most 128.
        train: crops of each photograph for training.
        held_out: crops of each photograph kept apart.
    """
    if not 1 <= size <= 128:
        raise ValueError(f"size must lie between 1 and 128, got {size}")
    sets: list[list[np.ndarray]] = [[], []]
    for pixels in photographs().values():
        for i in range(train + held_out):
            top, left = (int(rng.integers(0, side - size + 1)) for side in pixels.shape[:2])
            crop = pixels[top : top + size, left : left + size]
            sets[i >= train].append(crop[:, ::-1] if rng.random() < 0.5 else crop)
    labels = [np.repeat(np.arange(len(PHOTOGRAPHS)), count) for count in (train, held_out)]
    first, second = (
        Images(np.array(crops, dtype=np.uint8).reshape(-1, size, size, 3), y, PHOTOGRAPHS)
        for crops, y in zip(sets, labels, strict=True)
    )
    return first, second


def digits(size: int = 32) -> Images:
    """scikit-learn's 1,797 handwritten digits, enlarged from 8 x 8 to ``size`` (nearest)."""
    from sklearn.datasets import load_digits

    found = load_digits()
    gray = (np.asarray(found.images) / 16 * 255).round().astype(np.uint8)
    large = np.array([np.asarray(Image.fromarray(g).resize((size, size), Image.Resampling.NEAREST)) for g in gray])
    return Images(np.repeat(large[..., None], 3, axis=3), found.target.astype(np.int64), tuple("0123456789"))


def centre_crop(image: Image.Image, size: int) -> np.ndarray:
    """ADM's preprocessing: halve with a box filter while the short side is >= 2 ``size``, bicubic, centre crop.

    Returns:
        uint8, (size, size, 3).
    """
    image = image.convert("RGB")
    while min(image.size) >= 2 * size:
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
    scale = size / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    pixels = np.asarray(image)
    top, left = (pixels.shape[0] - size) // 2, (pixels.shape[1] - size) // 2
    return pixels[top : top + size, left : left + size].copy()


def _checked_size(size: int, multiple: int) -> None:
    if size < multiple or size % multiple:
        below, above = max(multiple, size // multiple * multiple), (size // multiple + 1) * multiple
        raise ValueError(f"image size must be divisible by {multiple}, got {size}; nearest are {below} and {above}")


def image_folder(folder: Path, size: int, *, max_bad: int = 0, multiple: int = 8) -> Images:
    """Images under a folder; sub-folders are the classes, a flat folder is one class.

    Args:
        folder: with images, or with one folder a class.
        size: side after ADM's centre crop.
        max_bad: how many unreadable images are skipped (and named) before it is an error.
        multiple: what ``size`` must be divisible by.

    Raises:
        InputError: if there is no image or there are more than ``max_bad`` unreadable ones.
        ValueError: if the size does not fit the grid.
    """
    _checked_size(size, multiple)
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not files:
        raise InputError(f"{folder} holds no image ({', '.join(SUFFIXES)})")
    names = [p.relative_to(folder).parts[0] if len(p.relative_to(folder).parts) > 1 else "" for p in files]
    classes = tuple(sorted(set(names)))
    items = ((str(p.relative_to(folder)), _opener(p), classes.index(n)) for p, n in zip(files, names, strict=True))
    return _collect(items, size, max_bad, classes, folder)


def _opener(path: Path) -> Callable[[], Image.Image]:
    return lambda: Image.open(path)


def _collect(
    items: Iterable[tuple[str, Callable[[], Image.Image], int]],
    size: int,
    max_bad: int,
    classes: tuple[str, ...],
    origin: Path,
) -> Images:
    """Crops of (name, opener, label); unreadable ones are skipped and named, at most ``max_bad``."""
    pixels, labels, bad = [], [], []
    for name, opener, label in items:
        try:
            with opener() as image:
                pixels.append(centre_crop(image, size))
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            bad.append(f"{name} ({error})")
            if len(bad) > max_bad:
                raise InputError(f"unreadable image {'; '.join(bad)}; --max-bad allows {max_bad}") from error
            continue
        labels.append(label)
    if not pixels:
        raise InputError(f"no image of {origin} could be read{': ' if bad else ''}{'; '.join(bad)}")
    return Images(np.array(pixels), np.array(labels, dtype=np.int64), classes, tuple(bad))


# --- the field's formats -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageFiles:
    """Labelled image files, opened when they are asked for: for sets that do not fit into memory.

    Attributes:
        files: the images.
        labels: int64, (N,).
        classes: name of each label.
        size: side that they are cropped to.
        skipped: files that could not be read.
    """

    files: tuple[Path, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    size: int
    skipped: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        """Pixels uint8 (size, size, 3) and label.

        Raises:
            InputError: naming a file that cannot be read.
        """
        try:
            with Image.open(self.files[i]) as image:
                return centre_crop(image, self.size), int(self.labels[i])
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise InputError(f"unreadable image {self.files[i]} ({error})") from error

    def signed(self, indices: np.ndarray | None = None) -> np.ndarray:
        """Pixels in [-1, 1], float32, (n, 3, H, W), of these images or of all, decoded by eight threads.

        Raises:
            InputError: naming a file that has become unreadable.
        """
        from concurrent.futures import ThreadPoolExecutor

        rows = range(len(self.files)) if indices is None else [int(i) for i in indices]
        with ThreadPoolExecutor(8) as pool:
            pixels = np.stack([image for image, _ in pool.map(self.__getitem__, rows)])
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32) / 127.5 - 1

    def read(self, max_bad: int = 0) -> Images:
        """All of them, into memory."""
        items = ((p.name, _opener(p), int(y)) for p, y in zip(self.files, self.labels, strict=True))
        return _collect(items, self.size, max_bad, self.classes, self.files[0].parent)


def image_files(folder: Path, size: int, *, max_bad: int = 0, multiple: int = 8) -> ImageFiles:
    """Like :func:`image_folder`, without holding the pixels: headers are checked now, pixels are read later."""
    _checked_size(size, multiple)
    found = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not found:
        raise InputError(f"{folder} holds no image ({', '.join(SUFFIXES)})")
    good, bad = [], []
    for path in found:
        try:
            with Image.open(path) as image:
                image.verify()
            good.append(path)
        except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
            bad.append(f"{path.relative_to(folder)} ({error})")
            if len(bad) > max_bad:
                raise InputError(f"unreadable image {'; '.join(bad)}; --max-bad allows {max_bad}") from error
    if not good:
        raise InputError(f"no image under {folder} could be read: {'; '.join(bad)}")
    parts = [path.relative_to(folder).parts for path in good]
    names = [part[0] if len(part) > 1 else "" for part in parts]
    classes = tuple(sorted(set(names)))
    labels = np.array([classes.index(name) for name in names], dtype=np.int64)
    return ImageFiles(tuple(good), labels, classes, size, tuple(bad))


def imagenet(folder: Path, size: int, *, multiple: int = 8) -> tuple[ImageFiles, ImageFiles]:
    """Training and validation images of ImageNet's layout: ``train/CLASS/*`` and ``val/CLASS/*``.

    Raises:
        InputError: if a part is missing, the validation images are not sorted into classes, or have other classes.
    """
    _checked_size(size, multiple)
    folder = Path(folder)
    classes: tuple[str, ...] = ()
    parts = []
    for split in ("train", "val"):
        home = folder / split
        names = sorted(p.name for p in home.iterdir() if p.is_dir()) if home.is_dir() else []
        if not names:
            raise InputError(f"expected {home} with one folder a class, as in ImageNet's layout")
        classes = classes or tuple(names)
        unknown = sorted(set(names) - set(classes))
        if unknown:
            raise InputError(f"{home} has classes that {folder / 'train'} has not: {', '.join(unknown[:5])}")
        files = [p for n in names for p in sorted((home / n).iterdir()) if p.suffix.lower() in SUFFIXES]
        if not files:
            raise InputError(f"{home} holds no image ({', '.join(SUFFIXES)})")
        labels = np.array([classes.index(p.parent.name) for p in files], dtype=np.int64)
        parts.append(ImageFiles(tuple(files), labels, classes, size))
    return parts[0], parts[1]


def _tar_samples(path: Path, limit: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """(key, extension -> content) of a WebDataset tar, in order; nothing is written to disk."""
    key, sample = "", {}
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                if member.isdir():
                    continue
                if not member.isfile():
                    raise InputError(f"{path.name} holds the link or device {member.name!r}; only files are read")
                if member.size > limit:
                    raise InputError(f"{path.name}: {member.name} has {member.size} bytes, more than {limit}")
                base, _, extension = member.name.rpartition("/")[2].partition(".")
                found = f"{member.name.rpartition('/')[0]}/{base}"
                if found != key and sample:
                    yield key, sample
                    sample = {}
                content = archive.extractfile(member)
                key, sample[extension.lower()] = found, content.read() if content else b""
    except tarfile.TarError as error:
        raise InputError(f"{path} is damaged or no tar archive: {error}") from error
    if sample:
        yield key, sample


def _label(sample: dict[str, bytes], where: str) -> int:
    """Of ``.cls`` (a number), or of ``label`` or ``cls`` in ``.json``; 0 where there is neither."""
    try:
        if "cls" in sample:
            return int(sample["cls"].decode())
        table = json.loads(sample.get("json", b"{}"))
        return int(next((table[name] for name in ("label", "cls") if name in table), 0))
    except (ValueError, TypeError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: the label is no whole number ({error})") from error


def webdataset(
    tars: Iterable[Path], size: int, *, max_bad: int = 0, multiple: int = 8, limit: int = 256 * 2**20
) -> Images:
    """Images of WebDataset shards: files of one key belong together, ``.cls`` or ``.json`` holds the label.

    Args:
        tars: the shards, also compressed; read as streams.
        size: side of the crops.
        max_bad: unreadable images that are skipped.
        multiple: what ``size`` must be divisible by.
        limit: bytes that one member may have.

    Raises:
        InputError: for damaged shards, links, oversized members, negative labels, or no images.
    """
    _checked_size(size, multiple)
    paths = sorted(Path(p) for p in tars)
    suffixes = {s.removeprefix(".") for s in SUFFIXES}

    def items() -> Iterator[tuple[str, Callable[[], Image.Image], int]]:
        for path in paths:
            if not path.is_file():
                raise InputError(f"no file {path}")
            for key, sample in _tar_samples(path, limit):
                for content in (sample[e] for e in sample if e.rpartition(".")[2] in suffixes):
                    label = _label(sample, f"{path.name}:{key}")
                    if label < 0:
                        raise InputError(f"{path.name}:{key}: expected a label >= 0, got {label}")
                    yield f"{path.name}:{key}", lambda content=content: Image.open(io.BytesIO(content)), label
                    break

    found = _collect(items(), size, max_bad, (), paths[0] if paths else Path("no shard"))
    classes = tuple(str(i) for i in range(int(found.labels.max()) + 1))
    return Images(found.pixels, found.labels, classes, found.skipped)


def huggingface(folder: Path, size: int, *, split: str = "train", max_bad: int = 0, multiple: int = 8) -> Images:
    """Images of a Hugging Face ``datasets`` folder: ``save_to_disk`` (arrow), parquet files, or an image folder.

    Nothing is downloaded and no loading script runs.

    Args:
        folder: what ``Dataset.save_to_disk`` wrote, a folder with ``.parquet`` files, or an image folder.
        split: of a folder with several.
        size: side of the crops.
        max_bad: unreadable images that are skipped.
        multiple: what ``size`` must be divisible by.

    Raises:
        InputError: if it cannot be read, or has no column of images.
        MissingExtra: if ``datasets`` is not installed.
    """
    _checked_size(size, multiple)
    library: Any = require("datasets", "papershelf-repack-dit[datasets]")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    with tempfile.TemporaryDirectory() as cache:
        try:
            table = _hugging_table(library, folder, split, cache)
            columns = [n for n, f in table.features.items() if isinstance(f, library.Image)]
            if not columns:
                raise InputError(f"{folder} has no column of images, only {', '.join(table.features)}")
            labels = [n for n, f in table.features.items() if isinstance(f, library.ClassLabel)]
            labels += [n for n in ("label", "labels", "cls") if n in table.features and n not in labels]
            y = np.array(table[labels[0]], dtype=np.int64) if labels else np.zeros(len(table), dtype=np.int64)
            names = getattr(table.features[labels[0]], "names", None) if labels else [""]
            classes = tuple(names or (str(i) for i in range(int(y.max()) + 1)))
            raw = table.select_columns(columns[:1]).cast_column(columns[0], library.Image(decode=False))
            items = ((f"row {i}", _row_opener(raw[i][columns[0]]), int(y[i])) for i in range(len(raw)))
            return _collect(items, size, max_bad, classes, folder)
        except InputError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{folder} cannot be read as a Hugging Face dataset: {reason}") from error


def _hugging_table(library: Any, folder: Path, split: str, cache: str) -> Any:
    if (folder / "dataset_dict.json").is_file() or (folder / "dataset_info.json").is_file():
        found = library.load_from_disk(str(folder))
        if not isinstance(found, library.DatasetDict):
            return found
    else:
        parquet = sorted(str(p) for p in folder.rglob("*.parquet"))
        if not parquet:
            found = library.load_dataset("imagefolder", data_dir=str(folder), cache_dir=cache)
        else:
            named = [p for p in parquet if re.match(rf"{re.escape(split)}[-.]", Path(p).name)]
            return library.Dataset.from_parquet(named or parquet, cache_dir=cache)
    if split not in found:
        raise InputError(f"{folder} has the splits {', '.join(found)}, got {split!r}")
    return found[split]


def _row_opener(cell: dict[str, Any]) -> Callable[[], Image.Image]:
    if cell["bytes"] is not None:
        return lambda: Image.open(io.BytesIO(cell["bytes"]))
    return lambda: Image.open(cell["path"])


def adm_batch(path: Path, size: int | None = None) -> Images:
    """Images of an ADM ``.npz`` batch: ``arr_0`` uint8 (N, H, W, 3) and, where there are any, labels ``arr_1`` (N,).

    Args:
        path: the file.
        size: side that they are cropped to; None takes them as they are.

    Raises:
        InputError: if it cannot be read, holds objects or other shapes.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no file {path}")
    try:
        with np.load(path, allow_pickle=False) as opened:
            pixels = opened["arr_0"]
            labels = opened["arr_1"] if "arr_1" in opened.files else np.zeros(len(pixels))
    except Exception as error:
        raise InputError(f"{path} is no ADM batch with arr_0: {error}") from error
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3 or not len(pixels):
        raise InputError(f"{path}: expected arr_0 of uint8 (N, H, W, 3), got {pixels.dtype} {pixels.shape}")
    if labels.shape != (len(pixels),) or (labels < 0).any() or (labels != np.floor(labels)).any():
        raise InputError(f"{path}: expected {len(pixels)} labels >= 0 in arr_1, got shape {labels.shape}")
    if size is not None:
        pixels = np.array([centre_crop(Image.fromarray(image), size) for image in pixels])
    labels = labels.astype(np.int64)
    return Images(pixels, labels, tuple(str(i) for i in range(int(labels.max()) + 1)))


class OfficialLatents:
    """A latent cache of the paper's code: ``latents_rank*_shard*.safetensors`` and ``latents_stats.pt``.

    Shards stay on disk; rows are read when they are asked for.

    Attributes:
        mean: (1, d, 1, 1).
        std: (1, d, 1, 1).
        shape: (d, h, w) of a latent.

    Raises:
        InputError: if shards or statistics are missing, damaged, hold code, or do not fit each other.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        from repack_dit.convert import load_weights

        pattern = re.compile(r"latents_rank(\d+)_shard(\d+)\.safetensors")
        ranked = [(m, p) for p in Path(folder).glob("*.safetensors") if (m := pattern.fullmatch(p.name))]
        paths = [p for _, p in sorted(ranked, key=lambda pair: (int(pair[0][1]), int(pair[0][2])))]
        if not paths:
            raise InputError(f"{folder} holds no latents_rank*_shard*.safetensors")
        self._shards: list[Any] = []
        counts, self.shape = [], ()
        for path in paths:
            try:
                shard: Any = safe_open(path, "pt")
                sizes = {name: shard.get_slice(name).get_shape() for name in ("latents", "latents_flip", "labels")}
            except (SafetensorError, OSError) as error:
                raise InputError(f"{path} is damaged or no shard of latents: {error}") from error
            self.shape = self.shape or tuple(sizes["latents"][1:])
            rows = sizes["labels"][0]
            if not (tuple(sizes["latents"]) == tuple(sizes["latents_flip"]) == (rows, *self.shape)):
                raise InputError(f"{path} holds {sizes}, expected {rows} latents of shape {self.shape} and their flips")
            self._shards.append(shard)
            counts.append(rows)
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        statistics = load_weights(Path(folder) / "latents_stats.pt")
        d = self.shape[0]
        if not all(name in statistics and statistics[name].numel() == d for name in ("mean", "std")):
            raise InputError(f"{folder}/latents_stats.pt: expected mean and std of {d} channels")
        self.mean, self.std = (statistics[name].reshape(1, d, 1, 1) for name in ("mean", "std"))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Latent and its flip, not normalised, (d, h, w), and label."""
        if not 0 <= i < len(self):
            raise IndexError(f"expected an index in [0, {len(self)}), got {i}")
        s = int(np.searchsorted(self._starts, i, side="right")) - 1
        row, shard = i - int(self._starts[s]), self._shards[s]
        z, flip = (shard.get_slice(name)[row : row + 1][0] for name in ("latents", "latents_flip"))
        return z, flip, int(shard.get_slice("labels")[row : row + 1][0])

    def read(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All latents and flips (N, d, h, w), normalised, and labels (N,)."""
        z, flip, labels = (
            torch.cat([shard.get_tensor(name) for shard in self._shards])
            for name in ("latents", "latents_flip", "labels")
        )
        return (z - self.mean) / self.std, (flip - self.mean) / self.std, labels.flatten().long()


# --- one door ------------------------------------------------------------------------------------------------------


def load_images(data: str, size: int, rng: np.random.Generator, *, max_bad: int = 0) -> tuple[Images, Images]:
    """Training and held-out images of ``photos``, ``digits`` or the user's own, which are told apart by their files.

    A folder with ``train`` and ``val`` is ImageNet's layout; of everything else every sixth image is held out: a folder
    of images, of ``.tar`` shards, of parquet files or written by ``save_to_disk``; a ``.tar``; an ADM ``.npz``.
    """
    _checked_size(size, 8)
    if data == "photos":
        return photo_crops(rng, size=size)
    path = Path(data)
    if (path / "train").is_dir() and (path / "val").is_dir():
        first, second = imagenet(path, size)
        return first.read(max_bad), second.read(max_bad)
    whole = digits(size) if data == "digits" else _read(path, size, max_bad)
    held = np.arange(len(whole.labels)) % 6 == 5
    parts = [Images(whole.pixels[m], whole.labels[m], whole.classes, whole.skipped) for m in (~held, held)]
    return parts[0], parts[1]


def open_images(
    data: str, size: int, rng: np.random.Generator, *, max_bad: int = 0, in_memory: int = 2 << 30
) -> tuple[Images | ImageFiles, Images | ImageFiles]:
    """Like :func:`load_images`, but image files whose pixels exceed ``in_memory`` bytes are read when asked for."""
    path = Path(data)
    layout = (path / "train").is_dir() and (path / "val").is_dir()
    if data in ("photos", "digits") or not path.is_dir() or not (layout or _holds_files_only(path)):
        return load_images(data, size, rng, max_bad=max_bad)
    if layout:
        pair = imagenet(path, size)
    else:
        whole = image_files(path, size, max_bad=max_bad)
        held = np.arange(len(whole)) % 6 == 5
        pair = tuple(
            replace(whole, files=tuple(np.array(whole.files, dtype=object)[m]), labels=whole.labels[m])
            for m in (~held, held)
        )
    if sum(map(len, pair)) * size * size * 3 > in_memory:
        return pair[0], pair[1]
    return load_images(data, size, rng, max_bad=max_bad)


def _holds_files_only(path: Path) -> bool:
    arrow = any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
    return not arrow and not any(path.glob("*.tar")) and not any(path.rglob("*.parquet"))


def _read(path: Path, size: int, max_bad: int) -> Images:
    if path.suffix == ".npz":
        return adm_batch(path, size)
    if path.suffix in (".tar", ".tgz") or path.name.endswith(".tar.gz"):
        return webdataset([path], size, max_bad=max_bad)
    if path.is_dir() and any(path.glob("*.tar")):
        return webdataset(path.glob("*.tar"), size, max_bad=max_bad)
    arrow = any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
    if arrow or (path.is_dir() and any(path.rglob("*.parquet"))):
        return huggingface(path, size, max_bad=max_bad)
    return image_folder(path, size, max_bad=max_bad)


def centre_crop_array(name: str, size: int) -> np.ndarray:
    """ADM's centre crop of one of scikit-image's photographs, uint8 (size, size, 3)."""
    import skimage.data

    if name not in PHOTOGRAPHS[:7]:
        raise ValueError(f"expected one of {', '.join(PHOTOGRAPHS[:7])}, got {name!r}")
    return centre_crop(Image.fromarray(np.asarray(getattr(skimage.data, name)())[..., :3]), size)
