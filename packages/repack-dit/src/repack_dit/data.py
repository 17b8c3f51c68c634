"""Images: nine embedded photographs cut into crops, digits, and folders of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from papershelf import InputError

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
    pixels, labels, bad = [], [], []
    for path, name in zip(files, names, strict=True):
        try:
            with Image.open(path) as image:
                pixels.append(centre_crop(image, size))
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            bad.append(f"{path.relative_to(folder)} ({error})")
            if len(bad) > max_bad:
                raise InputError(f"unreadable image {'; '.join(bad)}; --max-bad allows {max_bad}") from error
            continue
        labels.append(classes.index(name))
    if not pixels:
        raise InputError(f"no image under {folder} could be read: {'; '.join(bad)}")
    return Images(np.array(pixels), np.array(labels, dtype=np.int64), classes, tuple(bad))


@dataclass(frozen=True)
class ImageFiles:
    """Labelled images that are read when asked for, for folders larger than memory.

    Attributes:
        files: paths.
        size: side after ADM's centre crop.
        labels: int64, (N,).
        classes: name of each label.
        skipped: files that could not be read.
    """

    files: tuple[Path, ...]
    size: int
    labels: np.ndarray
    classes: tuple[str, ...]
    skipped: tuple[str, ...] = ()

    def signed(self, indices: np.ndarray | None = None) -> np.ndarray:
        """Pixels in [-1, 1], float32, (n, 3, H, W), of these images or of all, decoded by eight threads.

        Raises:
            InputError: naming a file that has become unreadable.
        """
        from concurrent.futures import ThreadPoolExecutor

        rows = range(len(self.files)) if indices is None else [int(i) for i in indices]
        with ThreadPoolExecutor(8) as pool:
            pixels = np.stack(list(pool.map(self._read, rows)))
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32) / 127.5 - 1

    def _read(self, row: int) -> np.ndarray:
        try:
            with Image.open(self.files[row]) as image:
                return centre_crop(image, self.size)
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise InputError(f"unreadable image {self.files[row]} ({error})") from error


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
    return ImageFiles(tuple(good), size, labels, classes, tuple(bad))


def load_images(data: str, size: int, rng: np.random.Generator, *, max_bad: int = 0) -> tuple[Images, Images]:
    """Training and held-out images of ``photos``, ``digits`` or a folder (every sixth image is held out)."""
    _checked_size(size, 8)
    if data == "photos":
        return photo_crops(rng, size=size)
    whole = digits(size) if data == "digits" else image_folder(Path(data), size, max_bad=max_bad)
    held = np.arange(len(whole.labels)) % 6 == 5
    parts = [Images(whole.pixels[m], whole.labels[m], whole.classes, whole.skipped) for m in (~held, held)]
    return parts[0], parts[1]


def centre_crop_array(name: str, size: int) -> np.ndarray:
    """ADM's centre crop of one of scikit-image's photographs, uint8 (size, size, 3)."""
    import skimage.data

    if name not in PHOTOGRAPHS[:7]:
        raise ValueError(f"expected one of {', '.join(PHOTOGRAPHS[:7])}, got {name!r}")
    return centre_crop(Image.fromarray(np.asarray(getattr(skimage.data, name)())[..., :3]), size)
