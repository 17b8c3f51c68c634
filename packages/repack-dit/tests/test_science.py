"""Losses, redundancy, spaces, metrics, training and the command line: facts and bad input."""

import contextlib
import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.linalg import sqrtm

from papershelf import InputError, Run
from repack_dit import analyze_features, best_linear_pack, flow_matching_loss
from repack_dit.claims import PAPER
from repack_dit.cli import app
from repack_dit.data import centre_crop, image_folder, photo_crops
from repack_dit.losses import (
    WatsonDFT,
    adaptive_weight,
    drop_labels,
    focal_frequency_loss,
    hinge_discriminator_loss,
    reconstruction_terms,
    velocity_loss,
)
from repack_dit.metrics import frechet_distance, frechet_from_moments, kernel_distance
from repack_dit.redundancy import (
    components_for,
    effective_rank,
    levina_bickel,
    linear_cka,
    merge,
    moments,
    participation_ratio,
    principal_pack,
    two_nn,
)
from repack_dit.spaces import SPACES, fit_space, images_of, maps_of, patches_of, tokens_of
from repack_dit.vision import VisionFeatures, load_vfm, random_dinov2


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, 2, 3, 16, 16, generator=generator).mul(2).sub(1)


# --- losses --------------------------------------------------------------------------------------------------------


def test_focal_frequency_loss_at_alpha_0_is_the_squared_error_and_it_is_symmetric(pair):
    torch.testing.assert_close(focal_frequency_loss(*pair, alpha=0.0), (pair[0] - pair[1]).square().mean())
    torch.testing.assert_close(focal_frequency_loss(*pair), focal_frequency_loss(pair[1], pair[0]))
    assert focal_frequency_loss(pair[0], pair[0]) == 0


def test_focal_frequency_gradient_holds_the_weights_fixed(pair):
    a, b = pair[0, :1, :1, :4, :4].double(), pair[1, :1, :1, :4, :4].double()
    x = a.clone().requires_grad_()
    (found,) = torch.autograd.grad(focal_frequency_loss(x, b), x)
    spectrum = torch.fft.fft2(a, norm="ortho") - torch.fft.fft2(b, norm="ortho")
    weight = spectrum.abs() / spectrum.abs().amax((-2, -1), keepdim=True)

    def fixed(y):
        return (weight * (torch.fft.fft2(y, norm="ortho") - torch.fft.fft2(b, norm="ortho")).abs() ** 2).mean()

    step = torch.zeros_like(a)
    step[0, 0, 1, 2] = 1e-6
    torch.testing.assert_close(found[0, 0, 1, 2], (fixed(a + step) - fixed(a - step)) / 2e-6, rtol=1e-5, atol=1e-9)


def test_watson_is_zero_at_equality_positive_else_with_finite_gradient(pair):
    watson = WatsonDFT()
    assert watson(pair[0], pair[0]).abs().max() < 1e-3
    assert (watson(*pair) > 1).all()
    x = pair[0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(watson(x, pair[0]).sum(), x)
    assert torch.isfinite(gradient).all()


def test_watson_masks_come_from_the_target(pair):
    bright = (pair[0] * 0.2 + 0.7, pair[1])
    assert not torch.allclose(WatsonDFT()(*bright), WatsonDFT()(bright[1], bright[0]), rtol=1e-3)


def test_adaptive_weight_scales_with_the_reference_and_against_the_adversary():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    base = adaptive_weight((w**2).sum(), (3 * w).sum(), w)
    torch.testing.assert_close(base, torch.tensor(20.0).sqrt() / (torch.tensor(18.0).sqrt() + 1e-4))
    torch.testing.assert_close(adaptive_weight(5 * (w**2).sum(), (3 * w).sum(), w), 5 * base)
    assert adaptive_weight(1e9 * (w**2).sum(), (1e-9 * w).sum(), w) == 1e4


def test_hinge_loss_by_hand():
    assert hinge_discriminator_loss(torch.tensor([2.0, 0.5]), torch.tensor([-2.0, 1.0])) == (0.25 + 1.0) / 2


def test_reductions_differ_by_the_number_of_elements_in_the_pixel_term_only(pair):
    mean, official = (reconstruction_terms(*pair, WatsonDFT(), reduction=r) for r in ("mean", "official"))
    torch.testing.assert_close(official["pixel"], mean["pixel"] * 3 * 16 * 16)
    torch.testing.assert_close(official["focal"], mean["focal"])
    same_order = reconstruction_terms(*pair, WatsonDFT(), reduction="official", official_order=False)
    torch.testing.assert_close(same_order["watson"], mean["watson"])


def test_label_dropout_rate():
    labels = drop_labels(torch.zeros(20_000, dtype=torch.long), 7, 0.1, torch.Generator().manual_seed(0))
    assert set(labels.tolist()) == {0, 7}
    assert abs(int((labels == 7).sum()) - 2000) < 4 * (20_000 * 0.09) ** 0.5


def test_velocity_loss_by_hand():
    v, u = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1), torch.tensor([0.0, 2.0]).view(1, 2, 1, 1)
    assert velocity_loss(v, u) == pytest.approx(2.5 + 1)
    assert velocity_loss(v, u, cosine_weight=0) == 2.5


class Gaussian(torch.nn.Module):
    """Exact mean velocity for data N(m, s^2): E[u | z_t], or a multiple of it."""

    def __init__(self, m, s, factor=1.0):
        super().__init__()
        self.m, self.s, self.factor = m, s, factor

    def forward(self, z, t, labels, return_dict):
        t = t.view(-1, 1, 1, 1)
        variance = t**2 * self.s**2 + (1 - t) ** 2
        return (self.factor * (self.m + (t * self.s**2 - (1 - t)) / variance * (z - t * self.m)),)


def test_flow_loss_is_least_at_the_conditional_mean_velocity_and_euler_samples_have_the_data_moments():
    from repack_dit import euler_sample

    m, s = 0.7, 0.4
    z = m + s * torch.randn(20_000, 1, 1, 1, generator=torch.Generator().manual_seed(0))

    def loss(factor):
        generator = torch.Generator().manual_seed(1)
        return float(flow_matching_loss(Gaussian(m, s, factor), z, None, generator=generator, cosine_weight=0))

    assert loss(1.0) < min(loss(0.9), loss(1.1))
    noise = torch.randn(20_000, 1, 1, 1, generator=torch.Generator().manual_seed(2))
    samples = euler_sample(Gaussian(m, s), noise, None, points=201)
    assert float(samples.mean()) == pytest.approx(m, abs=0.015)
    assert float(samples.std()) == pytest.approx(s, abs=0.01)


# --- redundancy ----------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 5), st.integers(0, 2**31))
def test_merged_moments_are_those_of_the_union(n, m, c, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(3, 2, (n, c)), rng.normal(size=(m, c))
    found, whole = merge(moments(a), moments(b)), moments(np.concatenate([a, b]))
    np.testing.assert_allclose(found.mean, whole.mean, atol=1e-12)
    np.testing.assert_allclose(found.scatter, whole.scatter, atol=1e-9)


def test_spectrum_summaries_in_closed_form():
    assert participation_ratio(np.ones(7)) == pytest.approx(7)
    assert effective_rank(np.ones(7)) == pytest.approx(7)
    assert participation_ratio(np.array([1.0, 0, 0])) == pytest.approx(1)
    assert [components_for(np.array([5.0, 3, 1, 1]), s) for s in (0.5, 0.8, 0.9, 1.0)] == [1, 2, 3, 4]


def test_planted_spectrum_and_intrinsic_dimension():
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(50, 5)))
    tokens = rng.normal(size=(3000, 5)) @ basis.T
    report = analyze_features([tokens[:1500, :, None, None], tokens[1500:, :, None, None]], rng)
    np.testing.assert_allclose(report.eigenvalues, np.linalg.eigvalsh(np.cov(tokens.T))[::-1].clip(0), atol=1e-10)
    assert report.components[0.99] == 5
    assert two_nn(tokens) == pytest.approx(5, rel=0.15)
    assert levina_bickel(tokens) == pytest.approx(5, rel=0.15)
    low, high = report.two_nn_interval
    assert low < report.two_nn < high


def test_cka_is_invariant_to_rotation_and_scale():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6))
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    assert linear_cka(x, 3 * x @ turn) == pytest.approx(1)
    assert linear_cka(x, rng.normal(size=(200, 6))) < 0.2


def test_best_linear_pack_is_the_optimum_that_gradient_descent_finds_and_beats_pca_at_every_d():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6)) * np.array([5, 3, 1, 1, 0.5, 0.2])
    y = x @ rng.normal(size=(6, 8)) / np.array([5, 3, 1, 1, 0.5, 0.2]).max() + 0.1 * rng.normal(size=(300, 8))

    def error(pack):
        return float(np.mean((pack.decode(pack.encode(x)) - y) ** 2))

    for d in range(1, 7):
        assert error(best_linear_pack(x, y, d, 1e-9)) <= error(principal_pack(x, y, d, 1e-9)) + 1e-9
    X, Y = (torch.tensor(v - v.mean(0)) for v in (x, y))
    A = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    B = torch.randn(2, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    search = torch.optim.LBFGS([A, B], max_iter=500, line_search_fn="strong_wolfe", tolerance_change=1e-14)

    def closure():
        search.zero_grad()
        loss = (X @ A @ B - Y).square().mean()
        loss.backward()
        return loss

    search.step(closure)
    assert error(best_linear_pack(x, y, 2, 1e-9)) == pytest.approx(float(closure().detach()), rel=1e-4)


def test_patches_and_tokens_return():
    images = np.random.default_rng(0).normal(size=(3, 3, 8, 8))
    np.testing.assert_array_equal(images_of(patches_of(images, 4), 4), images)
    maps = images[:, :, :4, :4]
    np.testing.assert_array_equal(maps_of(tokens_of(maps), 4), maps)
    assert patches_of(images, 4)[1, 0] == images[0, 0, 0, 2]


@pytest.mark.parametrize("kind", SPACES)
def test_latents_are_normalised_and_raw_and_full_rank_packs_decode_alike(kind):
    rng = np.random.default_rng(0)
    features, images = rng.normal(size=(60, 6, 2, 2)), rng.uniform(-1, 1, (60, 3, 4, 4))
    space = fit_space(kind, features, images, 6)
    z = space.encode(features, images)
    np.testing.assert_allclose(tokens_of(z).mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(tokens_of(z).std(0, ddof=1), 1, atol=1e-5)
    if kind in ("raw", "rrr"):
        other = fit_space("rrr" if kind == "raw" else "raw", features, images, 6)
        np.testing.assert_allclose(space.decode(z), other.decode(other.encode(features, images)), atol=1e-3)


# --- metrics -------------------------------------------------------------------------------------------------------


def test_frechet_distance_against_closed_form_and_scipy():
    assert frechet_from_moments(
        np.array([1.0]), np.array([[4.0]]), np.array([3.0]), np.array([[9.0]])
    ) == pytest.approx(5)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(200, 12)), rng.normal(1, 2, (150, 12)) @ rng.normal(size=(12, 12))
    s, t = np.cov(a.T), np.cov(b.T)
    expected = np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(s + t - 2 * sqrtm(s @ t).real)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-6)
    assert frechet_distance(a[:5], a[:5]) == pytest.approx(0, abs=1e-6)  # rank-deficient


def test_kernel_distance_is_near_zero_for_one_law_and_positive_for_two():
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(400, 4)), rng.normal(size=(400, 4)), rng.normal(1, 1, (400, 4))
    assert abs(kernel_distance(a, b)) < 0.1 * kernel_distance(a, c)


# --- vision --------------------------------------------------------------------------------------------------------


def tiny_models():
    import transformers as t

    common = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return {
        "dinov2": t.Dinov2Model(
            t.Dinov2Config(**{k: v for k, v in common.items() if k != "intermediate_size"}, patch_size=4, image_size=16)
        ),
        "registers": t.Dinov2WithRegistersModel(
            t.Dinov2WithRegistersConfig(
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                patch_size=4,
                image_size=16,
                num_register_tokens=4,
            )
        ),
        "dinov3": t.DINOv3ViTModel(t.DINOv3ViTConfig(**common, patch_size=4, image_size=16, num_register_tokens=4)),
        "siglip": t.SiglipVisionModel(t.SiglipVisionConfig(**common, patch_size=4, image_size=16)),
        "mae": t.ViTMAEModel(t.ViTMAEConfig(**common, patch_size=4, image_size=16, mask_ratio=0.0)),
        "clip": t.CLIPVisionModel(t.CLIPVisionConfig(**common, patch_size=4, image_size=16)),
    }


@pytest.mark.parametrize("name", ["dinov2", "registers", "dinov3", "siglip", "mae", "clip"])
def test_each_family_gives_a_map_in_row_order(name):
    """A bright patch changes its own position most."""
    torch.manual_seed(0)
    vision = VisionFeatures(tiny_models()[name], 4)
    x = torch.zeros(1, 3, 16, 16)
    changed = x.clone()
    changed[:, :, 4:8, 8:12] = 1
    with torch.no_grad():
        found = (vision(changed) - vision(x)).norm(dim=1)[0]
    assert found.shape == (4, 4)
    assert int(found.argmax()) == 1 * 4 + 2
    assert not any(p.requires_grad for p in vision.parameters())


def test_a_wrong_grid_or_model_is_named():
    from transformers import BertConfig, BertModel

    vision = random_dinov2(4)
    vision.prefix_tokens = 3
    with pytest.raises(ValueError, match="dinov2 gave 17 tokens for a 4 x 4 grid, expected 19"):
        vision(torch.zeros(1, 3, 56, 56))
    bert = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8))
    with pytest.raises(ValueError, match="bert gives no patch tokens"):
        VisionFeatures(bert, 4)
    with pytest.raises(InputError, match="cannot load the vision model"):
        load_vfm("/nowhere/at/all", 4)


@pytest.mark.network
def test_the_packaged_dinov2_tells_photographs_apart():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, held = photo_crops(np.random.default_rng(0), train=12, held_out=6)
    scores = []
    for vision in (load_vfm("packaged-dinov2-small", 4), random_dinov2(4, width=384, layers=2)):
        a, b = (vision.pooled(torch.from_numpy(x.signed())).numpy() for x in (train, held))
        scores.append(
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
            .fit(a, train.labels)
            .score(b, held.labels)
        )
    trained, untrained = scores
    assert trained > max(untrained, 0.5)  # chance is 1/9


# --- data ----------------------------------------------------------------------------------------------------------


def test_centre_crop_takes_the_middle():
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 20:60] = 200
    assert (centre_crop(Image.fromarray(pixels), 40) == 200).all()
    assert (centre_crop(Image.fromarray(pixels), 8)[:, 1:-1] > 190).all()


def test_image_folder_names_what_it_cannot_read(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((20, 20, 3), 90, np.uint8)).save(tmp_path / name / "x.png")
    (tmp_path / "b" / "bad.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"b/bad\.png"):
        image_folder(tmp_path, 16)
    found = image_folder(tmp_path, 16, max_bad=1)
    assert found.classes == ("a", "b")
    assert found.labels.tolist() == [0, 1]
    assert "bad.png" in found.skipped[0]
    with pytest.raises(ValueError, match="divisible by 8, got 20; nearest are 16 and 24"):
        image_folder(tmp_path, 20)


# --- command line and claims ---------------------------------------------------------------------------------------


def command(*words, cwd):
    """The command line in this process: importing diffusers once more for every call would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["repack-dit", *words]
    try:
        with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            app()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = argv
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def test_count_prints_the_official_size(tmp_path):
    done = command("count", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["trainable parameters"] == 674_961_824


def test_spaces_and_analyze_of_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    for i in range(40):
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(tmp_path / "pictures" / f"{i}.png")
    shared = ("pictures", "--vfm", "random", "--size", "16", "--json")
    found = json.loads(command("spaces", *shared, "--channels", "4", cwd=tmp_path).stdout)
    assert found["rrr-4 PSNR, dB"] > 5
    assert (tmp_path / found["picture"]).is_file()
    assert json.loads(command("analyze", *shared, cwd=tmp_path).stdout)["tokens"] == 34 * 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["analyze", "nothing"], "no folder nothing"),
        (["analyze", "photos", "--size", "20"], "divisible by 8, got 20"),
        (["count", "--preset", "Q/1"], "got 'Q/1'"),
        (["convert", "decoder", "x.pt", "out"], "got 'decoder'"),
        (["convert", "refiner", "x.pt", "out"], "no checkpoint at x.pt"),
    ],
)
def test_bad_words_get_one_line_and_code_2(tmp_path, words, message):
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("claim", [c for c in PAPER.claims if c.scale != "full"], ids=lambda c: c.id)
def test_claims_at_a_small_size(claim, tmp_path):
    values = claim.measure(Run(seed=1, scale="tiny", out=tmp_path)).values
    match claim.id:
        case "R1":
            assert 1 <= values["participation_ratio"] <= 32
        case "R6":
            assert values["worst_official"] < values["least_mean"] / 100
        case "R2" | "R3":
            assert all(np.isfinite(rows).all() and np.min(rows) > 0 for k, rows in values.items())
        case "R4" | "R5":
            assert np.isfinite(values.get("rows", values.get("with"))).all()
        case _:
            assert np.isfinite(values["gains"]).all()
