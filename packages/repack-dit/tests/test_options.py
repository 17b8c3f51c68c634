"""Perceptual losses, options of the transformer, samplers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from papershelf import InputError
from repack_dit import (
    RePackDiTTransformer2DModel,
    euler_sample,
    flow_matching_loss,
    guided_velocity,
    heun_sample,
    sde_sample,
)
from repack_dit.convert import load_perceptual, load_watson
from repack_dit.losses import PerceptualDistance, RepresentationAlignment, WatsonDFT
from repack_dit.transformer import Block, dimension_shift, shifted_times, time_frequencies
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


# --- the transformer's options -------------------------------------------------------------------------------------


def build(seed=0, **options):
    sizes = {
        "sample_size": 4,
        "in_channels": 3,
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_classes": 3,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = RePackDiTTransformer2DModel(**{**sizes, **options})
        for p in model.parameters():
            if p.requires_grad:
                torch.nn.init.normal_(p, std=0.2)
    return model.eval()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(5, 3, 4, 4, generator=generator),
        torch.rand(5, generator=generator),
        torch.tensor([0, 1, 2, 3, 0]),
    )


def test_with_the_flags_off_a_block_is_sits():
    torch.manual_seed(0)
    block = Block(16, 2, swiglu=False, rms=False, qk_norm=False, mlp_ratio=4.0)
    torch.nn.init.normal_(block.adaLN_modulation[1].weight, std=0.3)
    x, c = torch.randn(3, 9, 16), torch.randn(3, 16)
    shift1, scale1, gate1, shift2, scale2, gate2 = block.adaLN_modulation(c)[:, None].chunk(6, -1)
    reference = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    reference.load_state_dict(
        {
            "in_proj_weight": block.attn.qkv.weight,
            "in_proj_bias": block.attn.qkv.bias,
            "out_proj.weight": block.attn.proj.weight,
            "out_proj.bias": block.attn.proj.bias,
        }
    )
    h = F.layer_norm(x, (16,), eps=1e-6) * (1 + scale1) + shift1
    y = x + gate1 * reference(h, h, h)[0]
    h = F.layer_norm(y, (16,), eps=1e-6) * (1 + scale2) + shift2
    y = y + gate2 * block.mlp[2](F.gelu(block.mlp[0](h), approximate="tanh"))
    torch.testing.assert_close(block(x, c, None), y, atol=1e-5, rtol=1e-5)
    sit = build(use_rope=False, use_swiglu=False, use_rmsnorm=False)
    assert sit._angles(torch.device("cpu")) is None
    assert not any(isinstance(m, torch.nn.RMSNorm) or "w12" in n for n, m in sit.named_modules())


def test_time_scale_multiplies_the_time(batch):
    z, t, labels = batch
    plain, scaled = build(), build(time_scale=1000.0)
    seen = {}
    for name, model in (("plain", plain), ("scaled", scaled)):
        model.t_embedder.mlp[0].register_forward_pre_hook(lambda _m, x, name=name: seen.__setitem__(name, x[0]))
        model(z, t, labels)
    torch.testing.assert_close(seen["scaled"], time_frequencies(1000 * t))
    assert not torch.allclose(seen["plain"], seen["scaled"])


def test_the_wide_head_conditions_each_token_on_the_backbone(batch):
    z, t, labels = batch[0].double(), batch[1].double(), batch[2]
    model = build(head_width=64, head_heads=4, head_layers=1).double()
    found = model(z, t, labels).sample
    time = model.t_embedder(t)
    s = model.x_embedder.proj(z).flatten(2).transpose(1, 2) + model.pos_embed
    for block in model.blocks:
        s = block(s, time + model.y_embedder.embedding_table(labels), model._angles(s.device))
    condition = model.head.condition(F.silu(time[:, None] + s))
    x = model.head.x_embedder.proj(z).flatten(2).transpose(1, 2)
    # token by token: as if every token's condition were the whole image's
    rotation, block = model._angles(x.device, 64, 4), model.head.blocks[0]
    y = torch.stack([block(x, condition[:, i], rotation)[:, i] for i in range(16)], 1)
    alone = torch.stack([block(x[:, :1], condition[:, 0], None)])
    assert alone.shape == (1, 5, 1, 64)
    # attention mixes tokens that were modulated by their own conditions, so that only the MLP path is separable
    assert not torch.allclose(block(x, condition, rotation), y)
    same = condition[:, :1].expand(-1, 16, -1)
    torch.testing.assert_close(block(x, same, rotation), block(x, condition[:, 0], rotation))
    out = model.final_layer(block(x, condition, rotation), condition)
    torch.testing.assert_close(found, out.view(5, 4, 4, 3).permute(0, 3, 1, 2))


def test_a_fresh_wide_head_is_the_identity_with_velocity_zero(batch, tmp_path):
    z, t, labels = batch
    model = RePackDiTTransformer2DModel(
        sample_size=4, in_channels=3, num_layers=1, hidden_size=32, num_attention_heads=2, num_classes=3, head_width=64
    )
    assert not model(z, t, labels).sample.any()
    x, c = torch.randn(2, 16, 64), torch.randn(2, 16, 64)
    assert torch.equal(model.head.blocks[1](x, c, model._angles(x.device, 64, 16)), x)
    built = build(head_width=64)
    built.save_pretrained(tmp_path)
    again = RePackDiTTransformer2DModel.from_pretrained(tmp_path)
    torch.testing.assert_close(again(z, t, labels).sample, built(z, t, labels).sample)
    with pytest.raises(ValueError, match="head width 60 over 16 heads"):
        build(head_width=60)


def test_alignment_adds_half_the_mean_of_one_minus_the_cosine(batch):
    z, _, labels = batch
    model = build().requires_grad_(True)
    torch.manual_seed(0)
    alignment = RepresentationAlignment(model, 7, layer=2, hidden=8)
    features = torch.randn(5, 7, 4, 4)
    captured = []
    model.blocks[1].register_forward_hook(lambda _m, _i, out: captured.append(out))

    def loss(**more):
        return flow_matching_loss(model, z, labels, generator=torch.Generator().manual_seed(0), **more)

    both, plain = loss(alignment=alignment, features=features), loss()
    projected = alignment.projector(captured[0]).transpose(1, 2).reshape(5, 7, 4, 4)
    expected = 0.5 * (1 - F.cosine_similarity(projected, features, dim=1)).mean()
    torch.testing.assert_close(both - plain, expected, atol=1e-5, rtol=1e-4)
    both.backward()
    assert model.blocks[1].mlp.w3.weight.grad.any()
    assert alignment.projector[0].weight.grad.any()
    gradient = model.blocks[0].attn.qkv.weight.grad.clone()
    model.zero_grad()
    model.enable_gradient_checkpointing()
    loss(alignment=alignment, features=features).backward()
    torch.testing.assert_close(model.blocks[0].attn.qkv.weight.grad, gradient)
    with pytest.raises(ValueError, match="between 1 and 2, got 8"):
        RepresentationAlignment(model, 7)
    with pytest.raises(ValueError, match="got one of them"):
        loss(alignment=alignment)
    with pytest.raises(ValueError, match="features of 16 positions"):
        loss(alignment=alignment, features=features[..., :2])


def test_shifted_training_times_are_shifted_sampling_times(batch):
    """The dimension's shift moves the logits by its logarithm: the law of t' = s t / (1 + (s - 1) t)."""
    z, *_ = batch
    assert dimension_shift(32, 16, 16) == pytest.approx(2**0.5)
    assert dimension_shift(4, 32, 32) == 1
    seen = []

    def model(noisy, t, labels, return_dict):
        seen.append(t)
        return (torch.zeros_like(noisy),)

    s = 1 / dimension_shift(768, 16, 16)
    for shift in (1.0, s):
        flow_matching_loss(model, z, None, generator=torch.Generator().manual_seed(0), shift=shift)
    torch.testing.assert_close(seen[1], s * seen[0] / (1 + (s - 1) * seen[0]))
    middle = shifted_times(3, s)[1]
    assert float(middle) == pytest.approx(s * 0.5 / (1 + (s - 1) * 0.5))


# --- samplers ------------------------------------------------------------------------------------------------------


def linear(z, t, labels, return_dict):
    """dz/dt = (1 - t) z, so that z(1) = z(0) exp(1/2)."""
    return ((1 - t).view(-1, 1, 1, 1) * z,)


def test_heun_is_of_order_two_and_euler_of_order_one():
    start = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    orders = {}
    for sampler in (euler_sample, heun_sample):
        errors = [abs(float(sampler(linear, start, None, points=n + 1)) - np.exp(0.5)) for n in (16, 32)]
        orders[sampler.__name__] = np.log2(errors[0] / errors[1])
    assert orders["euler_sample"] == pytest.approx(1, abs=0.1)
    assert orders["heun_sample"] == pytest.approx(2, abs=0.1)


M, S = 0.7, 0.4


def gaussian(z, t, labels, return_dict):
    """Exact mean velocity for data N(M, S^2)."""
    t = t.view(-1, 1, 1, 1)
    variance = t**2 * S**2 + (1 - t) ** 2
    return (M + (t * S**2 - (1 - t)) / variance * (z - t * M),)


@pytest.mark.parametrize("diffusion", [1.0, 4.0])
def test_the_stochastic_sampler_keeps_the_gaussian_marginals(diffusion):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20_000, 1, 1, 1, generator=generator)
    halfway = []

    def watched(z, t, labels, return_dict):
        if abs(float(t[0]) - 0.5) < 1e-6:
            halfway.append(z)
        return gaussian(z, t, labels, return_dict)

    found = sde_sample(watched, noise, None, generator=generator, points=201, diffusion=diffusion)
    assert float(found.mean()) == pytest.approx(M, abs=0.015)
    assert float(found.std()) == pytest.approx(S, abs=0.01)
    assert float(halfway[0].mean()) == pytest.approx(0.5 * M, abs=0.02)
    assert float(halfway[0].std()) == pytest.approx((0.25 * S**2 + 0.25) ** 0.5, abs=0.02)
    # it does not follow the deterministic path
    assert np.corrcoef(found.flatten(), euler_sample(gaussian, noise, None, points=201).flatten())[0, 1] < 0.9


def test_without_diffusion_the_stochastic_sampler_is_eulers():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, 1, 2, 2, generator=generator)
    found = sde_sample(gaussian, noise, None, generator=generator, points=11, shift=0.3, diffusion=0.0)
    assert torch.equal(found, euler_sample(gaussian, noise, None, points=11, shift=0.3))
    with pytest.raises(ValueError, match="diffusion must be >= 0"):
        sde_sample(gaussian, noise, None, generator=generator, diffusion=-1.0)


def test_autoguidance_extrapolates_from_the_weak_model(batch):
    z, _, labels = batch
    model, weak = build(), build(seed=1, num_layers=1)
    with torch.no_grad():
        strong_v, weak_v = (m(z, torch.full((5,), 0.3), labels).sample for m in (model, weak))
        found = guided_velocity(model, z, 0.3, labels, scale=2.5, weak=weak)
        torch.testing.assert_close(found, weak_v + 2.5 * (strong_v - weak_v))
        outside = guided_velocity(model, z, 0.3, labels, scale=2.5, weak=weak, interval=(0.5, 1.0))
        torch.testing.assert_close(outside, strong_v)
    unlabelled = guided_velocity(linear, z, 0.3, None, scale=3.0, weak=gaussian)
    time = torch.full((5,), 0.3)
    a, b = linear(z, time, None, False)[0], gaussian(z, time, None, False)[0]
    torch.testing.assert_close(unlabelled, b + 3 * (a - b))
