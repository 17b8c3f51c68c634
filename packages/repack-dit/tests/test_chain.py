"""The latent cache, the three trainings, the pipeline and the project's stages: facts, resume and bad input."""

import itertools
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from papershelf import InputError, Streams
from repack_dit import (
    CacheMismatchError,
    CorruptShardError,
    LatentCache,
    LatentGuidedRefiner,
    RePackAutoencoder,
    RePackDiTPipeline,
    RePackDiTTransformer2DModel,
    euler_sample,
    latents,
    stages,
)
from repack_dit.cli import app
from repack_dit.data import Images, image_files, image_folder, load_images
from repack_dit.pipeline import OFFICIAL_SAMPLING, make_scheduler
from repack_dit.training import (
    AutoencoderSettings,
    AutoencoderTraining,
    DivergedError,
    FeaturedImages,
    RefinerSettings,
    RefinerTraining,
    TensorLatents,
    TensorTriplets,
    TrainSettings,
    TransformerTraining,
    accelerator,
    read_metrics,
    update_ema,
)
from repack_dit.training.loop import epoch_indices
from repack_dit.vision import random_dinov2

D, GRID, WIDTH = 6, 4, 32
LEVELS = (16, 16, 16, 16)


def images(count: int = 20, size: int = 32) -> Images:
    pixels = np.random.default_rng(0).integers(0, 255, (count, size, size, 3)).astype(np.uint8)
    return Images(pixels, np.arange(count) % 3, ("a", "b", "c"))


def autoencoder(seed: int = 0, posterior: str = "gaussian") -> RePackAutoencoder:
    torch.manual_seed(seed)
    model = RePackAutoencoder(WIDTH, D, posterior, LEVELS, 1, 8, GRID)
    model.vision = random_dinov2(GRID, width=WIDTH)
    return model.eval()


def transformer(classes: int = 3, seed: int = 0) -> RePackDiTTransformer2DModel:
    torch.manual_seed(seed)
    model = RePackDiTTransformer2DModel(GRID, D, 1, 2, 32, 2, classes)
    for parameter in model.parameters():  # leave the zero initialisation
        if parameter.requires_grad:
            parameter.data.add_(0.02 * torch.randn(parameter.shape))
    return model.eval()


def refiner(**options) -> LatentGuidedRefiner:
    torch.manual_seed(3)
    return LatentGuidedRefiner(D, (8,), 8, 1, attention=False, norm_num_groups=4, **options)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> LatentCache:
    folder = tmp_path_factory.mktemp("cache")
    return LatentCache.build(images(), autoencoder(), folder, shard_size=8, batch=3)


# --- cache ---------------------------------------------------------------------------------------------------------


def test_a_cached_latent_is_the_posterior_sample_of_the_image_and_of_its_mirror_image(tmp_path):
    model, source = autoencoder(posterior="deterministic"), images(5)
    cache = LatentCache.build(source, model, tmp_path, dtype="fp32", shard_size=2, seed=4)
    mean, std = cache.stats
    x = torch.from_numpy(source.signed())
    for flipped in (False, True):
        with torch.no_grad():
            expected = model.encode(x.flip(-1) if flipped else x).latent_dist.mode()
        found, labels = cache.take(torch.tensor([3, 0, 4]), torch.full((3,), flipped))
        torch.testing.assert_close(found * std + mean, expected[[3, 0, 4]], atol=1e-5, rtol=1e-5)
        assert labels.tolist() == [0, 0, 1]
    torch.testing.assert_close(cache[3][0], cache.take(torch.tensor([3]))[0][0])


def test_statistics_are_the_mean_and_unbiased_deviation_over_images_and_positions(tmp_path):
    cache = LatentCache.build(images(7), autoencoder(), tmp_path, dtype="fp32", shard_size=3)
    z = torch.cat([shard["latents"] for shard in cache._shards]).double()
    mean, std = cache.stats
    assert mean.shape == std.shape == (1, D, 1, 1)
    torch.testing.assert_close(mean.double(), z.mean((0, 2, 3), keepdim=True), atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(std.double().flatten(), z.movedim(1, 0).flatten(1).std(1), atol=1e-7, rtol=1e-6)


def test_a_gaussian_posterior_is_sampled_once_and_frozen(built, tmp_path):
    again = LatentCache.build(images(), autoencoder(), tmp_path / "again", shard_size=8, batch=3)
    other = LatentCache.build(images(), autoencoder(), tmp_path / "other", shard_size=8, seed=1)
    rows = torch.arange(20)
    assert torch.equal(built.take(rows)[0], again.take(rows)[0])
    assert not torch.equal(built.take(rows)[0], other.take(rows)[0])


def test_reading_does_not_copy_a_shard_into_memory(built):
    path = built.folder / "latents-00000.safetensors"
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    assert str(path) in maps.read_text()


def test_an_epoch_reads_everything_once_and_stays_within_a_few_shards(built):
    order = built.permutation(torch.Generator().manual_seed(0), together=1)
    assert sorted(order.tolist()) == list(range(20))
    shards = (order // 8).tolist()
    assert sum(a != b for a, b in itertools.pairwise(shards)) == 2


def test_a_truncated_shard_is_named_and_only_it_is_built_again(tmp_path):
    cache = LatentCache.build(images(), autoencoder(), tmp_path, shard_size=8)
    before, rows = cache.take(torch.arange(20))[0].clone(), torch.arange(20)
    del cache
    shard = tmp_path / "latents-00001.safetensors"
    times = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("*.safetensors")}
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(CorruptShardError, match="latents-00001"):
        LatentCache(tmp_path)
    cache = LatentCache.build(images(), autoencoder(), tmp_path, shard_size=8)
    assert torch.equal(cache.take(rows)[0], before)
    changed = [p.name for p in tmp_path.glob("*.safetensors") if p.stat().st_mtime_ns != times[p.name]]
    assert changed == [shard.name]


def test_an_altered_shard_is_found_by_its_hash(tmp_path):
    LatentCache.build(images(9), autoencoder(), tmp_path, shard_size=5)
    shard = tmp_path / "latents-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptShardError, match="latents-00001"):
        LatentCache(tmp_path).verify()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"autoencoder": 1}, "fingerprint"),
        ({"images": 7}, "images"),
        ({"dtype": "fp32"}, "dtype"),
        ({"seed": 5}, "seed"),
    ],
)
def test_a_cache_of_another_encoder_or_other_options_is_refused(tmp_path, change, named):
    LatentCache.build(images(6), autoencoder(), tmp_path)
    source, model = images(change.get("images", 6)), autoencoder(change.get("autoencoder", 0))
    options = {k: v for k, v in change.items() if k in ("dtype", "seed")}
    with pytest.raises(CacheMismatchError, match=named):
        LatentCache.build(source, model, tmp_path, **options)


def test_a_cache_is_checked_against_the_encoder(built):
    built.check(autoencoder())
    with pytest.raises(CacheMismatchError, match="made with the encoder"):
        built.check(autoencoder(1))


def test_a_full_disk_is_told_with_the_bytes_needed_and_leaves_finished_shards(tmp_path, monkeypatch):
    real, calls = latents.save_file, []

    def filling(tensors, path, metadata):
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(tensors, path, metadata)

    monkeypatch.setattr(latents, "save_file", filling)
    with pytest.raises(InputError, match=r"disk full .*bytes needed"):
        LatentCache.build(images(), autoencoder(), tmp_path, shard_size=8)
    assert [p.name for p in tmp_path.iterdir()] == ["latents-00000.safetensors"]
    LatentCache.build(images(), autoencoder(), tmp_path, shard_size=8)
    assert len(calls) == 4


def test_a_disk_that_is_too_small_is_told_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(latents.shutil, "disk_usage", lambda _: type("usage", (), {"free": 10})())
    with pytest.raises(InputError, match=r"needs .* more bytes"):
        LatentCache.build(images(), autoencoder(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_options_of_a_cache_are_checked(tmp_path):
    with pytest.raises(ValueError, match="views start with plain"):
        LatentCache.build(images(), autoencoder(), tmp_path, views=("flip",))
    with pytest.raises(ValueError, match="bf17"):
        LatentCache.build(images(), autoencoder(), tmp_path, dtype="bf17")
    with pytest.raises(InputError, match="no finished latent cache"):
        LatentCache(tmp_path / "absent")


# --- trainings -----------------------------------------------------------------------------------------------------


def test_the_order_of_the_data_covers_every_epoch_and_depends_on_the_seed_alone():
    steps = [epoch_indices(k, 4, 10, Streams(0)) for k in range(5)]
    order = torch.cat(steps).tolist()
    assert sorted(order[:10]) == sorted(order[10:]) == list(range(10))
    assert order[:10] != order[10:]
    assert torch.equal(epoch_indices(3, 4, 10, Streams(0)), steps[3])
    large = epoch_indices(0, 25, 10, Streams(0))
    assert sorted(large[:10].tolist()) == list(range(10))


def test_averaged_weights_follow_the_closed_form():
    average, model = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    start = float(average.weight.detach())
    model.weight.data.fill_(2.0)
    for _ in range(5):
        update_ema(average, model, 0.9)
    assert float(average.weight.detach()) == pytest.approx(0.9**5 * start + (1 - 0.9**5) * 2, abs=1e-6)


def trainings(folder: Path | None, name: str):
    """A training of each stage over tiny data."""
    source = images()
    if name == "autoencoder":
        settings = AutoencoderSettings(steps=6, batch=4, gan=0.5, gan_channels=4, save_every=2, keep_every=3)
        model = autoencoder()
        held_out = FeaturedImages(images(5))
        return AutoencoderTraining(model, FeaturedImages(source), settings, held_out=held_out, folder=folder)
    z = torch.randn(20, D, GRID, GRID, generator=torch.Generator().manual_seed(1))
    if name == "transformer":
        data = TensorLatents(z, torch.arange(20) % 3)
        settings = TrainSettings(steps=6, batch=4, save_every=2, keep_every=3)
        return TransformerTraining(transformer(), data, settings, held_out=data, folder=folder)
    x = torch.from_numpy(source.signed())
    data = TensorTriplets(x, x + 0.1, z)
    settings = RefinerSettings(steps=6, batch=4, gan_channels=4, save_every=2, keep_every=3)
    return RefinerTraining(refiner(), data, settings, held_out=data, folder=folder)


@pytest.mark.parametrize("name", ["autoencoder", "transformer", "refiner"])
def test_an_interrupted_training_goes_on_to_the_same_bits(tmp_path, name):
    whole = trainings(tmp_path / "whole", name)
    whole.run()
    first = trainings(tmp_path / "parts", name)
    first.run(5)  # the checkpoint is of step 4: the fifth step is done again
    again = trainings(tmp_path / "parts", name)
    again.resume()
    assert again.step == 4
    again.run()
    assert again.losses == whole.losses
    for key, value in whole.average.state_dict().items():
        assert torch.equal(value, again.average.state_dict()[key]), key
    assert [r["step"] for r in read_metrics(tmp_path / "parts")] == [1, 2, 3, 4, 5, 6]
    assert read_metrics(tmp_path / "parts") == read_metrics(tmp_path / "whole")
    names = {p.name for p in (tmp_path / "parts").iterdir()}
    assert {"last.safetensors", "best.safetensors", "step-0000003.safetensors", "metrics.csv"} <= names


@pytest.mark.parametrize("name", ["autoencoder", "transformer", "refiner"])
def test_a_loss_that_is_not_finite_stops_and_names_step_and_images(tmp_path, name):
    found = trainings(tmp_path, name)
    found.run(2)
    broken = next(p for p in next(iter(found.modules.values())).parameters() if p.requires_grad)
    broken.data.fill_(float("nan"))
    with pytest.raises(DivergedError, match=r"step 2, images \[.*last.safetensors"):
        found.run()
    again = trainings(tmp_path, name)
    again.resume()
    assert again.step == 2
    assert all(torch.isfinite(p).all() for p in next(iter(again.modules.values())).parameters())


def test_the_rate_drops_at_its_step(tmp_path):
    data = TensorLatents(torch.zeros(4, D, GRID, GRID), torch.zeros(4, dtype=torch.long))
    settings = TrainSettings(steps=4, batch=2, lr=1e-2, lr_after=1e-3, lr_step=2)
    TransformerTraining(transformer(), data, settings, folder=tmp_path).run()
    assert [row["lr"] for row in read_metrics(tmp_path)] == [1e-2, 1e-2, 1e-3, 1e-3]


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    trainings(tmp_path, "refiner").run()
    (tmp_path / "torn.safetensors").write_bytes((tmp_path / "last.safetensors").read_bytes()[:-3])
    with pytest.raises(InputError, match="damaged"):
        trainings(None, "refiner").restore(tmp_path / "torn.safetensors")
    with pytest.raises(InputError, match="another model"):
        trainings(None, "transformer").restore(tmp_path / "last.safetensors")


def test_labels_outside_the_classes_are_refused():
    data = TensorLatents(torch.zeros(4, D, GRID, GRID), torch.tensor([0, 1, 2, 3]))
    with pytest.raises(ValueError, match=r"\[0, 3\), got 0..3"):
        TransformerTraining(transformer(), data, TrainSettings())


def test_bf16_training_differs_from_full_precision_by_rounding_only():
    data = TensorLatents(torch.randn(8, D, GRID, GRID), torch.zeros(8, dtype=torch.long))
    losses = {}
    for precision in ("no", "bf16"):
        settings = TrainSettings(steps=3, batch=8)
        found = TransformerTraining(transformer(), data, settings, accelerator=accelerator("cpu", precision))
        found.run()
        losses[precision] = found.losses
    assert losses["bf16"] != losses["no"]
    np.testing.assert_allclose(losses["bf16"], losses["no"], rtol=0.03)


def test_devices_and_precisions_that_are_not_there_are_told():
    for given, message in ((("tpu", "no"), "tpu"), (("cpu", "fp8"), "fp8"), (("cpu", "fp16"), "bf16")):
        with pytest.raises(ValueError, match=message):
            accelerator(*given)


def test_the_pack_learns_to_reconstruct():
    source = images(8)
    source = replace(source, pixels=np.full_like(source.pixels, 200))  # one colour is enough to learn
    settings = AutoencoderSettings(steps=25, batch=8, lr=5e-3, schedule="constant", gan=0, perceptual=0, ema=0.5)
    found = AutoencoderTraining(autoencoder(), FeaturedImages(source), settings, held_out=FeaturedImages(source))
    before = found.validate()
    found.run()
    assert found.validate() < before / 3


def test_the_official_reduction_weighs_pixels_by_their_number():
    """With the official reduction the pixel term is the mean's times the elements, and the KL term is unscaled."""
    terms = {}
    for reduction in ("mean", "official"):
        settings = AutoencoderSettings(steps=1, gan=0, reduction=reduction, kl=1e-2)
        found = AutoencoderTraining(autoencoder(), FeaturedImages(images(4)), settings)
        x = torch.from_numpy(images(4).signed())
        image, divergence = found.modules["autoencoder"](found.autoencoder.features(x))
        terms[reduction] = found._terms(image.detach(), x, divergence.detach())
    elements = 3 * 32 * 32
    for name in ("pixel", "kl"):
        ratio = float(terms["official"][name] / terms["mean"][name])
        assert ratio == pytest.approx(elements, rel=1e-4), name
    torch.testing.assert_close(terms["official"]["focal"], terms["mean"]["focal"])


def test_the_divergence_is_that_of_a_normal_posterior():
    model = autoencoder()
    features = torch.randn(2, WIDTH, GRID, GRID)
    posterior = model.pack(features)
    from repack_dit.training.autoencoder import Reconstruction

    _, found = Reconstruction(model)(features)
    normal = torch.distributions.Normal(posterior.mean, posterior.std)
    expected = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0)).flatten(1).sum(1)
    torch.testing.assert_close(found, expected)


# --- pipeline ------------------------------------------------------------------------------------------------------


def pipeline(with_refiner: bool = True, classes: int = 3, shift: float = 1.0) -> RePackDiTPipeline:
    model = autoencoder()
    model.set_statistics(torch.linspace(-1, 1, D), torch.linspace(0.5, 2, D))
    found = RePackDiTPipeline(model, transformer(classes), make_scheduler(shift), refiner() if with_refiner else None)
    found.set_progress_bar_config(disable=True)
    return found


@pytest.mark.parametrize("shift", [1.0, 0.3])
def test_the_pipeline_is_eulers_method(shift):
    found = pipeline(shift=shift)
    noise, labels = torch.randn(2, D, GRID, GRID, generator=torch.Generator().manual_seed(5)), torch.tensor([0, 2])
    options = {"interval": (0.11, 1.0), "channels": 2}
    expected = euler_sample(found.transformer, noise, labels, points=13, shift=shift, scale=4.0, **options)
    z = found(
        labels,
        num_inference_steps=12,
        guidance_scale=4.0,
        guidance_interval=(0.11, 1.0),
        guidance_channels=2,
        latents=noise,
        output_type="latent",
    ).images
    torch.testing.assert_close(z, expected, atol=2e-5, rtol=1e-4)


def test_pictures_are_decoded_from_denormalised_latents_and_refined_with_normalised_ones():
    found = pipeline()
    options = {"class_labels": [1], "num_inference_steps": 2}
    z = found(**options, generator=torch.Generator().manual_seed(0), output_type="latent").images
    shown = found(**options, generator=torch.Generator().manual_seed(0), output_type="pt").images
    plain = found(**options, generator=torch.Generator().manual_seed(0), output_type="pt", refine=False).images
    mean, std = (
        torch.tensor(v).view(1, -1, 1, 1)
        for v in (found.autoencoder.config.latents_mean, found.autoencoder.config.latents_std)
    )
    with torch.no_grad():
        decoded = found.autoencoder.decode((z * std + mean).float()).sample
        refined = found.refiner(decoded, z)
    torch.testing.assert_close(plain, (decoded.clamp(-1, 1) + 1) / 2)
    torch.testing.assert_close(shown, (refined.clamp(-1, 1) + 1) / 2)


def test_a_saved_pipeline_gives_the_same_picture_in_a_fresh_process(tmp_path):
    found = pipeline()
    found.save_pretrained(tmp_path / "p", bundle_vfm=True)
    expected = found([0, 1], num_inference_steps=3, generator=torch.Generator().manual_seed(7), output_type="np").images
    code = (
        "import sys, numpy, torch, repack_dit\n"
        "p = repack_dit.RePackDiTPipeline.from_pretrained(sys.argv[1], vfm='bundled')\n"
        "x = p([0, 1], num_inference_steps=3, generator=torch.Generator().manual_seed(7), output_type='np').images\n"
        "numpy.save(sys.argv[2], x)\n"
        "assert p.autoencoder.features(torch.zeros(1, 3, 32, 32)).shape == (1, 32, 4, 4)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "p"), str(tmp_path / "x.npy")], check=True)
    # loaded weights lie elsewhere in memory than fresh ones, so that products are rounded otherwise
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-5)
    assert not list((tmp_path / "p").rglob("*.bin"))


def test_a_pipeline_without_refiner_comes_back_without_one(tmp_path):
    pipeline(with_refiner=False).save_pretrained(tmp_path / "p")
    again = RePackDiTPipeline.from_pretrained(tmp_path / "p")
    assert again.refiner is None
    assert again([0], num_inference_steps=1, output_type="pt").images.shape == (1, 3, 32, 32)


def test_a_pipeline_folder_cannot_run_code(tmp_path):
    pipeline().save_pretrained(tmp_path / "p")
    marker = tmp_path / "ran"
    (tmp_path / "p" / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    (tmp_path / "p" / "pipeline.py").write_text(f"open({str(marker)!r}, 'w')\n")
    index = tmp_path / "p" / "model_index.json"
    kept = json.loads(index.read_text())
    for name, value in (
        ("autoencoder", ["evil", "Evil"]),
        ("scheduler", ["subprocess", "Popen"]),
        ("extra", ["os", "x"]),
    ):
        index.write_text(json.dumps({**kept, name: value}))
        with pytest.raises(InputError, match=f"names {name}"):
            RePackDiTPipeline.from_pretrained(tmp_path / "p")
    index.write_text(json.dumps(kept))
    RePackDiTPipeline.from_pretrained(tmp_path / "p", custom_pipeline=str(tmp_path / "p"))
    weights = tmp_path / "p" / "refiner" / "diffusion_pytorch_model.safetensors"
    torch.save({"x": torch.zeros(1)}, weights.with_suffix(".bin"))
    weights.unlink()
    with pytest.raises(OSError, match="safetensors"):
        RePackDiTPipeline.from_pretrained(tmp_path / "p")
    assert not marker.exists()


def test_a_foreign_vision_model_is_refused(tmp_path):
    found = pipeline(with_refiner=False)
    found.autoencoder.register_to_config(vfm_hash="0" * 64)
    found.save_pretrained(tmp_path / "p", bundle_vfm=True)
    with pytest.raises(InputError, match="not the one"):
        RePackDiTPipeline.from_pretrained(tmp_path / "p", vfm="bundled")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_labels": [3]}, r"\[0, 3\), got \[3\]"),
        ({"class_labels": None}, "conditional"),
        ({"num_inference_steps": 0}, "got 0"),
        ({"guidance_channels": D + 1}, f"between 1 and {D}"),
        ({"guidance_interval": (0.9, 0.1)}, "ascend"),
        ({"output_type": "gif"}, "gif"),
        ({"latents": torch.zeros(1, 2, 2, 2)}, r"expected latents \(1, 6, 4, 4\)"),
    ],
)
def test_bad_options_of_sampling_are_told(options, message):
    with pytest.raises(ValueError, match=message):
        pipeline()(**{"class_labels": [0], "num_inference_steps": 1, **options})


def test_missing_statistics_are_told_with_what_computes_them():
    found = RePackDiTPipeline(autoencoder(), transformer(), make_scheduler())
    with pytest.raises(RuntimeError, match="latent cache"):
        found([0], num_inference_steps=1)


def test_a_callback_may_change_the_latents():
    seen = []

    def zero(_, step, timestep, kept):
        seen.append((step, round(float(timestep))))
        return {"latents": torch.zeros_like(kept["latents"])}

    found = pipeline()([0], num_inference_steps=4, callback_on_step_end=zero, output_type="latent")
    assert seen == [(0, 1000), (1, 750), (2, 500), (3, 250)]
    assert not found.images.any()


def test_the_official_sampling_is_the_releases():
    s = OFFICIAL_SAMPLING
    assert (s.steps, s.guidance_scale, s.guidance_interval, s.guidance_channels) == (249, 15.0, (0.11, 1.0), 3)
    assert make_scheduler(s.shift).config.shift == pytest.approx(1 / 0.3)


# --- settings and files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense: 1", "unknown setting nonsense"),
        ("train: {step: 1}", "unknown setting train.step"),
        ("train: 3", "train expects a table"),
        ("size: big", "size expects int, got 'big'"),
        ("decoder: 3", "decoder expects a list"),
        ("train: {lr: fast}", "train.lr expects a number"),
        ("size: 48", "images of side 32, got size 48"),
        ("- 1", "expected a table"),
        ("a: [", "cannot read"),
    ],
)
def test_a_config_that_does_not_fit_is_told(tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        stages.load_preset("tiny", tmp_path / "c.yaml")


def test_a_config_overrides_the_preset(tmp_path):
    (tmp_path / "c.yaml").write_text("train: {lr: 1e-3, steps: 7}\nconditional: false\n")
    found = stages.load_preset("tiny", tmp_path / "c.yaml", vfm="random")
    assert (found.train.lr, found.train.steps, found.conditional, found.vfm) == (1e-3, 7, False, "random")
    assert found.train.batch == stages.PRESETS["tiny"].train.batch


def test_the_official_preset_is_the_releases():
    p = stages.PRESETS["official"]
    assert (p.size, p.grid, p.channels, p.transformer) == (256, 16, 32, "XL/1")
    assert (p.pack.batch, p.pack.lr, p.pack.betas, p.pack.reduction) == (32, 1e-5, (0.5, 0.9), "official")
    assert (p.train.steps, p.train.lr, p.train.lr_after, p.train.lr_step) == (320_000, 2e-4, 1e-4, 240_000)
    assert (p.refine.batch, p.refine.lr, p.refiner.residual) == (64, 1e-4, False)
    with torch.device("meta"):
        shape = p.refiner
        model = LatentGuidedRefiner(
            32, shape.channels, shape.middle_channels, shape.layers_per_block, shape.attention, residual=shape.residual
        )
    assert sum(x.numel() for x in model.parameters()) == 55_583_747


def write_images(folder: Path, count: int = 40, size: int = 40) -> Path:
    from PIL import Image

    rng = np.random.default_rng(1)
    for i in range(count):
        target = folder / f"class{i % 2}" / f"{i:03d}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        colour = np.full((size, size, 3), (40, 200, 90) if i % 2 else (200, 60, 60)) + rng.integers(
            -30, 30, (size, size, 3)
        )
        Image.fromarray(colour.astype(np.uint8)).save(target)
    return folder


def test_files_read_when_needed_equal_files_read_at_once(tmp_path):
    write_images(tmp_path, 7)
    lazy, held = image_files(tmp_path, 32), image_folder(tmp_path, 32)
    np.testing.assert_array_equal(lazy.signed(), held.signed())
    np.testing.assert_array_equal(lazy.signed(np.array([5, 2])), held.signed(np.array([5, 2])))
    assert lazy.labels.tolist() == held.labels.tolist()
    (tmp_path / "class0" / "bad.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"bad.png .*--max-bad allows 0"):
        image_files(tmp_path, 32)
    assert len(image_files(tmp_path, 32, max_bad=1).skipped) == 1


# --- the whole chain -----------------------------------------------------------------------------------------------

CONFIG = """
vfm: random
channels: 8
decoder: [16, 16, 16, 16]
groups: 8
pack: {steps: 4, batch: 8, save_every: 2}
transformer: Ti/1
train: {steps: 4, batch: 8, save_every: 2}
refiner: {channels: [8], middle_channels: 8, norm_num_groups: 4}
refine: {steps: 4, batch: 8, save_every: 2}
sampling: {steps: 3}
shard_size: 15
"""


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return 2, str(done.exception)
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Path:
    """A project made by ``repack-dit run`` on forty pictures."""
    home = tmp_path_factory.mktemp("chain")
    write_images(home / "data")
    (home / "c.yaml").write_text(CONFIG)
    words = ("run", str(home / "data"), "--out", str(home / "p"), "--config", str(home / "c.yaml"), "--samples", "20")
    code, output = command(*words, "--json")
    assert code == 0, output
    (home / "output.json").write_text(output)
    return home


def weights(project: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(project)): p.read_bytes()
        for part in ("autoencoder", "cache", "transformer", "refiner")
        for p in sorted((project / part).glob("*.safetensors"))
    }


def test_run_makes_everything_and_tells_it(chain):
    found = json.loads((chain / "output.json").read_text())
    assert found["train"]["images seen"] == 32
    assert found["train"]["epochs"] == pytest.approx(32 / 34)
    assert found["cache"]["latents"] == 34
    assert found["pack"]["perceptual distance"] == "features of random, in the place of LPIPS"
    assert found["pack"]["Watson-DFT"] == "untrained parameters"
    assert np.isfinite(found["pictures"]["fd_dino, refined"]).all()
    for name in ("grid", "latents", "refinement"):
        assert Path(found["pictures"][name]).stat().st_size > 1000
    assert json.loads((chain / "p" / "results.json").read_text())["pictures"]["samples"] == 20
    assert weights(chain / "p").keys() >= {"autoencoder/diffusion_pytorch_model.safetensors"}


def test_stage_by_stage_gives_the_same_weights_as_run(chain):
    project = str(chain / "steps")
    assert command("pack", str(chain / "data"), "--out", project, "--config", str(chain / "c.yaml"))[0] == 0
    for words in (("cache",), ("train",), ("refine", "--bundle-vfm")):
        code, output = command(words[0], project, *words[1:])
        assert code == 0, output
    assert weights(chain / "steps") == weights(chain / "p")
    bundled = RePackDiTPipeline.from_pretrained(chain / "steps" / "pipeline", vfm="bundled")
    assert bundled.autoencoder.features(torch.zeros(1, 3, 32, 32)).shape == (1, 32, 4, 4)
    assert not (chain / "p" / "pipeline" / "vfm").exists()


def test_sample_writes_pictures_and_a_grid(chain, tmp_path):
    code, output = command(
        "sample", str(chain / "p"), "--classes", "1,0", "--count", "2", "--steps", "2", "--out", str(tmp_path / "a")
    )
    assert code == 0, output
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["0-0.png", "0-1.png", "1-0.png", "1-1.png"]
    pipeline_folder = str(chain / "p" / "pipeline")
    code, output = command("sample", pipeline_folder, "--grid", "--steps", "2", "--out", str(tmp_path / "b"), "--json")
    assert code == 0, output
    assert json.loads(output)["pictures"] == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sample", "{p}", "--classes", "x"), "numbers like"),
        (("sample", "{p}", "--classes", "2"), r"\[0, 2\)"),
        (("sample", "{home}"), "holds no pipeline"),
        (("train", "{home}"), "holds no project"),
        (("run", "{home}/data", "--out", "{p}", "--config", "{home}/c.yaml"), "--resume goes on"),
        (("run", "{home}/data", "--out", "{p}", "--resume"), "other settings"),
        (("run", "{home}/data", "--out", "{home}"), "not empty"),
        (("run", "{home}/absent", "--out", "{home}/new", "--config", "{home}/c.yaml"), "absent"),
        (("run", "{home}/data", "--out", "{home}/new", "--preset", "huge"), "tiny, small, official"),
        (("pack", "{home}/data", "--out", "{home}/new", "--device", "cuda"), "no such device"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(chain, words, message):
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a device")
    given = [w.format(p=chain / "p", home=chain) for w in words]
    code, output = command(*given)
    assert code == 2
    assert len(output.strip().splitlines()) == 1
    import re

    assert re.search(message, output), output
    assert not (chain / "new").exists()


RUN = """
import torch
from pathlib import Path
from repack_dit import stages
torch.set_num_threads(threads)
preset = stages.load_preset("tiny", Path(config))
project = stages.create_project(Path(folder), data, preset, resume=True)
for stage in stages.STAGES:
    getattr(stages, stage)(project)
"""


def test_the_full_scale_recipe_names_commands_and_options_that_exist():
    recipe = (Path(__file__).parents[1] / "recipes" / "full_scale.sh").read_text().replace("\\\n", " ")
    lines = [line.split() for line in recipe.splitlines() if line.strip().startswith("repack-dit ")]
    assert {words[1] for words in lines} == {"pack", "cache", "refine", "sample", "evaluate"}
    for words in lines:
        described = command(words[1], "--help")[1]
        assert all(w in described for w in words if w.startswith("--")), words
    assert all(w in command("sample", "--help")[1] for w in ("--count", "--guidance", "--channels", "--interval"))


def test_full_scale_figures_are_judged_against_the_papers(tmp_path):
    from papershelf import Run
    from repack_dit.claims import PAPER

    claim = PAPER.claim("R8")
    for fid, refined, holds in ((1.85, 1.60, True), (1.85, 1.80, False)):
        run = Run(seed=0, out=tmp_path, scale="full", options={"fid": fid, "refined": refined})
        assert claim.measure(run).holds is holds
    with pytest.raises(ValueError, match="--fid and --refined"):
        claim.measure(Run(seed=0, out=tmp_path, scale="full", options={"fid": 0.0, "refined": 0.0}))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_project_killed_in_every_stage_ends_with_the_same_weights(chain):
    folder, script = chain / "killed", chain / "run.py"
    script.write_text(RUN)
    names = {"folder": str(folder), "data": str(chain / "data"), "config": str(chain / "c.yaml")}
    names["threads"] = torch.get_num_threads()
    signs = {
        "pack": folder / "training" / "autoencoder" / "last.safetensors",
        "cache": folder / "cache" / "latents-00000.safetensors",
        "train": folder / "training" / "transformer" / "last.safetensors",
        "refine": folder / "training" / "refiner" / "last.safetensors",
    }
    context = multiprocessing.get_context("forkserver")  # a fork of this process would inherit locks of its threads
    context.set_forkserver_preload(["repack_dit.stages"])
    killed = 0
    for sign in signs.values():
        process = context.Process(target=runpy.run_path, args=(str(script), names))
        process.start()
        deadline = time.monotonic() + 60
        while not sign.is_file() and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        alive = process.is_alive()
        if alive:
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
        process.join()
        assert sign.is_file()
    runpy.run_path(str(script), names)
    assert killed >= 3
    assert weights(folder) == weights(chain / "p")


def test_two_processes_train_one_model(chain, tmp_path):
    """Half the batch each, gradients averaged: the same loss sequence as one process up to each one's own noise."""
    import shutil

    project = tmp_path / "p"
    shutil.copytree(chain / "p", project)
    shutil.rmtree(project / "transformer")
    shutil.rmtree(project / "training" / "transformer")
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
    ]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    done = subprocess.run(
        [*launch, "-m", "repack_dit.training", str(project), "train"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = read_metrics(project / "training" / "transformer")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(np.isfinite(row["loss"]) for row in rows)
    RePackDiTTransformer2DModel.from_pretrained(project / "transformer")


def test_photos_and_digits_are_still_there():
    first, second = load_images("digits", 32, np.random.default_rng(0))
    assert len(first.labels) + len(second.labels) == 1797
