"""Learned latent spaces, ablation, export."""

import csv
import json

import numpy as np
import pytest
import torch

from papershelf import InputError
from repack_dit.ablation import ablation_cell, rgb_distance, vision_distance
from repack_dit.data import photo_crops
from repack_dit.losses import vision_alignment_loss
from repack_dit.metrics import frechet_distance, vision_embeddings
from repack_dit.redundancy import analyze_features, principal_pack
from repack_dit.spaces import LEARNED, autoencoder_space, extract_features, make_space, parse_space, train_space
from repack_dit.vision import random_dinov2


@pytest.fixture(scope="module")
def data():
    """Crops of photographs, 16 pixels, and features of them. Flat images would lose their colour to group norms."""
    images = photo_crops(np.random.default_rng(0), size=16, train=3, held_out=0)[0].signed()[:24]
    return extract_features(random_dinov2(grid=2), images), images


@pytest.mark.parametrize("kind", LEARNED)
def test_learned_spaces_train_and_share_one_interface(data, kind):
    features, images = data

    def made(steps):
        return train_space(kind, features, images, 4, generator=torch.Generator().manual_seed(0), steps=steps)

    before, after = made(0), made(40)
    assert after.name == ("rae" if kind == "rae" else f"{kind}-4")
    assert after.channels == (32 if kind == "rae" else 4)
    z = after.encode(features, images)
    assert z.shape == (24, after.channels, 2, 2)
    varying = after.std > 1e-5
    np.testing.assert_allclose(z.mean((0, 2, 3))[varying], 0, atol=1e-3)
    np.testing.assert_allclose(z.std((0, 2, 3), ddof=1)[varying], 1, atol=1e-3)
    errors = [np.abs(s.decode(s.encode(features, images)) - images).mean() for s in (before, after)]
    assert errors[1] < 0.9 * errors[0]
    if kind == "rae":  # the quickest stands for all: one seed, one space
        assert np.array_equal(made(40).decode(z), after.decode(z))


def test_repack_starts_from_the_packing_convolution_and_vae_from_pixels(data):
    features, images = data
    generator = torch.Generator().manual_seed(0)
    pack, vae = (train_space(k, features, images, 4, generator=generator, steps=0) for k in ("repack", "vae"))
    swapped = images[::-1].copy()
    assert np.array_equal(pack.encode(features, images), pack.encode(features, swapped))  # sees features only
    assert np.array_equal(vae.encode(features, images), vae.encode(features * 0, images))  # sees pixels only


def test_vision_alignment_by_hand():
    """Two positions, orthogonal against equal: the point term holds one, the pair term both."""
    f = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(1, 2, 1, 2)
    z = torch.tensor([[2.0, 3.0], [0.0, 0.0]]).view(1, 2, 1, 2)  # positions (2, 0) and (3, 0)
    point = (0 + 0.5) / 2  # cosines 1 and 0: relu(0.5 - 1), relu(0.5 - 0)
    pairs = (0 + 0.75 + 0.75 + 0) / 4  # cosines between positions: 1 against 0
    assert float(vision_alignment_loss(z, f)) == pytest.approx(point + pairs)
    assert vision_alignment_loss(5 * f, f) == 0


def test_alignment_turns_the_latent_towards_the_features(data):
    features, images = data
    found = {}
    for weight in (0.0, 10.0):
        space = train_space(
            "vavae", features, images, 4, generator=torch.Generator().manual_seed(0), steps=20, alignment_weight=weight
        )
        z = torch.from_numpy(space.encode(features, images)).movedim(1, -1).reshape(-1, 4).double()
        f = torch.from_numpy(features).movedim(1, -1).reshape(-1, 32).double()
        fit = z @ torch.linalg.lstsq(z, f).solution
        found[weight] = float(torch.cosine_similarity(fit, f).mean())
    assert found[10.0] > found[0.0]


def test_diffusers_autoencoders_are_spaces(data):
    _, images = data
    from diffusers import AutoencoderKL, AutoencoderRAE

    torch.manual_seed(0)
    rae = AutoencoderRAE(
        encoder_hidden_size=64,
        encoder_num_hidden_layers=1,
        encoder_input_size=28,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
        patch_size=8,
    ).eval()
    space = autoencoder_space(rae, images, "rae")
    with torch.no_grad():
        x = torch.from_numpy(images[:2])
        direct = (2 * rae((x + 1) / 2).sample - 1).clamp(-1, 1).numpy()
    np.testing.assert_allclose(space.decode(space.encode(images[:2, :0], images[:2])), direct, atol=2e-3)
    vae = AutoencoderKL(block_out_channels=(32,), latent_channels=2).eval()
    assert autoencoder_space(vae, images, "vae").channels == 2


def test_names_of_spaces():
    assert parse_space("repack-8") == ("repack", 8)
    assert parse_space("raw") == ("raw", 0)
    for name in ("raw-3", "pca", "pca-x", "pca-0", "jpeg-3"):
        with pytest.raises(InputError, match="spaces are raw, rae"):
            parse_space(name)
    with pytest.raises(ValueError, match="no power of two"):
        train_space(
            "vae", np.zeros((2, 3, 2, 2), np.float32), np.zeros((2, 3, 12, 12), np.float32), generator=torch.Generator()
        )


def test_both_scalings_of_the_spectrum():
    """One channel of large variance decides the covariance's spectrum and not the correlation's."""
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(500, 8, 1, 1)) * np.array([100.0] + [1.0] * 7)[:, None, None]
    report = analyze_features([maps], rng)
    assert report.participation_ratio < 1.1
    assert report.standardised_participation_ratio > 7.5
    assert report.components[0.9] == 1
    assert report.standardised_components[0.9] >= 7
    tokens = maps[:, :, 0, 0]
    plain, scaled = (principal_pack(tokens, tokens, 1, standardise=s) for s in (False, True))
    assert abs(plain.pack[0, 0]) > 0.99
    assert abs(scaled.pack[0, 0] * 100) < 0.99


def test_distances_are_those_of_the_metrics(data):
    _, images = data
    vision = random_dinov2(grid=2)
    other = images[::-1] * 0.5
    assert rgb_distance(images)(images) == pytest.approx(0, abs=1e-5)
    pixels = [((x + 1) * 127.5).round().astype(np.uint8).transpose(0, 2, 3, 1) for x in (other, images)]
    expected = frechet_distance(*(vision_embeddings(vision, p) for p in pixels))
    assert vision_distance(vision, images)(other) == pytest.approx(expected, rel=1e-6)


def test_ablate_command_resumes_and_writes_every_cell(tmp_path, monkeypatch, capsys):
    from repack_dit import ablation
    from repack_dit.cli import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (18, 16, 16, 3), dtype=np.uint8)
    np.savez("d.npz", pixels, np.arange(18) % 2)
    command = ["ablate", "d.npz", "--vfm", "random", "--size", "16", "--seeds", "2", "--samples", "50", "--json"]
    command += ["--checkpoints", "2,1", "--autoencoder-steps", "2", "--spaces", "raw,repack-4"]
    with pytest.raises(SystemExit) as stopped:
        app(command)
    assert stopped.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images seen"] == [48, 96]
    rows = list(csv.DictReader((tmp_path / "repack-dit-ablate" / "ablation.csv").open()))
    assert len(rows) == 2 * 2 * 2 * 2
    chosen = [float(r["value"]) for r in rows if (r["space"], r["metric"], r["step"]) == ("raw", "pooled RGB", "2")]
    assert np.mean(chosen) == pytest.approx(found["raw, pooled RGB"][1], rel=1e-3)
    assert (tmp_path / "repack-dit-ablate" / "fd-dinov2.png").is_file()
    # a finished cell is not computed again
    monkeypatch.setattr(ablation, "_prepared", lambda *_: pytest.fail("computed again"))
    with pytest.raises(SystemExit) as stopped:
        app(command)
    assert stopped.value.code == 0
    assert json.loads(capsys.readouterr().out) == found


def test_ablate_refuses_in_one_line(capsys):
    from repack_dit.cli import app

    for words, expected in ((["--spaces", "raw,jpeg"], "got 'jpeg'"), (["--checkpoints", "a"], "got 'a'")):
        with pytest.raises(SystemExit) as stopped:
            app(["ablate", "digits", *words])
        assert stopped.value.code == 2
        assert expected in capsys.readouterr().err


def test_a_cell_repeats_itself(tmp_path):
    np.savez(tmp_path / "d.npz", np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), dtype=np.uint8))
    given = {"data": str(tmp_path / "d.npz"), "vfm": "random", "size": 16, "checkpoints": (1,), "samples": 50}
    cells = [ablation_cell("vae-4", seed, **given, autoencoder_steps=1, max_bad=0) for seed in (0, 0, 1)]
    assert cells[0] == cells[1] != cells[2]
    assert 0 <= cells[0]["cka"] <= 1


def test_closed_and_trained_spaces_by_name(data):
    features, images = data
    generator = torch.Generator().manual_seed(0)
    for name in ("raw", "pca-4", "rrr-4", "pixel-4", "repack-4"):
        space = make_space(name, features, images, generator=generator, steps=1)
        assert space.name == name
        assert space.decode(space.encode(features, images)).shape == images.shape


# --- export --------------------------------------------------------------------------------------------------------


def saved(folder, **options):
    from repack_dit import RePackDiTTransformer2DModel

    sizes = {"sample_size": 4, "in_channels": 3, "num_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = RePackDiTTransformer2DModel(**{"num_classes": 3, **sizes, **options})
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2) if p.requires_grad else None
    model.save_pretrained(folder)
    return model.eval()


def test_exported_onnx_gives_the_models_numbers_for_any_batch(tmp_path, capsys):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from repack_dit.cli import app

    model = saved(tmp_path / "m")
    with pytest.raises(SystemExit) as stopped:
        app(["export", str(tmp_path / "m"), str(tmp_path / "o"), "--json"])
    assert stopped.value.code == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["largest relative difference"] < 1e-4
    session = runtime.InferenceSession(str(tmp_path / "o" / "transformer.onnx"), providers=["CPUExecutionProvider"])
    for batch in (1, 7):
        z, t, y = torch.randn(batch, 3, 4, 4), torch.rand(batch), torch.arange(batch) % 4
        (found,) = session.run(None, {"hidden_states": z.numpy(), "timestep": t.numpy(), "class_labels": y.numpy()})
        with torch.no_grad():
            expected = model(z, t, y).sample.numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_exported_program_of_an_unconditional_wide_headed_model(tmp_path):
    from repack_dit.export import export_transformer

    model = saved(tmp_path / "m", num_classes=0, head_width=64, head_layers=1)
    assert export_transformer(model, tmp_path / "o", "torch") <= 1e-4
    z, t = torch.randn(5, 3, 4, 4), torch.rand(5)
    with torch.no_grad():
        found = torch.export.load(tmp_path / "o" / "transformer.pt2").module()(z, t)
        torch.testing.assert_close(found, model(z, t).sample, atol=1e-4, rtol=1e-4)


def test_export_refuses_and_leaves_nothing(tmp_path, monkeypatch):
    from repack_dit import export

    model = saved(tmp_path / "m")
    monkeypatch.setattr(export, "_torch", lambda program, example, other, path: program(*other) * 1.01)
    with pytest.raises(InputError, match=r"differs from the model by 0\.01"):
        export.export_transformer(model, tmp_path / "o", "torch")
    with pytest.raises(InputError, match="got 'tflite'"):
        export.export_transformer(model, tmp_path / "o", "tflite")
    with pytest.raises(InputError, match="exists already"):
        export.export_transformer(model, tmp_path / "m", "torch")
    with pytest.raises(InputError, match="holds no saved transformer"):
        export.read_transformer(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
