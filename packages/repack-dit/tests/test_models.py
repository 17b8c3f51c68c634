"""Counts, oracles and invariances of the models."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import nn

from repack_dit import (
    LatentGuidedRefiner,
    RePackAutoencoder,
    RePackDiTTransformer2DModel,
    euler_sample,
    guided_velocity,
)
from repack_dit.convert import decoder_keys, load_official, load_weights, refiner_keys
from repack_dit.losses import patch_discriminator
from repack_dit.transformer import (
    Attention,
    axial_rotation,
    rotate,
    shifted_times,
    sincos_positions,
    time_frequencies,
)


def parameters(module):
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


@pytest.fixture
def model():
    torch.manual_seed(0)
    found = RePackDiTTransformer2DModel(
        sample_size=4, in_channels=5, num_layers=2, hidden_size=32, num_attention_heads=2, num_classes=3
    )
    for p in found.parameters():
        if p.requires_grad:
            nn.init.normal_(p, std=0.2)
    return found.eval()


def test_parameter_counts_are_those_of_the_official_models():
    with torch.device("meta"):
        autoencoder = RePackAutoencoder()
        transformer = RePackDiTTransformer2DModel.from_preset("XL/1")
        refiner = LatentGuidedRefiner(residual=False)
        discriminator = patch_discriminator()
    assert parameters(autoencoder.decoder) == 41_417_603
    convolutions = (autoencoder.pack_conv, autoencoder.quant_conv, autoencoder.post_quant_conv)
    assert [parameters(m) for m in convolutions] == [49_152, 4_160, 1_056]
    assert parameters(transformer.blocks[0]) == 23_908_992
    assert parameters(transformer) == 674_961_824
    assert transformer.pos_embed.numel() == 294_912
    assert parameters(refiner) == 55_583_747
    assert parameters(discriminator) == 11_038_081


def test_rotary_positions_at_row_3_column_5():
    cosine, sine = axial_rotation(72, 16)
    q = rotate(torch.arange(72)[None] / 72, cosine[53:54], sine[53:54])[0]
    expected = [-0.00196000, -0.01374990, -0.04686089, 0.01765710, 0.63461161, -0.33369130]
    torch.testing.assert_close(q[[0, 1, 2, 3, 36, 37]], torch.tensor(expected), atol=1e-6, rtol=0)


def test_rotation_keeps_norms_and_depends_on_offsets_only():
    cosine, sine = axial_rotation(8, 5)
    q, k = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    turned_q, turned_k = rotate(q.expand(25, 8), cosine, sine), rotate(k.expand(25, 8), cosine, sine)
    torch.testing.assert_close(turned_q.norm(dim=1), q.norm().expand(25))
    scores = turned_q @ turned_k.T
    # rows (1, 2) and (2, 3): the same offset of one row and one column
    torch.testing.assert_close(scores[1 * 5 + 2, 2 * 5 + 3], scores[2 * 5 + 3, 3 * 5 + 4])


def test_time_sinusoids_at_one_half():
    found = time_frequencies(torch.tensor([0.5]))[0, [0, 1, 128, 129]]
    torch.testing.assert_close(found, torch.tensor([0.87758255, 0.89369327, 0.47942555, 0.44867843]), atol=1e-6, rtol=0)
    moving = (
        time_frequencies(torch.linspace(0, 1, 200)).max(0)[0] - time_frequencies(torch.linspace(0, 1, 200)).min(0)[0]
    ) > 0.01
    assert int(moving.sum()) == 92


def test_positions_encode_the_column_first():
    table = sincos_positions(16, 4).view(4, 4, 16)
    assert (table[0, :, 8:] == table[0, :1, 8:]).all()
    assert (table[:, 0, :8] == table[:1, 0, :8]).all()
    assert table[1, 2, 0] == pytest.approx(np.sin(2))
    assert table[1, 2, 8] == pytest.approx(np.sin(1))


def test_attention_is_softmax_of_scaled_products():
    torch.manual_seed(0)
    layer, x = Attention(16, 2, qk_norm=False), torch.randn(3, 9, 16)
    rotation = axial_rotation(8, 3)
    q, k, v = layer.qkv(x).view(3, 9, 3, 2, 8).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(rotate(q, *rotation) @ rotate(k, *rotation).transpose(-1, -2) / 8**0.5, -1)
    expected = layer.proj((weights @ v).transpose(1, 2).reshape(3, 9, 16))
    torch.testing.assert_close(layer(x, rotation), expected, atol=1e-5, rtol=1e-5)


def test_at_initialisation_blocks_are_the_identity_and_the_velocity_is_zero():
    fresh = RePackDiTTransformer2DModel(
        sample_size=4, in_channels=5, num_layers=2, hidden_size=32, num_attention_heads=2
    )
    x, c = torch.randn(2, 16, 32), torch.randn(2, 32)
    assert torch.equal(fresh.blocks[0](x, c, fresh._angles(x.device)), x)
    assert not fresh(torch.randn(2, 5, 4, 4), torch.rand(2), torch.tensor([1, 1000])).sample.any()


@pytest.mark.parametrize("patch", [1, 2])
def test_patches_return_to_their_place(patch):
    """With the identity as embedding and output, and no blocks, a model returns its normalised input's layout."""
    fresh = RePackDiTTransformer2DModel(
        sample_size=4,
        in_channels=2,
        patch_size=patch,
        num_layers=0,
        hidden_size=2 * patch**2 * 4,
        num_attention_heads=1,
    )
    width, outputs = fresh.config.hidden_size, 2 * patch**2
    with torch.no_grad():
        fresh.pos_embed.zero_()
        fresh.final_layer.norm_final = nn.Identity()
        # embedding channel (i, j, c) holds position (i, j) of channel c
        fresh.x_embedder.proj.weight.zero_()
        for i in range(patch):
            for j in range(patch):
                for c in range(2):
                    fresh.x_embedder.proj.weight[(i * patch + j) * 2 + c, c, i, j] = 1
        fresh.final_layer.linear.weight.copy_(torch.eye(outputs, width))
    x = torch.randn(1, 2, 4, 4)
    torch.testing.assert_close(fresh(x, torch.zeros(1), torch.tensor([0])).sample, x)


def test_gradient_checkpointing_changes_nothing(model):
    x, t, y = torch.randn(2, 5, 4, 4), torch.rand(2), torch.tensor([0, 3])
    plain = torch.autograd.grad(model(x, t, y).sample.sum(), model.x_embedder.proj.weight)[0]
    model.enable_gradient_checkpointing()
    kept = torch.autograd.grad(model(x, t, y).sample.sum(), model.x_embedder.proj.weight)[0]
    torch.testing.assert_close(plain, kept)


def test_bfloat16_agrees_roughly(model):
    x, t, y = torch.randn(2, 5, 4, 4), torch.rand(2), torch.tensor([0, 3])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(x, t, y).sample.float()
    with torch.no_grad():
        assert F.cosine_similarity(low.flatten(), model(x, t, y).sample.flatten(), dim=0) > 0.99


def test_guidance(model):
    z, y = torch.randn(3, 5, 4, 4), torch.tensor([0, 1, 2])
    time = torch.full((3,), 0.4)
    with torch.no_grad():
        conditional = model(z, time, y).sample
        null = model(z, time, torch.full((3,), 3)).sample
        assert torch.equal(guided_velocity(model, z, 0.4, y, scale=1), conditional)
        assert torch.equal(guided_velocity(model, z, 0.4, y, scale=9, interval=(0.5, 1)), conditional)
        full = guided_velocity(model, z, 0.4, y, scale=3)
        torch.testing.assert_close(full, null + 3 * (conditional - null), atol=1e-4, rtol=1e-4)
        some = guided_velocity(model, z, 0.4, y, scale=3, channels=3)
    torch.testing.assert_close(some[:, 3:], conditional[:, 3:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(some[:, :3], full[:, :3])


@pytest.mark.parametrize(("points", "shift"), [(250, 0.3), (11, 1.0)])
def test_euler_agrees_with_diffusers_scheduler(points, shift):
    """Sign and direction of time, the shift, and N points being N - 1 steps."""

    def velocity(z, t):
        return torch.sin(3 * z) * (1 - t) - z * t

    class Field(nn.Module):
        def forward(self, z, time, labels, return_dict):
            return (velocity(z, float(time[0])),)

    noise = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    ours = euler_sample(Field(), noise, None, points=points, shift=shift)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1 / shift)
    scheduler.set_timesteps(sigmas=np.linspace(1, 0, points)[:-1].tolist())
    z = noise
    for timestep in scheduler.timesteps:
        z = scheduler.step(-velocity(z, float(1 - timestep / 1000)), timestep, z).prev_sample
    assert len(scheduler.timesteps) == points - 1
    torch.testing.assert_close(ours, z, atol=1e-5, rtol=1e-5)


def test_shift_moves_times_as_stated():
    t = torch.linspace(0, 1, 6, dtype=torch.float64)
    torch.testing.assert_close(shifted_times(6, 0.3), 0.3 * t / (1 - 0.7 * t))


# --- key maps: small references of the official layouts ------------------------------------------------------------


class _Res(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, i, eps=1e-6), nn.Conv2d(i, o, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, o, eps=1e-6), nn.Conv2d(o, o, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x):
        h = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return self.nin_shortcut(x) + h


class _Attn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.GroupNorm(32, c, eps=1e-6)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(c, c, 1) for _ in range(4))

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (f(h).flatten(2) for f in (self.q, self.k, self.v))
        w = torch.softmax(q.transpose(1, 2) @ k / q.shape[1] ** 0.5, -1)
        return x + self.proj_out((v @ w.transpose(1, 2)).view(x.shape))


class _Up(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))


class _LatentDiffusionDecoder(nn.Module):
    """The latent-diffusion decoder's layout: levels numbered from the finest, attention in the coarsest."""

    def __init__(self, z, channels, blocks):
        super().__init__()
        top = channels[-1]
        self.conv_in = nn.Conv2d(z, top, 3, padding=1)
        self.mid = nn.ModuleDict({"block_1": _Res(top, top), "attn_1": _Attn(top), "block_2": _Res(top, top)})
        levels, width = [], top
        for level in reversed(range(len(channels))):
            parts = {"block": nn.ModuleList(), "attn": nn.ModuleList()}
            for _ in range(blocks + 1):
                parts["block"].append(_Res(width, channels[level]))
                width = channels[level]
                if level == len(channels) - 1:
                    parts["attn"].append(_Attn(width))
            if level:
                parts["upsample"] = _Up(width)
            levels.insert(0, nn.ModuleDict(parts))
        self.up = nn.ModuleList(levels)
        self.norm_out, self.conv_out = nn.GroupNorm(32, width, eps=1e-6), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x):
        x = self.mid["block_2"](self.mid["attn_1"](self.mid["block_1"](self.conv_in(x))))
        for level in reversed(self.up):
            for i, block in enumerate(level["block"]):
                x = block(x)
                if len(level["attn"]):
                    x = level["attn"][i](x)
            if "upsample" in level:
                x = level["upsample"](x)
        return self.conv_out(F.silu(self.norm_out(x)))


def test_converted_decoder_agrees_with_the_described_layout():
    torch.manual_seed(0)
    reference = _LatentDiffusionDecoder(4, (32, 32, 64), 2).eval()
    ours = RePackAutoencoder(8, 4, block_out_channels=(32, 32, 64), grid=4).eval()
    ours.decoder.load_state_dict(decoder_keys(reference.state_dict()), strict=True)
    z = torch.randn(2, 4, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(ours.decoder(z), reference(z), atol=2.5e-5, rtol=1e-4)


def test_official_autoencoder_round_trip(tmp_path):
    torch.manual_seed(0)
    reference = _LatentDiffusionDecoder(4, (32, 32), 2)
    state = {f"decoder.{k}": v for k, v in reference.state_dict().items()}
    ours = RePackAutoencoder(8, 4, block_out_channels=(32, 32), grid=4)
    state |= {k: v for k, v in ours.state_dict().items() if "quant" in k}
    state["encoder.repack.weight"] = ours.pack_conv.weight.detach().clone()
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "a.pth")
    fresh = load_official(RePackAutoencoder(8, 4, block_out_channels=(32, 32), grid=4), tmp_path / "a.pth")
    assert torch.equal(fresh.pack_conv.weight, ours.pack_conv.weight)


class _OfficialRes(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.in_layers = nn.Sequential(nn.GroupNorm(32, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))
        self.out_layers = nn.Sequential(nn.GroupNorm(32, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1))
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.out_layers(self.in_layers(x))


class _OfficialAttn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.qkv, self.proj = nn.GroupNorm(32, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).flatten(2).chunk(3, 1)
        w = torch.softmax(q.transpose(1, 2) @ k / q.shape[1] ** 0.5, -1)
        return x + self.proj((v @ w.transpose(1, 2)).view(x.shape))


def test_converted_refiner_agrees_with_the_described_layout():
    torch.manual_seed(0)
    c, R, A = 32, _OfficialRes, _OfficialAttn
    down = [(R(c, c), R(c, c)), (R(c, 2 * c), R(2 * c, 2 * c)), (R(2 * c, 4 * c), R(4 * c, 4 * c), A(4 * c))]
    up = [(R(8 * c, 4 * c), A(4 * c)), (R(6 * c, 2 * c), R(2 * c, 2 * c)), (R(3 * c, c), R(c, c))]
    parts = nn.ModuleDict(
        {
            "conv_in": nn.Conv2d(5, c, 3, padding=1),
            "down": nn.ModuleList(
                nn.ModuleDict({"block": nn.Sequential(*b), "downsample": nn.Conv2d(c << i, c << i, 3, 2, 1)})
                for i, b in enumerate(down)
            ),
            "mid": nn.Sequential(R(4 * c, 8 * c), A(8 * c), R(8 * c, 4 * c)),
            "up": nn.ModuleList(nn.ModuleDict({"block": nn.Sequential(*b)}) for b in up),
            "final_res": R(2 * c, c),
            "norm_out": nn.GroupNorm(32, c),
            "conv_out": nn.Conv2d(c, 3, 3, padding=1),
        }
    )
    ours = LatentGuidedRefiner(2, (c, 2 * c, 4 * c), 8 * c, residual=False)
    ours.load_state_dict(refiner_keys(parts.state_dict()), strict=True)
    x, z = torch.rand(1, 3, 16, 16), torch.randn(1, 2, 4, 4)
    with torch.no_grad():
        h = parts["conv_in"](torch.cat([x, F.interpolate(z, (16, 16), mode="bilinear")], 1))
        skips = [h]
        for level in parts["down"]:
            h = level["block"](h)
            skips.append(h)
            h = level["downsample"](h)
        h = parts["mid"](h)
        for level in parts["up"]:
            h = level["block"](torch.cat([F.interpolate(h, scale_factor=2, mode="bilinear"), skips.pop()], 1))
        h = parts["final_res"](torch.cat([h, skips.pop()], 1))
        expected = parts["conv_out"](F.silu(parts["norm_out"](h))).tanh()
        torch.testing.assert_close(ours(x, z), expected, atol=1e-5, rtol=1e-4)


def test_a_checkpoint_that_holds_code_is_refused(tmp_path):
    import os

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="refused"):
        load_weights(tmp_path / "evil.pt")
    assert not (tmp_path / "owned").exists()
    with pytest.raises(ValueError, match="no checkpoint at"):
        load_weights(tmp_path / "none.pt")
    (tmp_path / "torn.pt").write_bytes(b"\x80\x02torn")
    with pytest.raises(ValueError, match=r"torn\.pt"):
        load_weights(tmp_path / "torn.pt")


# --- autoencoder and refiner ---------------------------------------------------------------------------------------


class Pixels(nn.Module):
    """Average colours as features: (B, 3, H, W) to (B, 3, 4, 4)."""

    def forward(self, x):
        return F.adaptive_avg_pool2d(x, 4)


@pytest.fixture
def autoencoder():
    torch.manual_seed(0)
    found = RePackAutoencoder(3, 2, block_out_channels=(32, 32), layers_per_block=1, grid=4).eval()
    found.vision = Pixels()
    return found


def test_posterior_mean_is_the_two_convolutions_and_samples_follow_it(autoencoder):
    x = torch.rand(2, 3, 8, 8) * 2 - 1
    found = autoencoder.encode(x).latent_dist
    f = Pixels()(x)
    W, Q, b = autoencoder.pack_conv.weight, autoencoder.quant_conv.weight, autoencoder.quant_conv.bias
    moments = torch.einsum("oi,ic,bchw->bohw", Q[:, :, 0, 0], W[:, :, 0, 0], f) + b.view(1, -1, 1, 1)
    torch.testing.assert_close(found.mode(), moments[:, :2])
    torch.testing.assert_close(found.logvar, moments[:, 2:].clamp(-30, 20))
    kl = 0.5 * (moments[:, :2] ** 2 + moments[:, 2:].exp() - 1 - moments[:, 2:]).sum((1, 2, 3))
    torch.testing.assert_close(found.kl(), kl)
    torch.testing.assert_close(autoencoder(x).sample, autoencoder.decode(found.mode()).sample)


def test_a_deterministic_posterior_has_no_spread():
    torch.manual_seed(0)
    found = RePackAutoencoder(3, 2, "deterministic", block_out_channels=(32, 32), grid=4)
    latent = found.pack(torch.randn(2, 3, 4, 4))
    assert torch.equal(latent.sample(), latent.mode())
    assert found.quant_conv.out_channels == 2


def test_start_from_a_linear_pack(autoencoder):
    pack, mean = torch.randn(2, 3), torch.randn(3)
    autoencoder.init_linear_pack(pack, mean)
    f = torch.randn(2, 3, 4, 4)
    expected = torch.einsum("dc,bchw->bdhw", pack, f - mean.view(1, -1, 1, 1))
    torch.testing.assert_close(autoencoder.pack(f).mode(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(autoencoder.pack(f).std, torch.full((2, 2, 4, 4), np.exp(-4.5)))


def test_statistics(autoencoder):
    z = torch.randn(2, 2, 4, 4)
    with pytest.raises(RuntimeError, match="set_statistics"):
        autoencoder.normalize(z)
    autoencoder.set_statistics(torch.tensor([1.0, -2.0]).view(1, 2, 1, 1), torch.tensor([2.0, 0.5]))
    torch.testing.assert_close(autoencoder.normalize(z)[:, 0], (z[:, 0] - 1) / 2)
    torch.testing.assert_close(autoencoder.denormalize(autoencoder.normalize(z)), z)
    with pytest.warns(UserWarning, match=r"channels \[1\] do not vary"):
        autoencoder.set_statistics(torch.zeros(2), torch.tensor([1.0, 0.0]))
    assert autoencoder.config.latents_std[1] == 1e-6


def test_save_and_load_give_the_same_numbers(autoencoder, model, tmp_path):
    autoencoder.set_statistics(torch.zeros(2), torch.ones(2))
    refiner = LatentGuidedRefiner(2, (32,), 32, layers_per_block=1, residual=False).eval()
    z, x = torch.randn(1, 2, 4, 4), torch.rand(1, 3, 8, 8)
    for name, part in (("a", autoencoder), ("t", model), ("r", refiner)):
        part.save_pretrained(tmp_path / name)
    again = RePackAutoencoder.from_pretrained(tmp_path / "a")
    assert not any("vision" in key for key in again.state_dict())
    assert torch.equal(again.decode(z).sample, autoencoder.decode(z).sample)
    assert again.config.latents_std == [1.0, 1.0]
    t = RePackDiTTransformer2DModel.from_pretrained(tmp_path / "t")
    noise = torch.randn(1, 5, 4, 4)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in t.state_dict().items())
    # mapped weights lie elsewhere in memory, which may change the order of a product's sums
    torch.testing.assert_close(
        t(noise, torch.tensor([0.3]), torch.tensor([1])).sample,
        model(noise, torch.tensor([0.3]), torch.tensor([1])).sample,
        rtol=1e-5,
        atol=1e-6,
    )
    assert torch.equal(LatentGuidedRefiner.from_pretrained(tmp_path / "r")(x, z), refiner(x, z))


def test_a_residual_refiner_starts_as_the_identity():
    refiner = LatentGuidedRefiner(2, (32, 32), 32)
    x = torch.rand(2, 3, 8, 8) * 2 - 1
    assert torch.equal(refiner(x, torch.randn(2, 2, 2, 2)), x)


def test_without_latents_they_have_no_effect():
    torch.manual_seed(0)
    x, z = torch.rand(1, 3, 8, 8), torch.randn(1, 2, 4, 4)
    for use in (True, False):
        refiner = LatentGuidedRefiner(2, (32,), 32, residual=False, use_latents=use)
        assert torch.equal(refiner(x, z), refiner(x, 2 * z)) != use


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda a, m: a.features(torch.zeros(1, 3, 9, 9)), "divisible by 2, got 9; nearest are 8 and 10"),
        (lambda a, m: a.features(torch.zeros(1, 3, 16, 16)), "takes 8 x 8 images, got (16, 16)"),
        (lambda a, m: a.set_statistics(torch.zeros(3), torch.ones(3)), "expected 2 finite means"),
        (lambda a, m: m(torch.zeros(1, 4, 4, 4), torch.zeros(1), torch.tensor([0])), "expected latents (B, 5, 4, 4)"),
        (lambda a, m: m(torch.zeros(1, 5, 4, 4), torch.zeros(1), torch.tensor([4])), "class labels in [0, 3)"),
        (lambda a, m: m(torch.zeros(1, 5, 4, 4), torch.zeros(1), torch.tensor([-1])), "class labels in [0, 3)"),
        (lambda a, m: m(torch.zeros(1, 5, 4, 4), torch.zeros(1)), "this model is conditional"),
        (
            lambda a, m: guided_velocity(m, torch.zeros(1, 5, 4, 4), 0.5, torch.tensor([0]), channels=6),
            "between 1 and 5 channels, got 6",
        ),
        (
            lambda a, m: guided_velocity(m, torch.zeros(1, 5, 4, 4), 0.5, torch.tensor([0]), interval=(0.9, 0.1)),
            "got (0.9, 0.1)",
        ),
        (lambda a, m: shifted_times(1), ">= 2 points"),
        (lambda a, m: RePackAutoencoder(posterior="x"), "gaussian or deterministic, got 'x'"),
        (lambda a, m: RePackAutoencoder(block_out_channels=(20,)), "32 groups do not divide"),
        (lambda a, m: RePackDiTTransformer2DModel.from_preset("Q/1"), "got 'Q/1'"),
        (
            lambda a, m: LatentGuidedRefiner(2, (32,), 32)(torch.zeros(1, 3, 9, 8), torch.zeros(1, 2, 4, 4)),
            "divisible by 2",
        ),
    ],
)
def test_bad_input_is_named(autoencoder, model, act, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        act(autoencoder, model)


def test_without_a_vision_model_features_are_refused(autoencoder):
    autoencoder.vision = None
    with pytest.raises(RuntimeError, match="no vision model"):
        autoencoder.features(torch.zeros(1, 3, 8, 8))
