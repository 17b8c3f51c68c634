"""Distances of image sets against closed forms, SciPy and torch-fidelity."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.linalg import sqrtm

from papershelf import InputError
from repack_dit import metrics
from repack_dit.metrics import (
    ImageSet,
    evaluate,
    frechet_distance,
    frechet_from_moments,
    frechet_interval,
    inception_features,
    inception_score,
    kernel_distance,
    kernel_interval,
    load_inception,
    read_image_set,
    register_with_torch_fidelity,
    support,
    vision_embeddings,
)
from repack_dit.vision import random_dinov2


@pytest.fixture(scope="module")
def vision():
    return random_dinov2(grid=2)


def pixels(n, seed, size=16, high=256):
    return np.random.default_rng(seed).integers(0, high, (n, size, size, 3), dtype=np.uint8)


# --- distances -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [12, 4])
def test_frechet_distance_is_that_of_scipys_square_root_also_for_deficient_covariances(rank):
    rng = np.random.default_rng(0)
    a, b = (
        rng.normal(size=(60, rank)) @ rng.normal(size=(rank, 12)),
        rng.normal(size=(60, rank)) @ rng.normal(size=(rank, 12)) + 1,
    )
    s, t = np.cov(a.T), np.cov(b.T)
    with np.errstate(all="ignore"):
        cross = np.trace(sqrtm(s @ t)).real
    expected = np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(s) + np.trace(t) - 2 * cross
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-5)


def test_frechet_interval_estimates_the_distance_and_shrinks_with_the_sample():
    """Closed form for normals with diagonal covariances: |m|^2 + sum (s - t)^2."""
    rng = np.random.default_rng(0)
    s, t, shift = np.array([1.0, 2.0, 0.5]), np.array([2.0, 2.0, 1.0]), np.array([0.5, 0, 0])
    truth = 0.25 + np.sum((s - t) ** 2)
    widths = []
    for n in (400, 6400):
        found = frechet_interval(rng.normal(size=(n, 3)) * s + shift, np.zeros(3), np.diag(t**2), rng, 200)
        assert found.low < truth < found.high
        widths.append(found.high - found.low)
    assert 2.5 < widths[0] / widths[1] < 6  # sqrt(16) = 4


def test_frechet_interval_resamples_the_same_distance():
    """With one row repeated, every resample is the sample itself: the draws equal the estimate."""
    x = np.repeat(np.random.default_rng(0).normal(size=(1, 5)), 8, axis=0)
    found = frechet_interval(x, np.zeros(5), np.eye(5), np.random.default_rng(0), 5)
    assert found.low == pytest.approx(found.estimate) == found.high
    assert found.estimate == pytest.approx(frechet_from_moments(x[0], np.zeros((5, 5)), np.zeros(5), np.eye(5)))


def test_frechet_draws_agree_for_fewer_images_than_channels():
    """Both Gram matrices give the same draws: pad the features with channels that do not vary."""
    x = np.random.default_rng(0).normal(size=(10, 6))
    wide = np.pad(x, ((0, 0), (0, 20)))
    a = frechet_interval(x, np.zeros(6), np.eye(6), np.random.default_rng(1), 20)
    b = frechet_interval(wide, np.zeros(26), np.diag([1.0] * 6 + [0.0] * 20), np.random.default_rng(1), 20)
    np.testing.assert_allclose(a, b, rtol=1e-6)  # roots of the zero eigenvalues


def test_kernel_interval_covers_zero_for_equal_laws_and_excludes_it_for_others():
    rng = np.random.default_rng(0)
    x, y, far = rng.normal(size=(400, 4)), rng.normal(size=(400, 4)), rng.normal(size=(400, 4)) + 1
    same, other = kernel_interval(x, y, rng, 300), kernel_interval(far, y, rng, 300)
    assert same.estimate == kernel_distance(x, y)
    assert same.low < 0 < same.high
    assert 0 < other.low < other.estimate < other.high


def test_support_of_a_set_in_itself_and_of_a_distant_one():
    x = np.random.default_rng(0).normal(size=(50, 3))
    inside = support(x, x)
    assert inside.precision.mean() == inside.recall.mean() == inside.coverage.mean() == 1
    # every point lies in its own ball and in those of the points that count it among their five nearest: 6 a ball
    assert inside.density.mean() == pytest.approx(6 / 5)
    outside = support(x + 100, x)
    assert not any(getattr(outside, name).any() for name in ("precision", "recall", "density", "coverage"))


def test_support_by_hand_on_a_line():
    real, made = np.array([[0.0], [1], [3], [6]]), np.array([[2.5], [20], [21], [22]])
    found = support(made, real, k=(1, 1), rows=3)
    # radii: 1, 1, 2, 3; 2.5 lies in the balls of 3 (distance 0.5) only
    assert found.precision.tolist() == [1, 0, 0, 0]
    assert found.density.tolist() == [1, 0, 0, 0]
    # generated radii: 17.5, 1, 1, 1: the first ball holds all real points; only 3's ball holds a generated point
    assert found.recall.tolist() == [1, 1, 1, 1]
    assert found.coverage.tolist() == [0, 0, 1, 0]


def test_precision_and_recall_are_torch_fidelitys():
    prc = pytest.importorskip("torch_fidelity.metric_prc")
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(120, 5)), rng.normal(size=(90, 5)) * 1.5
    found = support(a, b, rows=50)
    precision, recall = prc.calculate_precision_recall_full(torch.from_numpy(a), torch.from_numpy(b))
    assert (found.precision.mean(), found.recall.mean()) == pytest.approx((precision, recall), abs=1e-6)


# --- features ------------------------------------------------------------------------------------------------------


def test_distances_in_vision_features_are_torch_fidelitys_with_the_same_extractor(vision):
    fidelity = pytest.importorskip("torch_fidelity")
    a, b = pixels(40, 0), pixels(30, 1, high=128)

    class Listed(torch.utils.data.Dataset):
        def __init__(self, images):
            self.images = torch.from_numpy(images).permute(0, 3, 1, 2)

        def __len__(self):
            return len(self.images)

        def __getitem__(self, i):
            return self.images[i]

    theirs = fidelity.calculate_metrics(
        input1=Listed(a),
        input2=Listed(b),
        fid=True,
        prc=True,
        feature_extractor=register_with_torch_fidelity(vision),
        cuda=False,
        verbose=False,
        save_cpu_ram=True,
        cache=False,
    )
    ours = evaluate(a, b, rng=np.random.default_rng(0), metrics=("fd_dino", "prc"), vision=vision, resamples=2)
    assert ours["fd_dino"].estimate == pytest.approx(theirs["frechet_inception_distance"], rel=1e-3)
    assert ours["precision"].estimate == pytest.approx(theirs["precision"], abs=1e-6)
    assert ours["recall"].estimate == pytest.approx(theirs["recall"], abs=1e-6)


def test_embedding_is_the_class_token(vision):
    images = torch.from_numpy(pixels(2, 0)).permute(0, 3, 1, 2).float() / 127.5 - 1
    expected = vision.model(pixel_values=vision.prepare(images)).last_hidden_state[:, 0]
    np.testing.assert_allclose(
        vision_embeddings(vision, pixels(2, 0), batch=1), expected.double().numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.fixture(scope="module")
def inception_file(tmp_path_factory):
    """Random Inception-v3 weights in torch-fidelity's layout."""
    module = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3")
    cls = module.FeatureExtractorInceptionV3
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load_state_dict_from_url", lambda *_, **__: {})
        patch.setattr(cls, "load_state_dict", lambda *_, **__: None)
        model = cls("random", ["2048"])
    path = tmp_path_factory.mktemp("inception") / "weights.pth"
    torch.save(model.state_dict(), path)
    return path


def test_inception_metrics_with_given_weights(inception_file, monkeypatch):
    fidelity_isc = pytest.importorskip("torch_fidelity.metric_isc")
    model = load_inception(inception_file)
    a, b = pixels(3, 0), pixels(2, 1)
    features = {name: inception_features(model, x, batch=2) for name, x in (("a", a), ("b", b))}
    # the spatial features are the 17 x 17 map that the next layer takes, channels last
    taken = []
    handle = model.Mixed_6e.register_forward_pre_hook(lambda _m, inputs: taken.append(inputs[0]))
    with torch.no_grad():
        pool, _ = model(torch.from_numpy(a[:1]).permute(0, 3, 1, 2))
    handle.remove()
    assert features["a"]["spatial"].shape == (3, 2023)
    np.testing.assert_allclose(
        features["a"]["spatial"][0].reshape(17, 17, 7)[3, 5], taken[0][0, :7, 3, 5].numpy(), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(features["a"]["pool"][:1], pool.numpy(), rtol=1e-4, atol=1e-6)
    # the first channels stand for all: the decompositions at 2,048 take seconds
    features = {name: {k: v[:, :64] for k, v in found.items()} for name, found in features.items()}
    kept = {len(a): features["a"], len(b): features["b"]}
    monkeypatch.setattr(metrics, "inception_features", lambda _model, x, _batch: kept[len(x)])
    found = evaluate(a, b, rng=np.random.default_rng(0), metrics=("fid", "sfid", "isc"), inception=model)
    expected = frechet_distance(features["a"]["pool"], features["b"]["pool"])
    assert found["fid"].estimate == pytest.approx(expected, rel=1e-4)
    theirs = fidelity_isc.isc_features_to_metric(torch.from_numpy(features["a"]["logits"]), splits=2, shuffle=False)
    assert inception_score(features["a"]["logits"], splits=2) == pytest.approx(theirs["inception_score_mean"], rel=1e-6)
    # statistics in the reference's file take the place of its images
    law = {k: (features["b"][f].mean(0), np.cov(features["b"][f].T)) for k, f in (("fid", "pool"), ("sfid", "spatial"))}
    by_file = evaluate(
        a,
        ImageSet(np.zeros((0, 0, 0, 3), np.uint8), law),
        rng=np.random.default_rng(0),
        metrics=("fid", "sfid"),
        inception=model,
        resamples=2,
    )
    assert by_file["fid"].estimate == pytest.approx(found["fid"].estimate, rel=1e-6)
    assert by_file["sfid"].estimate == pytest.approx(found["sfid"].estimate, rel=1e-6)


def test_inception_weights_that_hold_code_or_another_network_are_refused(tmp_path):
    pytest.importorskip("torch_fidelity")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(InputError, match="is not torch-fidelity's Inception"):
        load_inception(tmp_path / "other.pth")
    torch.save({"weight": Image.new("RGB", (2, 2))}, tmp_path / "code.pth")
    with pytest.raises(InputError, match="refused"):
        load_inception(tmp_path / "code.pth")
    with pytest.raises(InputError, match="--inception-weights PATH, or --allow-download"):
        load_inception()


# --- bad input and the command line --------------------------------------------------------------------------------


def test_evaluate_says_what_is_wrong(vision):
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"metrics are fd_dino.*got fvd"):
        evaluate(pixels(4, 0), pixels(4, 1), rng=rng, metrics=("fvd",), vision=vision)
    with pytest.raises(InputError, match="fid, sfid, isc need Inception"):
        evaluate(pixels(4, 0), pixels(4, 1), rng=rng, vision=vision)
    with pytest.raises(InputError, match="16 x 16 and reference images 8 x 8"):
        evaluate(pixels(4, 0), pixels(4, 1, size=8), rng=rng, metrics=("fd_dino",), vision=vision)
    with pytest.raises(ValueError, match="expected generated images uint8"):
        evaluate(pixels(4, 0) / 255, pixels(4, 1), rng=rng, metrics=("fd_dino",), vision=vision)
    with pytest.raises(ValueError, match="more than 5 images"):
        evaluate(pixels(4, 0), pixels(4, 1), rng=rng, metrics=("prc",), vision=vision)


def test_image_sets_from_folders_and_archives(tmp_path):
    images = pixels(3, 0)
    (tmp_path / "f").mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "f" / f"{i}.png")
    np.savez(tmp_path / "b.npz", arr_0=images, mu=np.zeros(2), sigma=np.eye(2))
    assert np.array_equal(read_image_set(tmp_path / "f").pixels, images)
    archive = read_image_set(tmp_path / "b.npz")
    assert np.array_equal(archive.pixels, images)
    assert list(archive.statistics) == ["fid"]
    assert read_image_set(tmp_path / "b.npz", 8).pixels.shape == (3, 8, 8, 3)
    Image.fromarray(pixels(1, 0, size=8)[0]).save(tmp_path / "f" / "9.png")
    with pytest.raises(InputError, match=r"9.png is 8 x 8 and 0.png 16 x 16; give --size"):
        read_image_set(tmp_path / "f")
    np.savez(tmp_path / "o.npz", arr_0=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="damaged or holds objects"):
        read_image_set(tmp_path / "o.npz")
    np.savez(tmp_path / "n.npz", other=np.zeros(2))
    with pytest.raises(InputError, match="neither images"):
        read_image_set(tmp_path / "n.npz")


def test_evaluate_command(tmp_path, monkeypatch, capsys):
    from repack_dit.cli import app

    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", arr_0=pixels(12, 0))
    np.savez("b.npz", arr_0=pixels(12, 1))
    with pytest.raises(SystemExit) as stopped:
        app(["evaluate", "a.npz", "b.npz", "--vfm", "random", "--json"])
    assert stopped.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= {"fd_dino", "kid_dino", "precision", "recall", "density", "coverage", "note"}
    assert found["fd_dino"]["low"] <= found["fd_dino"]["estimate"] <= found["fd_dino"]["high"]


def test_evaluate_command_refuses_in_one_line(tmp_path, monkeypatch, capsys):
    from repack_dit.cli import app

    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", arr_0=pixels(4, 0))
    for arguments, expected in (
        (["a.npz", "missing.npz", "--vfm", "random"], "no file missing.npz"),
        (["a.npz", "a.npz", "--metrics", "fid"], "--inception-weights PATH, or --allow-download"),
        (["a.npz", "a.npz", "--metrics", "fvd"], "got fvd"),
        (["a.npz", "a.npz", "--vfm", "random", "--metrics", "prc"], "more than 5 images"),
    ):
        with pytest.raises(SystemExit) as stopped:
            app(["evaluate", *arguments])
        assert stopped.value.code == 2
        message = capsys.readouterr().err
        assert expected in message
        assert message.count("\n") == 1
