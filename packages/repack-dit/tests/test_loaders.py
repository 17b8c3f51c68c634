"""Readers of the field's formats return what was written, and refuse what is not safe."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from papershelf import InputError
from repack_dit.data import OfficialLatents, adm_batch, huggingface, imagenet, load_images, webdataset


@pytest.fixture
def images():
    """Six 8 x 8 images, so that a crop to 8 leaves them as they are."""
    return np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()


def write_tar(path, members, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


# --- WebDataset ----------------------------------------------------------------------------------------------------


def test_webdataset_groups_members_by_key_and_reads_both_kinds_of_label(tmp_path, images):
    write_tar(
        tmp_path / "b.tar",
        [("x/2.png", png(images[2])), ("x/2.json", json.dumps({"label": 3}).encode()), ("x/3.seg.png", png(images[3]))],
    )
    first = [
        ("0.cls", b"1"),
        ("0.png", png(images[0])),
        ("1.png", png(images[1])),
        ("1.cls", b"0\n"),
        ("9.txt", b"no image"),
    ]
    write_tar(tmp_path / "a.tar", first, "w:gz")
    found = webdataset(tmp_path.glob("*.tar"), 8)
    assert np.array_equal(found.pixels, images[:4])
    assert found.labels.tolist() == [1, 0, 3, 0]
    assert found.classes == ("0", "1", "2", "3")


def test_webdataset_writes_nothing_and_refuses_links_and_large_members(tmp_path, images):
    write_tar(tmp_path / "t.tar", [("../../escape.png", png(images[0]))])
    before = sorted(tmp_path.parent.rglob("*"))
    assert len(webdataset([tmp_path / "t.tar"], 8).labels) == 1
    assert sorted(tmp_path.parent.rglob("*")) == before
    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        entry = tarfile.TarInfo("0.png")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(entry)
    with pytest.raises(InputError, match=r"link or device '0.png'"):
        webdataset([tmp_path / "link.tar"], 8)
    with pytest.raises(InputError, match="more than 10"):
        webdataset([tmp_path / "t.tar"], 8, limit=10)


def test_webdataset_bad_input(tmp_path, images):
    (tmp_path / "no.tar").write_bytes(b"not a tar" * 100)
    with pytest.raises(InputError, match="damaged or no tar"):
        webdataset([tmp_path / "no.tar"], 8)
    write_tar(tmp_path / "word.tar", [("0.png", png(images[0])), ("0.cls", b"cat")])
    with pytest.raises(InputError, match="no whole number"):
        webdataset([tmp_path / "word.tar"], 8)
    write_tar(tmp_path / "bad.tar", [("0.png", b"broken"), ("1.png", png(images[1]))])
    with pytest.raises(InputError, match=r"bad.tar:/0 .*--max-bad allows 0"):
        webdataset([tmp_path / "bad.tar"], 8)
    found = webdataset([tmp_path / "bad.tar"], 8, max_bad=1)
    assert np.array_equal(found.pixels, images[1:2])
    assert len(found.skipped) == 1


# --- Hugging Face --------------------------------------------------------------------------------------------------


@pytest.fixture
def table(images):
    library = pytest.importorskip("datasets")
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [{"bytes": png(x), "path": None} for x in images], "label": [0, 1, 0, 1, 1, 0]}
    return library.Dataset.from_dict(rows, features=features)


@pytest.mark.parametrize("kind", ["arrow", "splits", "parquet"])
def test_datasets_on_disk(tmp_path, images, table, kind):
    library = pytest.importorskip("datasets")
    if kind == "arrow":
        table.save_to_disk(tmp_path / "d")
    elif kind == "splits":
        library.DatasetDict({"train": table, "test": table.select([0])}).save_to_disk(tmp_path / "d")
    else:
        (tmp_path / "d").mkdir()
        table.to_parquet(tmp_path / "d" / "train-00000-of-00001.parquet")
        table.select([0]).to_parquet(tmp_path / "d" / "test-00000-of-00001.parquet")
    found = huggingface(tmp_path / "d", 8)
    assert np.array_equal(found.pixels, images)
    assert found.labels.tolist() == [0, 1, 0, 1, 1, 0]
    assert found.classes == ("cat", "dog")
    train, held = load_images(str(tmp_path / "d"), 8, np.random.default_rng(0))
    assert (len(train.labels), len(held.labels)) == (5, 1)
    if kind == "splits":
        assert len(huggingface(tmp_path / "d", 8, split="test").labels) == 1
        with pytest.raises(InputError, match="splits train, test, got 'val'"):
            huggingface(tmp_path / "d", 8, split="val")


def test_image_folder_of_datasets(tmp_path, images):
    pytest.importorskip("datasets")
    for i, image in enumerate(images):
        (tmp_path / "d" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "d" / "ab"[i % 2] / f"{i}.png")
    found = huggingface(tmp_path / "d", 8)
    assert found.classes == ("a", "b")
    assert np.array_equal(found.pixels[found.labels == 1], images[1::2])


def test_datasets_without_images_are_refused(tmp_path):
    library = pytest.importorskip("datasets")
    library.Dataset.from_dict({"text": ["a"]}).save_to_disk(tmp_path / "d")
    with pytest.raises(InputError, match="no column of images, only text"):
        huggingface(tmp_path / "d", 8)
    with pytest.raises(InputError, match="no folder"):
        huggingface(tmp_path / "missing", 8)


# --- ADM and ImageNet ----------------------------------------------------------------------------------------------


def test_adm_batches(tmp_path, images):
    np.savez(tmp_path / "b.npz", images, np.array([2, 0, 1, 1, 0, 2]))
    found = adm_batch(tmp_path / "b.npz")
    assert np.array_equal(found.pixels, images)
    assert found.labels.tolist() == [2, 0, 1, 1, 0, 2]
    np.savez(tmp_path / "u.npz", images)
    assert adm_batch(tmp_path / "u.npz").classes == ("0",)
    for name, arrays, expected in (
        ("float", (images / 255.0,), "uint8"),
        ("short", (images, np.zeros(3)), "expected 6 labels"),
        ("object", (np.array([{}], dtype=object),), "no ADM batch"),
    ):
        np.savez(tmp_path / f"{name}.npz", *arrays)
        with pytest.raises(InputError, match=expected):
            adm_batch(tmp_path / f"{name}.npz")


def test_imagenet_layout_shares_its_classes(tmp_path, images):
    for i, (split, wnid) in enumerate([("train", "n01"), ("train", "n02"), ("train", "n02"), ("val", "n02")]):
        (tmp_path / split / wnid).mkdir(parents=True, exist_ok=True)
        # saved without loss under ImageNet's suffix
        Image.fromarray(images[i]).save(tmp_path / split / wnid / f"{i}.JPEG", format="PNG")
    train, val = imagenet(tmp_path, 8)
    assert train.labels.tolist() == [0, 1, 1]
    assert val.labels.tolist() == [1]  # of the training classes, though its only folder comes first
    assert np.array_equal(val[0][0], images[3])
    assert np.array_equal(train.read().pixels, images[:3])
    first, second = load_images(str(tmp_path), 8, np.random.default_rng(0))
    assert (len(first.labels), len(second.labels)) == (3, 1)
    (tmp_path / "val" / "n99").mkdir()
    with pytest.raises(InputError, match="has not: n99"):
        imagenet(tmp_path, 8)
    with pytest.raises(InputError, match="one folder a class"):
        imagenet(tmp_path / "train", 8)


# --- official latents ----------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path):
    """Two ranks, ten shards of the first: the second by number is not the second by name."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(24, 3, 2, 2, generator=generator) * 2 + 1
    for k in range(12):
        rows = slice(2 * k, 2 * k + 2)
        rank, shard = (0, k) if k < 11 else (1, 0)
        content = {"latents": z[rows], "latents_flip": z[rows].flip(-1).contiguous(), "labels": torch.arange(24)[rows]}
        save_file(content, tmp_path / f"latents_rank{rank:02d}_shard{shard}.safetensors")
    mean, std = z.mean((0, 2, 3), keepdim=True), z.transpose(0, 1).flatten(1).std(1).view(1, 3, 1, 1)
    torch.save({"mean": mean, "std": std}, tmp_path / "latents_stats.pt")
    return tmp_path, z, mean, std


def test_official_latents_in_order_of_rank_and_shard(cache):
    folder, z, mean, std = cache
    found = OfficialLatents(folder)
    assert len(found) == 24
    assert found.mean.shape == found.std.shape == (1, 3, 1, 1)
    for i in (0, 5, 21, 23):
        latent, flip, label = found[i]
        assert label == i
        assert torch.equal(latent, z[i])
        assert torch.equal(flip, z[i].flip(-1))
    latents, flips, labels = found.read()
    torch.testing.assert_close(latents, (z - mean) / std)
    torch.testing.assert_close(flips, latents.flip(-1))
    torch.testing.assert_close(latents.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    assert labels.tolist() == list(range(24))
    with pytest.raises(IndexError, match=r"\[0, 24\)"):
        found[24]


def test_official_latents_bad_input(cache, tmp_path):
    folder, *_ = cache
    torch.save({"mean": torch.zeros(1, 2, 1, 1), "std": torch.ones(1, 2, 1, 1)}, folder / "latents_stats.pt")
    with pytest.raises(InputError, match="mean and std of 3 channels"):
        OfficialLatents(folder)
    torch.save({"mean": Image.new("RGB", (1, 1))}, folder / "latents_stats.pt")
    with pytest.raises(InputError, match="refused"):
        OfficialLatents(folder)
    shard = folder / "latents_rank00_shard4.safetensors"
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"shard4.safetensors is damaged"):
        OfficialLatents(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no latents_rank"):
        OfficialLatents(tmp_path / "empty")
