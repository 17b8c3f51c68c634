"""Distances between two sets of images, from their features, with bootstrap intervals.

:func:`evaluate` measures images in DINOv2's features (offline) and, where its weights are given, in Inception's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from papershelf import InputError, require
from papershelf.stats import Interval, bootstrap_interval
from repack_dit.convert import load_weights
from repack_dit.data import SUFFIXES, centre_crop
from repack_dit.vision import VisionFeatures

METRICS = ("fd_dino", "kid_dino", "fid", "sfid", "isc", "prc")
INCEPTION = ("fid", "sfid", "isc")
EXTRA = "papershelf-repack-dit[metrics]"
# The unbiased kernel distance needs no more images than these of each set; its kernel matrices would outgrow memory.
KERNEL_IMAGES = 5000


def _symmetric_root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def frechet_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Squared Frechet distance of two normal fits to features (N, C), (M, C).

    ``|m1 - m2|^2 + tr S1 + tr S2 - 2 tr (S1^1/2 S2 S1^1/2)^1/2`` by symmetric eigen-decompositions in float64, which
    stays real where a general matrix square root turns complex.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(f"expected (N, C) and (M, C) with N, M >= 2, got {a.shape} and {b.shape}")
    return frechet_from_moments(a.mean(0), np.cov(a.T), b.mean(0), np.cov(b.T))


def frechet_from_moments(mean_a: np.ndarray, cov_a: np.ndarray, mean_b: np.ndarray, cov_b: np.ndarray) -> float:
    """The same from means (C,) and covariances (C, C)."""
    cov_a, cov_b = np.atleast_2d(cov_a), np.atleast_2d(cov_b)
    root = _symmetric_root(cov_a)
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ cov_b @ root), 0)).sum()
    return float(np.sum((mean_a - mean_b) ** 2) + np.trace(cov_a) + np.trace(cov_b) - 2 * cross)


def kernel_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Unbiased squared MMD with the cubic kernel ``(x y / C + 1)^3`` (KID, Binkowski et al. 2018)."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    n, m, c = len(a), len(b), a.shape[1]
    aa, bb, ab = ((x @ y.T / c + 1) ** 3 for x, y in ((a, a), (b, b), (a, b)))
    within = (aa.sum() - np.trace(aa)) / (n * (n - 1)) + (bb.sum() - np.trace(bb)) / (m * (m - 1))
    return float(within - 2 * ab.mean())


def pooled_rgb(images: np.ndarray, side: int = 4) -> np.ndarray:
    """Images (N, 3, H, W) averaged to ``side`` x ``side``, (N, 3 * side * side)."""
    n, c, h, w = images.shape
    if h % side or w % side:
        raise ValueError(f"{side} does not divide {h} x {w}")
    return images.reshape(n, c, side, h // side, side, w // side).mean((3, 5)).reshape(n, -1)


def peak_signal_to_noise(prediction: np.ndarray, target: np.ndarray) -> float:
    """PSNR in dB of images in [-1, 1], over all images together."""
    return float(10 * np.log10(4 / np.mean((prediction - target) ** 2)))


# --- precision and recall ------------------------------------------------------------------------------------------


def _distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    # not by products: a point at a ball's rim must come out the same from both sides
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _radii(x: torch.Tensor, k: Sequence[int], rows: int = 1000) -> list[torch.Tensor]:
    """Distance of every point to its k-th other neighbour, for each k."""
    found = []
    for low in range(0, len(x), rows):
        distance = _distances(x[low : low + rows], x)
        distance[torch.arange(len(distance)), low + torch.arange(len(distance))] = -1  # itself comes first
        found.append(distance.topk(max(k) + 1, largest=False).values)
    near = torch.cat(found)
    return [near[:, i] for i in k]


@dataclass(frozen=True)
class Support:
    """Whether each image lies in the other set's support.

    Attributes:
        precision: of generated images, inside any real image's ball to its third neighbour, (N,).
        recall: of real images, inside any generated image's ball, (M,).
        density: of generated images, number of real balls (fifth neighbour) around it over 5, (N,).
        coverage: of real images, whether its own ball (fifth neighbour) holds a generated image, (M,).
    """

    precision: np.ndarray
    recall: np.ndarray
    density: np.ndarray
    coverage: np.ndarray


def support(generated: np.ndarray, reference: np.ndarray, k: tuple[int, int] = (3, 5), rows: int = 1000) -> Support:
    """Precision and recall (Kynkaanniemi et al. 2019), density and coverage (Naeem et al. 2020); means are the scores.

    Args:
        generated: features, (N, C).
        reference: features, (M, C).
        k: neighbours of the balls: of precision and recall, of density and coverage.
        rows: features a block.
    """
    if min(len(generated), len(reference)) <= max(k):
        raise ValueError(f"expected more than {max(k)} images a set, got {len(generated)} and {len(reference)}")
    a, b = (torch.from_numpy(np.asarray(x, dtype=np.float64)) for x in (generated, reference))
    ((own,), (near, wide)) = _radii(a, k[:1], rows), _radii(b, k, rows)
    precision, density, recall, closest = [], [], [], torch.full((len(b),), torch.inf, dtype=a.dtype)
    recall_hit = torch.zeros(len(b), dtype=torch.bool)
    for low in range(0, len(a), rows):
        distance = _distances(a[low : low + rows], b)
        precision.append((distance <= near).any(1))
        density.append((distance <= wide).double().mean(1) * len(b) / k[1])
        recall_hit |= (distance <= own[low : low + rows, None]).any(0)
        closest = torch.minimum(closest, distance.amin(0))
    recall.append(recall_hit)
    parts = (torch.cat(precision), torch.cat(recall), torch.cat(density), closest <= wide)
    return Support(*(part.double().numpy() for part in parts))


# --- bootstrap over the generated images ---------------------------------------------------------------------------


def _centred(estimate: float, draws: np.ndarray) -> Interval:
    """Quantiles of the draws about the estimate: repeated images bias a resampled distance, not its spread."""
    low, high = np.quantile(draws - draws.mean(), [0.025, 0.975])
    return Interval(estimate, float(estimate + low), float(estimate + high))


def frechet_interval(
    features: np.ndarray, mean: np.ndarray, covariance: np.ndarray, rng: np.random.Generator, resamples: int = 100
) -> Interval:
    """Frechet distance of features (N, C) to a normal law, with the spread over resampled features.

    ``tr (R S R)^1/2``, with R the root of the given covariance, is the nuclear norm of the centred features times R:
    for each resample the smaller of its two Gram matrices is decomposed.

    Args:
        features: of generated images, (N, C), N >= 2.
        mean: of the reference, (C,).
        covariance: of the reference, (C, C).
        rng: source of the resamples.
        resamples: how many.
    """
    x = np.asarray(features, dtype=np.float64)
    if x.ndim != 2 or len(x) < 2 or x.shape[1:] != np.shape(mean) or np.shape(covariance) != 2 * x.shape[1:]:
        raise ValueError(f"expected (N, C), (C,), (C, C), got {x.shape}, {np.shape(mean)}, {np.shape(covariance)}")
    turned, fixed = x @ _symmetric_root(covariance), float(np.trace(covariance))

    def distance(chosen: np.ndarray) -> float:
        sample = turned[chosen] - turned[chosen].mean(0)
        gram = sample @ sample.T if len(sample) < sample.shape[1] else sample.T @ sample
        cross = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0)).sum() / np.sqrt(len(x) - 1)
        own = x[chosen].var(0, ddof=1).sum()
        return float(np.sum((x[chosen].mean(0) - mean) ** 2) + own + fixed - 2 * cross)

    draws = [distance(rng.integers(len(x), size=len(x))) for _ in range(resamples)]
    return _centred(distance(np.arange(len(x))), np.array(draws))


def kernel_interval(a: np.ndarray, b: np.ndarray, rng: np.random.Generator, resamples: int = 100) -> Interval:
    """:func:`kernel_distance`, with the spread over resampled rows of ``a``; a repeated row is no pair with itself."""
    a, b = (np.asarray(x, dtype=np.float64) for x in (a, b))
    if len(a) > KERNEL_IMAGES:
        a = a[rng.permutation(len(a))[:KERNEL_IMAGES]]
    if len(b) > KERNEL_IMAGES:
        b = b[rng.permutation(len(b))[:KERNEL_IMAGES]]
    within = (a @ a.T / a.shape[1] + 1) ** 3
    np.fill_diagonal(within, 0)
    across = ((a @ b.T / a.shape[1] + 1) ** 3).mean(1)
    counts = rng.multinomial(len(a), np.full(len(a), 1 / len(a)), size=resamples).astype(np.float64)
    pairs = len(a) ** 2 - np.square(counts).sum(1)
    draws = np.einsum("ri,ri->r", counts @ within, counts) / pairs - 2 * counts @ across / len(a)
    return _centred(kernel_distance(a, b), draws)


# --- feature extractors --------------------------------------------------------------------------------------------


def _in_batches(function: Callable[[torch.Tensor], Any], pixels: np.ndarray, batch: int) -> list[Any]:
    """The function on uint8 images (B, 3, H, W)."""
    with torch.no_grad():
        return [
            function(torch.from_numpy(np.ascontiguousarray(pixels[i : i + batch].transpose(0, 3, 1, 2))))
            for i in range(0, len(pixels), batch)
        ]


def vision_embeddings(vision: VisionFeatures, pixels: np.ndarray, batch: int = 64) -> np.ndarray:
    """What FD-DINOv2 and KID-DINOv2 compare, (N, C), of uint8 images (N, H, W, 3)."""
    parts = _in_batches(lambda x: vision.embedding(x.float() / 127.5 - 1), pixels, batch)
    return torch.cat(parts).double().numpy()


def register_with_torch_fidelity(vision: VisionFeatures, name: str = "repack-dit-vision") -> str:
    """Make a vision model known to torch-fidelity: ``calculate_metrics(..., feature_extractor=name)`` then uses it."""
    fidelity: Any = require("torch_fidelity", EXTRA)

    class Extractor(fidelity.FeatureExtractorBase):
        def __init__(self, name: str, features_list: list[str], **_: Any) -> None:
            super().__init__(name, features_list)
            self.vision = vision

        @staticmethod
        def get_provided_features_list() -> tuple[str, ...]:
            return ("embedding",)

        @staticmethod
        def get_default_feature_layer_for_metric(metric: str) -> str:
            return "embedding"

        @staticmethod
        def can_be_compiled() -> bool:
            return False

        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (self.vision.embedding(images.float() / 127.5 - 1),)

    fidelity.register_feature_extractor(name, Extractor)
    return name


def load_inception(weights: Path | None = None, *, allow_download: bool = False) -> Any:
    """torch-fidelity's Inception-v3 (the weights behind published FIDs).

    Args:
        weights: its ``.pth``; read without running code.
        allow_download: let torch-fidelity fetch them where no file is given.

    Raises:
        InputError: if there are no weights, or the file is of another network.
        MissingExtra: if torch-fidelity is not installed.
    """
    if weights is None and not allow_download:
        raise InputError(
            f"{', '.join(INCEPTION)} need Inception's weights (torch-fidelity's weights-inception-2015-12-05 file): "
            "give --inception-weights PATH, or --allow-download"
        )
    inception: Any = require("torch_fidelity.feature_extractor_inceptionv3", EXTRA)
    names = ["2048", "logits_unbiased"]
    if weights is None:
        return inception.FeatureExtractorInceptionV3("inception-v3-compat", names)
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # torch-fidelity would unpickle: it gets a file that holds weights only
        clean = Path(folder) / "inception.pth"
        torch.save(load_weights(weights), clean)
        try:
            return inception.FeatureExtractorInceptionV3(
                "inception-v3-compat", names, feature_extractor_weights_path=str(clean)
            )
        except RuntimeError as error:
            raise InputError(
                f"{weights} is not torch-fidelity's Inception: {' '.join(str(error).split())[:200]}"
            ) from error


def inception_features(model: Any, pixels: np.ndarray, batch: int = 32) -> dict[str, np.ndarray]:
    """``pool`` (N, 2048), ``logits`` (N, 1008), ``spatial`` (N, 2023) of uint8 images (N, H, W, 3).

    ``spatial`` is what ADM's sFID compares: the first 7 channels of the 17 x 17 map of Mixed_6d, position by position.
    """
    maps: list[torch.Tensor] = []
    handle = model.Mixed_6d.register_forward_hook(lambda _module, _inputs, out: maps.append(out[:, :7].clone()))
    try:
        parts = _in_batches(model, pixels, batch)
    finally:
        handle.remove()
    pool, logits = (torch.cat(part).double().numpy() for part in zip(*parts, strict=True))
    return {"pool": pool, "logits": logits, "spatial": torch.cat(maps).permute(0, 2, 3, 1).flatten(1).double().numpy()}


def inception_score(logits: np.ndarray, splits: int = 10) -> float:
    """``exp E KL(p(y|x) || p(y))`` of logits (N, classes), averaged over consecutive parts (Salimans et al. 2016)."""
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    scores = []
    for part in np.array_split(log_p, min(splits, len(log_p))):
        mean = np.log(np.exp(part).mean(0))
        scores.append(np.exp(np.mean(np.sum(np.exp(part) * (part - mean), 1))))
    return float(np.mean(scores))


# --- sets of images ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageSet:
    """Images, and statistics of Inception's features where a file brings them.

    Attributes:
        pixels: uint8, (N, H, W, 3).
        statistics: ``fid`` or ``sfid`` -> mean (C,) and covariance (C, C); they take the place of the images' own.
    """

    pixels: np.ndarray
    statistics: dict[str, tuple[np.ndarray, np.ndarray]]


def read_image_set(path: Path, size: int | None = None) -> ImageSet:
    """A folder of images, or an ``.npz`` as ADM's evaluator takes it.

    Args:
        path: folder (searched in depth), or ``.npz`` with ``arr_0`` uint8 (N, H, W, 3) and perhaps ``mu``, ``sigma``,
            ``mu_s``, ``sigma_s``.
        size: side that images are cropped to (ADM's centre crop); None takes them as they are.

    Raises:
        InputError: if there is nothing to read, or the images differ in size.
    """
    path = Path(path)
    if path.suffix == ".npz":
        found = _read_npz(path)
        if size is not None and len(found.pixels):
            cropped = np.array([centre_crop(Image.fromarray(image), size) for image in found.pixels])
            return ImageSet(cropped, found.statistics)
        return found
    if not path.is_dir():
        raise InputError(f"expected a folder of images or an .npz file, got {path}")
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not files:
        raise InputError(f"{path} holds no image ({', '.join(SUFFIXES)})")
    pixels: list[np.ndarray] = []
    for file in files:
        try:
            with Image.open(file) as image:
                pixels.append(np.asarray(image.convert("RGB")) if size is None else centre_crop(image, size))
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise InputError(f"unreadable image {file} ({error})") from error
        if pixels[-1].shape != pixels[0].shape:
            shapes = [f"{p.shape[1]} x {p.shape[0]}" for p in (pixels[0], pixels[-1])]
            raise InputError(f"{file} is {shapes[1]} and {files[0].name} {shapes[0]}; give --size to crop to one size")
    return ImageSet(np.array(pixels), {})


def _read_npz(path: Path) -> ImageSet:
    if not path.is_file():
        raise InputError(f"no file {path}")
    try:
        with np.load(path, allow_pickle=False) as opened:
            arrays = {
                name: opened[name] for name in ("arr_0", "mu", "sigma", "mu_s", "sigma_s") if name in opened.files
            }
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise InputError(f"{path} is damaged or holds objects: {error}") from error
    except Exception as error:
        raise InputError(f"{path} is no .npz archive: {error}") from error
    statistics = {}
    for name, mean, covariance in (("fid", "mu", "sigma"), ("sfid", "mu_s", "sigma_s")):
        if mean in arrays and covariance in arrays:
            m, c = arrays[mean], arrays[covariance]
            if m.ndim != 1 or c.shape != (len(m), len(m)):
                raise InputError(f"{path}: expected {mean} (C,) and {covariance} (C, C), got {m.shape} and {c.shape}")
            statistics[name] = (m.astype(np.float64), c.astype(np.float64))
    pixels = arrays.get("arr_0", np.zeros((0, 0, 0, 3), np.uint8))
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
        raise InputError(f"{path}: expected arr_0 of uint8 (N, H, W, 3), got {pixels.dtype} {pixels.shape}")
    if not len(pixels) and not statistics:
        raise InputError(f"{path} holds neither images (arr_0) nor statistics (mu, sigma)")
    return ImageSet(pixels, statistics)


def _as_set(images: np.ndarray | ImageSet, name: str) -> ImageSet:
    if isinstance(images, ImageSet):
        return images
    pixels = np.asarray(images)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3 or len(pixels) < 2:
        raise ValueError(f"expected {name} images uint8 (N >= 2, H, W, 3), got {pixels.dtype} {pixels.shape}")
    return ImageSet(pixels, {})


# --- evaluation ----------------------------------------------------------------------------------------------------


def evaluate(
    generated: np.ndarray | ImageSet,
    reference: np.ndarray | ImageSet,
    *,
    rng: np.random.Generator,
    metrics: Sequence[str] = METRICS,
    vision: VisionFeatures | None = None,
    inception: Any = None,
    resamples: int = 100,
    batch: int = 64,
) -> dict[str, Interval]:
    """Compare generated with real images; every score comes with a 95 % bootstrap interval.

    Distances are resampled over the generated images against a fixed reference, and their interval is centred on the
    estimate; precision and density over the generated, recall and coverage over the real images.

    Args:
        generated: uint8 images (N, H, W, 3), or what :func:`read_image_set` gives.
        reference: the real ones, of the same size.
        rng: source of the resamples.
        metrics: of ``fd_dino`` and ``kid_dino`` (Frechet and kernel distance of the vision model's embeddings, Stein et
            al. 2023), ``prc`` (precision, recall, density and coverage in the same), and, with Inception's features,
            ``fid``, ``sfid`` and ``isc`` (Inception score of the generated images).
        vision: from ``load_vfm``; needed for the first three. A model that also made the latents favours them.
        inception: from :func:`load_inception`; needed for the last three.
        resamples: bootstrap samples.
        batch: images at a time.

    Returns:
        Metric -> (estimate, low, high); ``prc`` gives four.

    Raises:
        ValueError: for images of different sizes, unknown metrics or a model that is missing.
    """
    unknown = [name for name in metrics if name not in METRICS]
    if unknown or not metrics:
        raise InputError(f"metrics are {', '.join(METRICS)}, got {', '.join(unknown) or 'none'}")
    if vision is None and set(metrics) - set(INCEPTION):
        raise InputError("fd_dino, kid_dino and prc need a vision model, got none")
    if inception is None and set(metrics) & set(INCEPTION):
        raise InputError(
            f"{', '.join(m for m in INCEPTION if m in metrics)} need Inception: pass load_inception(PATH), or leave "
            "them out of metrics"
        )
    a, b = _as_set(generated, "generated"), _as_set(reference, "reference")
    by_images = [m for m in metrics if m != "isc" and m not in b.statistics]
    if len(a.pixels) < 2 or (by_images and len(b.pixels) < 2):
        raise InputError(
            f"{', '.join(by_images or metrics)} need at least 2 images a set, got {len(a.pixels)} and {len(b.pixels)}"
        )
    if by_images and a.pixels.shape[1:] != b.pixels.shape[1:]:
        sizes = [f"{s.pixels.shape[2]} x {s.pixels.shape[1]}" for s in (a, b)]
        raise InputError(f"generated images are {sizes[0]} and reference images {sizes[1]}; give --size to crop both")
    found: dict[str, Interval] = {}
    if vision is not None and set(metrics) - set(INCEPTION):
        found |= _vision_scores(vision, a.pixels, b.pixels, metrics, rng, resamples, batch)
    if inception is not None and set(metrics) & set(INCEPTION):
        found |= _inception_scores(inception, a, b, metrics, rng, resamples, batch)
    order = [part for m in metrics for part in (("precision", "recall", "density", "coverage") if m == "prc" else (m,))]
    return {name: found[name] for name in order}


def _vision_scores(
    vision: VisionFeatures,
    generated: np.ndarray,
    reference: np.ndarray,
    metrics: Sequence[str],
    rng: np.random.Generator,
    resamples: int,
    batch: int,
) -> dict[str, Interval]:
    x, y = (vision_embeddings(vision, pixels, batch) for pixels in (generated, reference))
    found = {}
    if "fd_dino" in metrics:
        found["fd_dino"] = frechet_interval(x, y.mean(0), np.cov(y.T), rng, resamples)
    if "kid_dino" in metrics:
        found["kid_dino"] = kernel_interval(x, y, rng, resamples)
    if "prc" in metrics:
        inside = support(x, y)
        for name in ("precision", "recall", "density", "coverage"):
            found[name] = bootstrap_interval(getattr(inside, name), rng, resamples=max(resamples, 1000))
    return found


def _inception_scores(
    model: Any,
    generated: ImageSet,
    reference: ImageSet,
    metrics: Sequence[str],
    rng: np.random.Generator,
    resamples: int,
    batch: int,
) -> dict[str, Interval]:
    x = inception_features(model, generated.pixels, batch)
    layers = {"fid": "pool", "sfid": "spatial"}
    needed = [m for m in metrics if m in layers and m not in reference.statistics]
    y = inception_features(model, reference.pixels, batch) if needed else {}
    found = {}
    for name in (m for m in metrics if m in layers):
        if name in reference.statistics:
            mean, covariance = reference.statistics[name]
        else:
            mean, covariance = y[layers[name]].mean(0), np.cov(y[layers[name]].T)
        found[name] = frechet_interval(x[layers[name]], mean, covariance, rng, resamples)
    if "isc" in metrics:
        logits = x["logits"][rng.permutation(len(x["logits"]))]
        draws = [inception_score(logits[rng.integers(len(logits), size=len(logits))]) for _ in range(resamples)]
        found["isc"] = _centred(inception_score(logits), np.array(draws))
    return found
