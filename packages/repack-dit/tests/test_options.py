"""Perceptual losses, options of the transformer, samplers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from papershelf import InputError
from repack_dit.convert import load_perceptual, load_watson
from repack_dit.losses import PerceptualDistance, WatsonDFT
from repack_dit.vision import random_dinov2


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, 2, 3, 16, 16, generator=generator).mul(2).sub(1)


# --- perceptual losses ---------------------------------------------------------------------------------------------


def test_token_distance_is_twice_one_minus_the_cosine_of_hidden_states(pair):
    vision = random_dinov2(grid=2, layers=4)
    perceptual = PerceptualDistance(vision)
    assert perceptual.layers == (1, 2, 3)  # a quarter, half and three quarters
    assert list(perceptual.parameters()) == []
    hidden = [vision.model(pixel_values=vision.prepare(x), output_hidden_states=True).hidden_states for x in pair]
    cosines = [F.cosine_similarity(hidden[0][i][:, 1:], hidden[1][i][:, 1:], dim=-1) for i in (1, 2, 3)]
    torch.testing.assert_close(perceptual(*pair), 2 * (1 - torch.stack(cosines)).mean(), rtol=1e-4, atol=1e-6)
    assert perceptual(pair[0], pair[0]) == 0


def test_token_distance_passes_its_gradient_to_the_prediction_only(pair):
    perceptual = PerceptualDistance(random_dinov2(grid=2))
    perceptual.vision.double()
    x, y = pair[0].double().requires_grad_(), pair[1].double().requires_grad_()
    perceptual(x, y).backward()
    assert y.grad is None
    step = torch.zeros_like(x)
    step[1, 2, 5, 7] = 1e-5
    with torch.no_grad():
        difference = (perceptual(x + step, y) - perceptual(x - step, y)) / 2e-5
    torch.testing.assert_close(x.grad[1, 2, 5, 7], difference, rtol=1e-4, atol=1e-9)


def test_lpips_with_a_trunk_is_the_papers_formula(pair, tmp_path):
    lpips = pytest.importorskip("lpips")
    from torchvision.models import squeezenet1_1

    torch.manual_seed(0)
    trunk = squeezenet1_1(weights=None).eval()
    torch.save(trunk.state_dict(), tmp_path / "trunk.pth")
    images = F.interpolate(pair.flatten(0, 1), 64).unflatten(0, (2, 2))
    perceptual = load_perceptual(None, tmp_path / "trunk.pth")
    assert perceptual.kind == "LPIPS (squeeze)"
    heads = torch.load(f"{next(iter(lpips.__path__))}/weights/v0.1/squeeze.pth", map_location="cpu", weights_only=True)
    shift, scale = (torch.tensor(v).view(3, 1, 1) for v in ((-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)))
    a, b = ((x - shift) / scale for x in images)
    total = torch.zeros(2)
    with torch.no_grad():
        for i, layer in enumerate(trunk.features):
            a, b = layer(a), layer(b)
            if i in (1, 4, 7, 9, 10, 11, 12):
                squared = (a / (a.norm(dim=1, keepdim=True) + 1e-10) - b / (b.norm(dim=1, keepdim=True) + 1e-10)) ** 2
                head = heads[f"lin{(1, 4, 7, 9, 10, 11, 12).index(i)}.model.1.weight"]
                total += F.conv2d(squared, head).mean((1, 2, 3))
    torch.testing.assert_close(perceptual(*images), total.mean(), rtol=1e-4, atol=1e-6)
    assert not any(p.requires_grad for p in perceptual.parameters())


def test_perceptual_bad_input(tmp_path, pair):
    with pytest.raises(ValueError, match="neither"):
        PerceptualDistance()
    with pytest.raises(ValueError, match=r"between 1 and 2, got \(3, 6, 9\)"):
        PerceptualDistance(random_dinov2(), layers=(3, 6, 9))
    pytest.importorskip("lpips")
    torch.save({"features.0.weight": torch.zeros(8, 3, 3, 3)}, tmp_path / "other.pth")
    with pytest.raises(InputError, match="expected torchvision's weights of VGG-16"):
        load_perceptual(None, tmp_path / "other.pth")


def official_watson():
    """Random parameters under the names of the authors' colour checkpoint."""
    torch.manual_seed(0)
    state = {"w_tild": torch.randn(3), "to_YCbCr.bias": torch.zeros(3)}
    for channel in ("ly", "lcb", "lcr"):
        state |= {f"{channel}.t_tild": torch.randn(8, 5), f"{channel}.w_phase_tild": torch.randn(8, 5)}
        state |= {f"{channel}.alpha": torch.rand(()), f"{channel}.w_tild": torch.randn(())}
        state |= {f"{channel}.beta": 1 + torch.rand(()), f"{channel}.blocksize": torch.tensor(8)}
    return state


def test_official_watson_parameters_enter_the_formula(tmp_path, pair):
    """One channel's distance in numpy, from the checkpoint's own parameters."""
    state = official_watson()
    torch.save(state, tmp_path / "rgb_watson_dft_trial0.pth")
    found = load_watson(tmp_path / "rgb_watson_dft_trial0.pth")(*pair)
    matrix = np.array([[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]])
    target, prediction = (np.einsum("dc,bchw->bdhw", matrix, (x.double().numpy() + 1) / 2) for x in (pair[1], pair[0]))
    total = np.zeros(2)
    for i, channel in enumerate(("ly", "lcb", "lcr")):
        p = {k.removeprefix(f"{channel}."): v.double().numpy() for k, v in state.items() if k.startswith(channel)}
        offset = 0.5 if i else 0.0
        blocks = [
            np.fft.rfft2((x[:, i] + offset).reshape(2, 2, 8, 2, 8).transpose(0, 1, 3, 2, 4).reshape(2, 4, 8, 8)) / 64
            for x in (target, prediction)
        ]
        size = [np.abs(c) for c in blocks]
        light = size[0][..., :1, :1]
        masked = np.exp(p["t_tild"]) * (light / light.mean()) ** p["alpha"]
        w = 1 / (1 + np.exp(-p["w_tild"]))
        contrast = size[0] ** w * masked ** (1 - w)
        slack = (np.exp(masked) * masked + np.exp(contrast) * contrast) / (np.exp(masked) + np.exp(contrast))
        pooled = ((np.abs(size[0] - size[1]) / slack) ** p["beta"]).sum((1, 2, 3)) ** (1 / p["beta"])
        angle = np.abs(np.angle(blocks[0] * blocks[1].conj()))
        weights = np.exp(p["w_phase_tild"])
        weights[[0, 0, 4, 4], [0, 4, 0, 4]] = 0
        share = np.exp(state["w_tild"].double().numpy())
        total += share[i] / share.sum() * (pooled + (angle * weights).sum((1, 2, 3)))
    np.testing.assert_allclose(found.numpy(), total, rtol=2e-3)
    untrained = WatsonDFT()(*pair)
    assert (np.abs(untrained.numpy() / total - 1) > 0.05).all()


def test_other_watson_checkpoints_are_refused(tmp_path):
    state = official_watson()
    del state["lcr.beta"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"expected lcr\.beta of shape \(\), got nothing"):
        load_watson(tmp_path / "w.pth")
