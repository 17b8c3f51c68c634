"""Networks against plain loops and each other: packing, permutations, budgets, saving, export, baselines."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from anisonet import model as networks
from anisonet.baselines import BASELINES, baseline, matrix_delta, patches
from anisonet.curves import serialize
from anisonet.ellipsoid import EllipsoidEncoding, export_onnx, knn
from anisonet.model import (
    LFP,
    PRESETS,
    AnIsoNetCls,
    AnIsoNetPart,
    AnIsoNetSeg,
    Config,
    ConfigMismatch,
    count,
    drop_clouds,
    export,
    export_inputs,
    network,
)
from anisonet.pyramid import Pyramid


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_cloud(n=200, seed=0):
    return torch.rand(n, 3, generator=generator(seed))


def made(name="seg_tiny", seed=0, **changes):
    """A network with non-trivial norms, so that every part takes part."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = network(name, **changes)
    for m in net.modules():
        if isinstance(m, nn.BatchNorm1d):
            m.weight.data = 0.5 + torch.rand(m.weight.shape, generator=generator(1))
            m.running_mean = 0.1 * torch.randn(m.running_mean.shape, generator=generator(2))
    return net.eval()


def test_lfp_is_the_plain_loop():
    layer = LFP(5, 7, 0.3, 0.1).eval()
    x, idx = torch.randn(20, 5, generator=generator()), torch.randint(20, (20, 4), generator=generator())
    h = x @ layer.linear.weight.T
    expected = torch.stack([torch.stack([h[j] for j in idx[i]]).amax(0) - h[i] for i in range(20)])
    expected = 0.3 * expected / (1 + 1e-5) ** 0.5
    assert torch.allclose(layer(x, idx), expected, atol=1e-6)
    assert torch.allclose(layer(x, idx, torch.tensor([3, 11])), expected[[3, 11]], atol=1e-6)


@pytest.mark.parametrize("order", ["identity", "morton", "hilbert"])
def test_packed_clouds_are_the_single_ones(order):
    net = made(order=order)
    one, two = random_cloud(150, 1), random_cloud(220, 2) * 2
    both = torch.cat([one, two])
    with torch.no_grad():
        packed = net(net.build_pyramid(both, torch.tensor([150, 220])), both[:, 2:])
        single = torch.cat([net(net.build_pyramid(x), x[:, 2:]) for x in (one, two)])
    assert float((packed - single).abs().max()) < 1e-5


def test_packed_classification_is_the_single_one():
    net = made("cls_tiny")
    clouds = [random_cloud(64, 1), random_cloud(100, 2)]
    counts = torch.tensor([64, 100])
    both = torch.cat(clouds)
    pyramid = net.build_pyramid(both, counts, generator(5))
    with torch.no_grad():
        packed = net(pyramid, both[:, 2:])
        first = Pyramid(
            *(
                tuple(
                    None if v is None else v[: int(pyramid.counts[s][0])] if f != "counts" else v[:1]
                    for s, v in enumerate(getattr(pyramid, f))
                )
                for f in ("xyz", "knn", "sub", "back", "counts", "order")
            )
        )
        alone = net(first, clouds[0][:, 2:])
    assert packed.shape == (2, 4)
    assert float((packed[:1] - alone).abs().max()) < 1e-5


@pytest.mark.parametrize("changes", [{"gisa_full": 0, "gisa_coarse": 0}, {"order": "morton"}, {"order": "hilbert"}])
def test_permuting_points_permutes_logits(changes):
    net = made(grid_sizes=(0.3, 0.6), **changes)
    xyz = random_cloud(120)
    mixed = torch.randperm(120, generator=generator())
    base = net.build_pyramid(xyz)
    # the same survivors for both: sub-sampling picks by order of occurrence
    where = torch.empty(120, dtype=torch.long)
    where[mixed] = torch.arange(120)
    fed = Pyramid(
        (xyz[mixed], *base.xyz[1:]),
        (where[base.knn[0]][mixed], *base.knn[1:]),
        (base.sub[0], where[base.sub[1]], *base.sub[2:]),
        (base.back[0], *(b[mixed] for b in base.back[1:])),
        base.counts,
        (None if base.order[0] is None else serialize(xyz[mixed], None, net.cfg.order), *base.order[1:]),
    )
    with torch.no_grad():
        assert float((net(fed, xyz[mixed][:, 2:]) - net(base, xyz[:, 2:])[mixed]).abs().max()) < 1e-5


def test_identity_order_is_not_equivariant():
    net = made(order="identity")
    xyz = random_cloud(120)
    base = net.build_pyramid(xyz)
    other = replace(base, order=tuple(torch.arange(len(p) - 1, -1, -1) for p in base.xyz))
    with torch.no_grad():
        assert float((net(base, xyz[:, 2:]) - net(other, xyz[:, 2:])).abs().max()) > 1e-3


def test_blocks_of_evaluation_and_whole_training_edges_agree(monkeypatch):
    net = made(gisa_full=0, gisa_coarse=0)
    xyz = random_cloud(300)
    pyramid = net.build_pyramid(xyz)
    with torch.no_grad():
        whole = net(pyramid, xyz[:, 2:])
        monkeypatch.setattr("anisonet.ellipsoid.BLOCK", 64)
        assert float((net(pyramid, xyz[:, 2:]) - whole).abs().max()) < 1e-5


def test_budgets_of_the_presets():
    found = count("seg_scannet", 15_000)
    assert found.parameters == pytest.approx(12.28e6, rel=0.005)
    assert 32e9 < found.macs < 40e9
    plain = {
        name: count(Config.of(name, ese="none", gisa_full=0, gisa_coarse=0)) for name in ("seg_s3dis", "seg_scannet")
    }
    assert plain["seg_s3dis"].parameters == pytest.approx(7.02e6, rel=0.01)
    assert plain["seg_scannet"].parameters == pytest.approx(7.98e6, rel=0.01)
    # two GISA layers of 10 d^2 parameters at full resolution, one at the coarsest stage
    extra = 2 * 10 * 288**2 + 10 * 512**2
    assert found.parameters - plain["seg_scannet"].parameters == pytest.approx(extra, rel=0.01)


def test_stochastic_depth_drops_clouds_and_keeps_the_mean():
    counts = torch.tensor([2, 3] * 500)
    x = torch.ones(int(counts.sum()), 4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = drop_clouds(x, counts, 0.25, training=True)
    assert np.allclose(np.unique(out.numpy()), [0, 4 / 3])
    for part in out.split(counts.tolist()):
        assert len(part.unique()) == 1
    assert float(out.mean()) == pytest.approx(1, abs=0.1)
    assert drop_clouds(x, counts, 0.25, training=False) is x


def test_saving_and_loading(tmp_path):
    net = made(order="hilbert", bidirectional=True)
    net.save_pretrained(tmp_path / "m")
    again = AnIsoNetSeg.from_pretrained(tmp_path / "m", net.cfg)
    xyz = random_cloud(90)
    with torch.no_grad():
        assert torch.equal(net(net.build_pyramid(xyz), xyz[:, 2:]), again(again.build_pyramid(xyz), xyz[:, 2:]))
    assert type(networks.PointNetwork.from_pretrained(tmp_path / "m")) is AnIsoNetSeg
    with pytest.raises(ConfigMismatch, match=r"classes \(7 wanted, 5 in the checkpoint\), order \(morton wanted"):
        AnIsoNetSeg.from_pretrained(tmp_path / "m", Config.of(net.cfg, classes=7, order="morton"))
    with pytest.raises(ConfigMismatch, match="checkpoint of AnIsoNetCls"):
        AnIsoNetCls.from_pretrained(tmp_path / "m")
    with pytest.raises(ValueError, match=r"with config\.json"):
        AnIsoNetSeg.from_pretrained(tmp_path / "none")
    config = tmp_path / "m" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "head_dim": 64}))
    with pytest.raises(ConfigMismatch, match="weights do not fit"):
        AnIsoNetSeg.from_pretrained(tmp_path / "m")


def test_export_with_any_number_of_points():
    net = made(order="morton", grid_sizes=(0.2, 0.4))
    xyz = random_cloud(200)
    program = export(net, net.build_pyramid(xyz), xyz[:, 2:])
    for n, seed in ((200, 0), (331, 4)):
        other = random_cloud(n, seed)
        pyramid = net.build_pyramid(other)
        with torch.no_grad():
            expected = net(pyramid, other[:, 2:])
            found = program.module()(*export_inputs(pyramid, other[:, 2:]))
        assert float((found - expected).abs().max()) < 1e-5


def test_onnx_runtime_gives_the_encoder_s_numbers(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    encoder = EllipsoidEncoding(1, 16).eval()
    xyz = random_cloud(60)
    export_onnx(encoder, str(tmp_path / "e.onnx"), xyz, knn(xyz, 8), xyz[:, 2:])
    session = runtime.InferenceSession(str(tmp_path / "e.onnx"))
    other = random_cloud(93, 5)
    index = knn(other, 8)
    fed = {"xyz": other.numpy(), "neighbours": index.numpy(), "features": other[:, 2:].numpy()}
    with torch.no_grad():
        expected = encoder(other, index, other[:, 2:]).numpy()
    assert float(np.abs(session.run(None, fed)[0] - expected).max()) < 1e-3


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("preset", ["seg_tiny", "cls_tiny"])
def test_baselines_learn_two_clouds_by_heart(name, preset):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = baseline(
            name,
            preset,
            dims=(8, 16),
            depths=(2, 2),
            ks=(6, 6),
            coord_std=(1.0, 2.0),
            dropout=0.0,
            grid_sizes=(4.0,) if preset == "cls_tiny" else (0.3,),
            head_dim=16,
            heads=4,
            pooled=32,
        )
        xyz = torch.cat([random_cloud(60, 1), random_cloud(60, 2) * torch.tensor([1.0, 1, 0.1])])
        counts = torch.tensor([60, 60])
        labels = torch.tensor([0, 1]) if preset == "cls_tiny" else (xyz[:, 0] > 0.5).long()
        pyramid = net.build_pyramid(xyz, counts, generator())
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        losses = []
        for _ in range(25):
            logits, aux = net.train()(pyramid, xyz[:, 2:])
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            (loss + 0 * aux).backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert min(losses[-5:]) < 0.5 * losses[0]
    missing = [n for n, p in net.named_parameters() if p.grad is None and "relation" not in n]
    assert not missing


def test_matrix_delta_is_the_recurrence():
    g = generator()
    q, k, v = (torch.randn(2, 30, 4, dtype=torch.float64, generator=g) for _ in range(3))
    k = nn.functional.normalize(k, dim=-1)
    beta = torch.rand(2, 30, dtype=torch.float64, generator=g)
    state, expected = torch.zeros(2, 4, 4, dtype=torch.float64), []
    for t in range(30):
        kt, vt, b = k[:, t, :, None], v[:, t, :, None], beta[:, t, None, None]
        state = state - b * state @ kt @ kt.transpose(1, 2) + b * vt @ kt.transpose(1, 2)
        expected.append((state @ q[:, t, :, None])[..., 0])
    for chunk in (1, 7, 64):
        assert float((matrix_delta(q, k, v, beta, chunk) - torch.stack(expected, 1)).abs().max()) < 1e-10


def test_patches_stay_in_clouds_and_cover_every_point_once():
    counts = torch.tensor([5, 12, 1])
    index, real = patches(torch.arange(18), counts, 4)
    assert sorted(index[real].tolist()) == list(range(18))
    ids = torch.repeat_interleave(torch.arange(3), counts)
    assert bool((ids[index] == ids[index][:, :1]).all())


def test_parts_need_a_category():
    net = network(
        "part_shapenet",
        dims=(16, 32),
        depths=(1, 1),
        ks=(6, 6),
        grid_sizes=(4.0,),
        coord_std=(1.0, 2.0),
        head_dim=16,
        heads=4,
    )
    assert isinstance(net, AnIsoNetPart)
    xyz = random_cloud(40)
    pyramid, feats = net.eval().build_pyramid(xyz), torch.rand(40, 4)
    assert net(pyramid, feats, torch.tensor([3])).shape == (40, 50)
    with pytest.raises(ValueError, match="one category a cloud"):
        net(pyramid, feats)


def test_bad_inputs_are_named():
    net = network(
        "seg_s3dis", dims=(16, 32), depths=(1, 1), ks=(6, 6), grid_sizes=(0.2,), coord_std=(1.0, 2.0), head_dim=16
    )
    xyz = random_cloud(40)
    pyramid = net.eval().build_pyramid(xyz)
    with pytest.raises(ValueError, match=r"expected 4 features \(r,g,b,height\), got 3; pass --no-colour"):
        net(pyramid, torch.rand(40, 3))
    with pytest.raises(ValueError, match="features of 40 points"):
        net(pyramid, torch.rand(41, 4))
    with pytest.raises(ValueError, match="device cpu, got features on meta"):
        net(pyramid, torch.rand(40, 4, device="meta"))
    with pytest.raises(ValueError, match="pyramid of 2 stages, got 3"):
        net(network("seg_tiny").eval().build_pyramid(xyz), torch.rand(40, 4))
    single = net.train().build_pyramid(torch.zeros(3, 3))
    with pytest.raises(ValueError, match="batch norm cannot train on the single point of stage 1"):
        net(single, torch.rand(3, 4))
    cls = network("cls_tiny").train()
    alone = cls.build_pyramid(xyz)
    with pytest.raises(ValueError, match="at least 2 clouds a batch, got 1"):
        cls(alone, torch.rand(40, 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": "zigzag"}, "order of identity"),
        ({"ese": "cube"}, "ese of ellipsoid"),
        ({"classes": 1}, "at least 2 classes"),
        ({"dims": (8, 8)}, "2 depths for 2 stages, got 3"),
        ({"features": ("r",), "in_dim": 2}, "2 names of features, got 1"),
        ({"task": "detection"}, "task of segmentation"),
    ],
)
def test_bad_configurations(changes, message):
    with pytest.raises(ValueError, match=message):
        Config.of("seg_tiny", **changes)


def test_configurations_from_anywhere():
    assert Config.of(
        {"classes": 3, "dims": [8], "depths": [1], "ks": [4], "grid_sizes": [], "coord_std": [1.0]}
    ).dims == (8,)
    with pytest.raises(ValueError, match="unknown fields of a configuration: colour"):
        Config.of({"colour": 1})
    with pytest.raises(ValueError, match="configuration of seg_s3dis"):
        Config.of("seg_huge")
    assert set(PRESETS) >= {"seg_s3dis", "seg_scannet", "cls_scanobjectnn", "seg_tiny", "cls_tiny"}
    with pytest.raises(ValueError, match="baseline of PointNet"):
        baseline("Foo", "seg_tiny")
