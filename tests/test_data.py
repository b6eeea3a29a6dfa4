"""Images: loading from every source, refusal of bad input, augmentation against a slow twin, and
who is a member.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections import Counter
from fractions import Fraction
from io import BytesIO
from time import process_time

import numpy as np
import pytest
import torch
from PIL import Image

from mia_nb import _torchvision, data
from mia_nb.data import autoaugment
from mia_nb.types import Signals


def one_line(error) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def write_folder(path, pixels, names=("cat", "dog"), suffix=".png"):
    """pixels (K, n, H, W[, 3]) as path/<class>/<i>.png; lossless."""
    for name, images in zip(names, pixels, strict=True):
        (path / name).mkdir(parents=True)
        for i, image in enumerate(images):
            Image.fromarray(image).save(path / name / f"{i:03}{suffix}")
    return path


@pytest.fixture
def colours(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 9, 11, 3), dtype=np.uint8)
    return write_folder(tmp_path / "pets", pixels), pixels


# --------------------------------------------------------------------------------------------------
# data sets


def test_digits_are_scikit_learns_images_scaled_to_255():
    from sklearn.datasets import load_digits

    images = data.load("digits")
    values, labels = load_digits(return_X_y=True)
    assert (
        images.x.shape == (1797, 1, 8, 8)
        and images.x.dtype == torch.uint8
        and images.y.dtype == torch.int64
    )
    assert (
        np.abs(images.x.numpy().reshape(1797, 64) - values * 255 / 16) <= 0.5
    ).all() and images.x.max() == 255
    assert (
        (images.y.numpy() == labels).all()
        and images.classes == tuple("0123456789")
        and images.name == "digits"
    )
    scaled = images.x.numpy() / 255
    assert np.allclose([images.mean[0], images.std[0]], [scaled.mean(), scaled.std()], rtol=1e-12)


def test_the_digest_changes_with_pixels_labels_and_normalisation_but_not_with_the_name():
    x, y = np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 0, 1])
    base = data.from_arrays(x, y, mean=[0], std=[1])
    assert data.from_arrays(x, y, mean=[0], std=[1], name="other").digest == base.digest
    other = x.copy()
    other[3, 0, 1, 1] = 1
    digests = {
        base.digest,
        data.from_arrays(other, y, mean=[0], std=[1]).digest,
        data.from_arrays(x, [0, 1, 1, 0], mean=[0], std=[1]).digest,
        data.from_arrays(x, y, mean=[0.5], std=[1]).digest,
        data.from_arrays(x, y, mean=[0], std=[2]).digest,
        data.from_arrays(x.reshape(4, 1, 1, 4), y, mean=[0], std=[1]).digest,
    }
    assert len(digests) == 6


def test_the_digest_is_that_of_results_which_were_stored_before():
    digits = data.load("digits", limit=20)
    assert digits.digest == "70e43122a4c74a58becd11e4df6acbcc980c04817ce8cec9cdf8f94ffe141318"
    x, canary = np.arange(64, dtype=np.uint8).reshape(4, 1, 4, 4), [True, False, False, True]
    images = data.from_arrays(x, [0, 1, 0, 1], mean=[0.5], std=[0.25], canary=canary)
    assert images.digest == "baee0b27b61bd15d7ba5628cb35aab0f6d2c372fed3fbfc553ca7d4805f22026"


def test_the_digest_is_that_of_the_images_as_they_are_now():
    images = data.load("digits", limit=20)
    others = [
        images._replace(y=(images.y + 1) % 10),
        images._replace(x=images.x.flip(0)),
        images._replace(x=images.x.transpose(2, 3)),
        images._replace(x=images.x.float()),
        images._replace(mean=(0.25,)),
        images._replace(std=(2.0,)),
        images._replace(classes=(*images.classes, "more")),
        images._replace(canary=np.arange(20) == 3),
    ]
    assert len({images.digest, *(other.digest for other in others)}) == len(others) + 1
    assert images._replace(name="other", y=images.y.int()).digest == images.digest
    before = images.digest
    images.y[3] = (images.y[3] + 1) % 10
    assert images.digest != before
    images.y[3] = (images.y[3] - 1) % 10
    assert images.digest == before


def test_a_limit_keeps_a_seeded_subset_with_each_class_in_proportion():
    full, some = data.load("digits"), data.load("digits", limit=300)
    share = np.bincount(full.y) * 300 / 1797
    assert len(some.y) == 300 and (np.abs(np.bincount(some.y) - share) < 1).all()
    rows = {image.tobytes(): i for i, image in enumerate(full.x.numpy())}
    places = [rows[image.tobytes()] for image in some.x.numpy()]
    assert places == sorted(places) and (full.y[places] == some.y).all()
    assert (
        data.load("digits", limit=300).digest
        == some.digest
        != data.load("digits", limit=300, seed=1).digest
    )
    assert data.load("digits", limit=10**6).digest == full.digest


def test_synthetic_images_of_a_class_resemble_each_other_and_noise_is_the_only_difference():
    images = data.load("synthetic:classes=5,n=400,size=16,channels=3")
    x, y = images.x.flatten(1).double(), images.y
    centres = torch.stack([x[:200][y[:200] == k].mean(0) for k in range(5)])
    assert (torch.cdist(x[200:], centres).argmin(1) == y[200:]).double().mean() > 0.95
    assert (torch.bincount(y) == 80).all() and len(x.unique(dim=0)) == 400
    exact = data.load("synthetic:classes=5,n=400,size=16,channels=3,noise=0")
    assert len(exact.x.flatten(1).unique(dim=0)) == 5 and (exact.y == y).all()
    assert (
        data.load("synthetic:n=20,size=8").digest
        == data.load("synthetic:n=20,size=8,seed=0").digest
    )
    assert (
        data.load("synthetic:n=20,size=8").digest
        != data.load("synthetic:n=20,size=8,seed=1").digest
    )


@pytest.mark.parametrize(
    ("name", "folder", "first", "mean"),
    [
        ("mnist", "MNIST", "0 - zero", (0.1307,)),
        ("fashion_mnist", "FashionMNIST", "T-shirt/top", (0.2860,)),
    ],
)
def test_mnist_and_fashion_mnist_join_the_official_training_and_test_files(
    name, folder, first, mean, tmp_path
):
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    rng, expected = np.random.default_rng(0), []
    for part, n in (("train", 12), ("t10k", 8)):
        x, y = (
            rng.integers(0, 256, (n, 28, 28), dtype=np.uint8),
            (np.arange(n) % 10).astype(np.uint8),
        )
        (raw / f"{part}-images-idx3-ubyte").write_bytes(
            np.array([2051, n, 28, 28], ">i4").tobytes() + x.tobytes()
        )
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(
            np.array([2049, n], ">i4").tobytes() + y.tobytes()
        )
        expected.append((x, y))
    images = data.load(name, data_root=tmp_path)
    assert (images.x[:, 0].numpy() == np.concatenate([x for x, _ in expected])).all()
    assert (images.y.numpy() == np.concatenate([y for _, y in expected])).all()
    assert images.classes[0] == first and images.mean == mean
    for part, (x, y) in zip(("train", "test"), expected, strict=True):
        official = data.load(name, data_root=tmp_path, part=part)
        assert (official.x[:, 0].numpy() == x).all() and (official.y.numpy() == y).all()
        assert official.name == f"{name}-{part}" and official.mean == images.mean


def test_cifar10_joins_the_official_training_and_test_files(tmp_path, monkeypatch):
    folder, rng, expected = tmp_path / "cifar-10-batches-py", np.random.default_rng(0), []
    folder.mkdir()

    def write(name, content):
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    def batch(name):
        x = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
        expected.append(x.reshape(4, 3, 32, 32))
        return write(name, {"data": x, "labels": [3, 1, 4, 1]})

    kind = (
        _torchvision.datasets().CIFAR10
    )  # only its list of checksums is replaced by that of the small files
    monkeypatch.setattr(kind, "train_list", [batch(f"data_batch_{i}") for i in range(1, 6)])
    monkeypatch.setattr(kind, "test_list", [batch("test_batch")])
    key, md5 = write("batches.meta", {"label_names": [f"class{k}" for k in range(10)]})
    monkeypatch.setattr(kind, "meta", {"filename": key, "key": "label_names", "md5": md5})
    images = data.load("cifar10", data_root=tmp_path)
    assert (images.x.numpy() == np.concatenate(expected)).all() and images.y.tolist() == [
        3,
        1,
        4,
        1,
    ] * 6
    assert images.classes[9] == "class9" and images.std == (0.2023, 0.1994, 0.2010)
    train, test = (data.load("cifar10", data_root=tmp_path, part=p) for p in ("train", "test"))
    assert (train.x.numpy() == np.concatenate(expected[:5])).all() and len(train.y) == 20
    assert (test.x.numpy() == expected[5]).all() and test.std == images.std


def test_tiny_imagenet_reads_alike_from_the_archive_and_from_its_unpacked_folder(tmp_path):
    rng, train, val = np.random.default_rng(0), {}, []
    base = tmp_path / "zip" / "tiny-imagenet-200"
    for wnid in ("n02", "n01"):
        (base / "train" / wnid / "images").mkdir(parents=True)
        for i in range(2):
            train[wnid, i] = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(train[wnid, i]).save(
                base / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", "PNG"
            )
    (base / "val" / "images").mkdir(parents=True)
    (base / "test" / "images").mkdir(parents=True)
    Image.fromarray(train["n01", 0]).save(base / "test" / "images" / "test_0.JPEG", "PNG")
    for i in range(2):
        val.append(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        Image.fromarray(val[i]).save(base / "val" / "images" / f"val_{i}.JPEG", "PNG")
    (base / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n"
    )
    shutil.make_archive(str(base), "zip", tmp_path / "zip", "tiny-imagenet-200")
    shutil.copytree(base, tmp_path / "folder" / "tiny-imagenet-200")
    shutil.rmtree(base)
    packed, unpacked = (
        data.load("tiny_imagenet", data_root=tmp_path / where) for where in ("zip", "folder")
    )
    order = [train["n01", 0], train["n01", 1], train["n02", 0], train["n02", 1], *val]
    assert (
        packed.x.numpy() == np.stack(order).transpose(0, 3, 1, 2)
    ).all() and packed.y.tolist() == [0, 0, 1, 1, 1, 0]
    assert packed.classes == ("n01", "n02") and packed.digest == unpacked.digest
    train, test = (
        data.load("tiny_imagenet", data_root=tmp_path / "zip", part=p) for p in ("train", "test")
    )
    assert (train.x == packed.x[:4]).all() and (test.x == packed.x[4:]).all()
    assert test.y.tolist() == [1, 0] and test.classes == packed.classes
    shutil.rmtree(tmp_path / "zip" / "tiny-imagenet-200")
    (tmp_path / "zip" / "tiny-imagenet-200.zip").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(ValueError, match="could not be unpacked"):
        data.load("tiny_imagenet", data_root=tmp_path / "zip")


def test_a_tiny_imagenet_that_is_damaged_is_refused_in_one_line(tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    for name in ("n01", "n02"):
        write_folder(folder / "train" / name, np.zeros((1, 1, 8, 8, 3), np.uint8), ["images"])
    with pytest.raises(ValueError, match=r"no readable val/val_annotations\.txt") as error:
        data.load("tiny_imagenet", data_root=tmp_path)
    one_line(error)
    shutil.rmtree(folder)
    with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as archive:
        archive.writestr("tiny-imagenet-200/words.txt", "intact")
    packed = (tmp_path / "tiny-imagenet-200.zip").read_bytes()
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(packed.replace(b"intact", b"broken"))
    with pytest.raises(ValueError, match=r"could not be unpacked .*Bad CRC-32") as error:
        data.load("tiny_imagenet", data_root=tmp_path)
    one_line(error)


def test_an_npz_as_keras_stores_mnist_is_read_in_its_two_parts(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (9, 28, 28), dtype=np.uint8)
    y = np.arange(9, dtype=np.uint8) % 3
    path = tmp_path / "mnist.npz"
    np.savez(path, x_train=x[:6], y_train=y[:6], x_test=x[6:], y_test=y[6:])
    images = data.load(path)
    assert (images.x[:, 0].numpy() == x).all() and (images.y.numpy() == y).all()
    test = data.load(path, part="test")
    assert (test.x[:, 0].numpy() == x[6:]).all() and test.name == "mnist-test"
    np.savez(path, x_train=x)
    with pytest.raises(ValueError, match="it lacks train_labels") as error:
        data.load(path)
    one_line(error)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion_mnist", "tiny_imagenet"])
def test_a_missing_data_set_is_not_downloaded_without_permission(name, tmp_path):
    with pytest.raises(ValueError, match="download=True") as error:
        data.load(name, data_root=tmp_path)
    assert str(tmp_path) in one_line(error) and not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cifar1O", "did you mean 'cifar10'"),
        ("no/such/folder", "no data set or folder 'no/such/folder'"),
        ("nowhere.npz", "does not exist"),
        ("synthetic:klasses=3", "no option 'klasses'"),
        ("synthetic:n=many", "n='many'; wanted a number such as 2000"),
        ("synthetic:n=3,classes=10", "2 <= classes <= n"),
        ("synthetic:seed=-1", "seed >= 0"),
        ("synthetic:noise=inf", "finite noise"),
        ("synthetic:size=100000", "raise MIA_NB_MAX_GB"),
        ("synthetic:n=1000000000000", "raise MIA_NB_MAX_GB"),
        ("", "no data set or folder ''"),
        ("/dev/zero", "no data set or folder"),
        ("a\0b", "no data set or folder"),
        ("a\0b.npz", "does not exist"),
        ("x" * 5000, "no data set or folder"),
        ("~nobody-of-this-name/x", "no data set or folder"),
    ],
)
def test_an_unknown_name_or_option_is_refused_in_one_line(name, says):
    with pytest.raises(ValueError) as error:
        data.load(name)
    assert says in one_line(error)


@pytest.mark.parametrize("name", ["digits", "synthetic:n=20", "pets"])
def test_images_without_official_parts_refuse_to_give_one(name, colours, tmp_path):
    where = colours[0] if name == "pets" else name
    with pytest.raises(ValueError, match="has no official parts; wanted part='all'") as error:
        data.load(where, data_root=tmp_path, part="train")
    one_line(error)


def test_parts_of_an_npz_are_its_training_images_and_all_others(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (9, 8, 8), dtype=np.uint8)
    y = np.arange(9) % 2
    cuts = {"train": slice(0, 4), "val": slice(4, 6), "test": slice(6, 9)}
    arrays = {}
    for name, cut in cuts.items():
        arrays |= {f"{name}_images": x[cut], f"{name}_labels": y[cut]}
    np.savez(tmp_path / "a.npz", **arrays)
    train, test = (data.load(tmp_path / "a.npz", part=part) for part in ("train", "test"))
    assert (train.x[:, 0].numpy() == x[:4]).all() and (test.x[:, 0].numpy() == x[4:]).all()
    np.savez(tmp_path / "b.npz", train_images=x, train_labels=y)
    with pytest.raises(ValueError, match="holds train_images alone") as error:
        data.load(tmp_path / "b.npz", part="test")
    one_line(error)


def test_importing_data_loads_neither_torchvision_nor_pillow_nor_scikit_learn():
    code = "import sys, mia_nb.data; print({'torchvision', 'PIL', 'sklearn'} & set(sys.modules))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "set()"
    )


# --------------------------------------------------------------------------------------------------
# image folders


def test_a_folder_of_class_folders_gives_the_files_pixels_in_sorted_order(colours, tmp_path):
    path, pixels = colours
    (path / "cat" / "notes.txt").write_text("no image")
    (path / "cat" / ".hidden.png").write_text("no image")
    (path / ".git").mkdir()
    images = data.load(path, data_root=tmp_path)
    assert (images.x.numpy() == pixels.reshape(6, 9, 11, 3).transpose(0, 3, 1, 2)).all()
    assert (
        images.y.tolist() == [0, 0, 0, 1, 1, 1]
        and images.classes == ("cat", "dog")
        and images.name == "pets"
    )
    measured = images.x.numpy() / 255
    assert np.allclose(images.mean, measured.mean((0, 2, 3))) and np.allclose(
        images.std, measured.std((0, 2, 3))
    )


def test_grey_files_make_one_channel_and_a_single_colour_file_makes_three(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8), dtype=np.uint8)
    path = write_folder(tmp_path / "grey", grey)
    assert (data.load(path, data_root=tmp_path).x.numpy() == grey.reshape(6, 1, 8, 8)).all()
    Image.fromarray(np.stack([grey[1, 2], grey[1, 1], grey[1, 0]], 2)).save(
        path / "dog" / "002.png"
    )
    mixed = data.load(path, data_root=tmp_path).x.numpy()
    assert (mixed[:5] == grey.reshape(6, 1, 8, 8)[:5]).all() and (mixed[5] == grey[1, ::-1]).all()


def test_images_of_many_sizes_are_cut_to_their_middle_square_and_scaled(tmp_path):
    shapes = [(12, 20), (20, 12), (16, 16), (9, 40)]
    pictures = []
    for number, (height, width) in enumerate(shapes):
        picture = np.zeros((height, width, 3), np.uint8)
        side, half = min(height, width), (max(height, width) - min(height, width)) // 2
        middle = (
            (slice(None), slice(half, half + side))
            if width > height
            else (slice(half, half + side), slice(None))
        )
        picture[middle] = 40 + 50 * number  # outside the middle square it is black
        pictures.append(picture)
        folder = tmp_path / "set" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{number}.png")
    with pytest.raises(ValueError, match=r"image sizes differ.*choose one with size="):
        data.load(tmp_path / "set", data_root=tmp_path)
    images = data.load(tmp_path / "set", data_root=tmp_path, size=8)
    assert images.x.shape == (4, 3, 8, 8)
    inner = images.x[:, :, 1:7, 1:7].float().mean((1, 2, 3))
    # cats first; the odd margin of 9 x 40 is half a pixel
    assert inner.tolist() == pytest.approx([40, 140, 90, 190], abs=8)
    other = data.load(tmp_path / "set", data_root=tmp_path, size=4)
    assert other.x.shape[-1] == 4 and other.digest != images.digest  # the cache tells sizes apart
    assert torch.equal(data.load(tmp_path / "set", data_root=tmp_path, size=8).x, images.x)


@pytest.mark.parametrize(("name", "size"), [("digits", 8), ("synthetic", 8), ("{folder}", 0)])
def test_a_size_is_for_folders_and_positive(colours, tmp_path, name, size):
    with pytest.raises(
        ValueError, match=f"size={size} for .*: wanted a side in pixels, for a folder"
    ):
        data.load(name.format(folder=colours[0]), data_root=tmp_path, size=size)


def test_the_second_load_reads_the_cache_until_a_file_changes(colours, tmp_path):
    path, _ = colours
    first = data.load(path, data_root=tmp_path / "root")
    victim = path / "dog" / "001.png"
    stat = victim.stat()
    # unreadable, but of the same size and time: only a decoder would notice
    victim.write_bytes(bytes(stat.st_size))
    os.utime(victim, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert data.load(path, data_root=tmp_path / "root").digest == first.digest
    os.utime(victim, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(ValueError, match=r"dog/001\.png cannot be read") as error:
        data.load(path, data_root=tmp_path / "root")
    one_line(error)
    victim.unlink()
    assert len(data.load(path, data_root=tmp_path / "root").y) == 5
    assert len(list((tmp_path / "root" / ".cache").iterdir())) == 1  # the stale one is gone


@pytest.mark.parametrize("damage", ["cut", "empty"])
def test_a_damaged_cache_is_ignored_and_rebuilt(colours, tmp_path, damage):
    path, _ = colours
    first = data.load(path, data_root=tmp_path)
    (cache,) = (tmp_path / ".cache").glob("*.npy")
    good = cache.read_bytes()
    cache.write_bytes({"cut": good[:-7], "empty": b""}[damage])
    assert data.load(path, data_root=tmp_path).digest == first.digest
    (cache,) = (tmp_path / ".cache").glob("*.npy")
    assert cache.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_no_error(colours, tmp_path):
    path, pixels = colours
    (tmp_path / "file").write_text("not a folder")
    assert len(data.load(path, data_root=tmp_path / "file").y) == pixels.shape[0] * pixels.shape[1]


def test_a_folder_named_like_a_data_set_keeps_its_own_normalisation(tmp_path):
    path = write_folder(
        tmp_path / "cifar10",
        np.random.default_rng(0).integers(0, 99, (2, 2, 8, 8, 3), dtype=np.uint8),
    )
    assert data.load(path, data_root=tmp_path).mean != data.loading.PUBLISHED["cifar10"][0]


def test_bad_folders_are_refused_in_one_line_that_names_the_file(colours, tmp_path):
    path, _ = colours
    Image.fromarray(np.zeros((9, 12, 3), np.uint8)).save(path / "dog" / "000.png")
    with pytest.raises(
        ValueError, match=r"cat/000\.png and .*dog/000\.png are 11x9 and 12x9"
    ) as error:
        data.load(path, data_root=tmp_path)
    one_line(error)
    Image.fromarray(np.zeros((9, 11), np.uint16)).save(path / "dog" / "000.png")
    with pytest.raises(ValueError, match=r"dog/000\.png .* more than 8 bits"):
        data.load(path, data_root=tmp_path)
    (path / "dog" / "000.png").unlink()
    (path / "dog" / "000.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(ValueError, match=r"dog/000\.png cannot be read .*No such file"):
        data.load(path, data_root=tmp_path)
    (path / "dog" / "000.png").unlink()
    (path / "eel").mkdir()
    with pytest.raises(ValueError, match=r"pets: Found no valid file for the classes eel"):
        data.load(path, data_root=tmp_path)
    with pytest.raises(ValueError, match="pets/cat: Couldn't find any class folder"):
        data.load(path / "cat", data_root=tmp_path)


def written(image, kind="PNG", **options) -> bytes:
    image.save(buffer := BytesIO(), kind, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1 << 20))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [None, 8])
def test_images_of_hundreds_of_millions_of_pixels_are_refused_by_their_header(
    colours, tmp_path, size
):
    path, _ = colours
    (path / "cat" / "zebra.png").write_bytes(png_header(30_000, 30_000))
    start = process_time()
    with pytest.raises(ValueError, match=r"zebra\.png cannot be .* decompression bomb") as error:
        data.load(path, data_root=tmp_path, size=size)
    assert process_time() - start < 1 and "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_images_are_turned_as_their_exif_orientation_says(tmp_path, kind):
    picture = np.zeros((16, 24, 3), np.uint8)
    # corners that tell all eight apart
    picture[:8, :8], picture[:8, 16:], picture[8:, :8] = 250, 160, 80
    upright = {1: picture, 2: picture[:, ::-1], 3: picture[::-1, ::-1], 4: picture[::-1]}
    turned = picture.transpose(1, 0, 2)
    upright |= {5: turned, 6: turned[:, ::-1], 7: turned[::-1, ::-1], 8: turned[::-1]}
    for orientation, wanted in upright.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / str(orientation)
        for name in ("cat", "dog"):
            (path / name).mkdir(parents=True)
            (path / name / f"0.{kind.lower()}").write_bytes(
                written(Image.fromarray(picture), kind, exif=exif)
            )
        x = data.load(path, data_root=tmp_path).x.numpy().transpose(0, 2, 3, 1)
        assert x.shape[1:] == wanted.shape and np.abs(x.astype(int) - wanted).max() < 40, (
            orientation
        )


GREY, COLOUR = Image.new("L", (11, 9), 77), Image.new("RGB", (11, 9), (10, 20, 30))
BROKEN_EXIF = b"Exif\0\0" + b"II*\0" + b"\xff" * 40
# an orientation, upside down, beside a resolution that is a text
TEXT_EXIF = (
    b"Exif\0\0II*\0\x08\0\0\0\x02\0"
    + struct.pack("<HHIHH", 0x112, 3, 1, 3, 0)
    + struct.pack("<HHI4s", 0x11A, 2, 4, b"abc")
    + bytes(4)
)
# a file beside good ones: its name, its bytes, and its colour at the top left or what is said of it
IMAGES = {
    "grey": ("x.png", written(GREY), (77, 77, 77)),
    "with a broken EXIF": (
        "x.jpg",
        written(COLOUR, "JPEG", exif=BROKEN_EXIF, quality=100),
        (10, 20, 30),
    ),
    "with an EXIF of a wrong type": (
        "x.jpg",
        written(COLOUR, "JPEG", exif=TEXT_EXIF, quality=100),
        (10, 20, 30),
    ),
    "one bit": ("x.png", written(Image.new("1", (11, 9), 1)), (255, 255, 255)),
    "with a palette": (
        "x.png",
        written(COLOUR.convert("P", palette=Image.Palette.ADAPTIVE)),
        (10, 20, 30),
    ),
    "with transparency": ("x.png", written(Image.new("RGBA", (11, 9), (1, 2, 3, 0))), (1, 2, 3)),
    "CMYK": (
        "x.jpg",
        written(Image.new("CMYK", (11, 9), (255, 0, 0, 0)), "JPEG", quality=100),
        (0, 255, 255),
    ),
    "of another format than its name": ("x.bmp", written(COLOUR), (10, 20, 30)),
    "whose name is not UTF-8": ("\udcff.png", written(COLOUR), (10, 20, 30)),
    "of 16 bits": (
        "x.png",
        written(Image.fromarray(np.ones((9, 11), np.uint16))),
        "more than 8 bits per channel",
    ),
    "of floats": (
        "x.tif",
        written(Image.new("F", (11, 9)), "TIFF"),
        "more than 8 bits per channel",
    ),
    "empty": ("x.png", b"", "dog/x.png cannot be read as an 8-bit image: cannot identify"),
    "text": ("x.png", b"hello", "cannot be read as an 8-bit image: cannot identify"),
    "for another program": (
        "x.png",
        written(COLOUR, "EPS"),
        "cannot be read as an 8-bit image: cannot identify",
    ),
    "cut short": ("x.png", written(COLOUR)[:45], "dog/x.png cannot be read as an 8-bit image"),
    "a JPEG cut short": (
        "x.jpg",
        written(COLOUR, "JPEG")[:-40],
        "dog/x.jpg cannot be .*: Truncated",
    ),
}


@pytest.mark.parametrize("what", IMAGES)
def test_an_odd_image_is_read_as_it_looks_or_refused_in_one_line(colours, tmp_path, what):
    path, _ = colours
    name, content, wanted = IMAGES[what]
    (path / "dog" / name).write_bytes(content)
    if isinstance(wanted, str):
        with pytest.raises(ValueError, match=wanted) as error:
            data.load(path, data_root=tmp_path)
        one_line(error)
    else:
        (place,) = [i for i, file in enumerate(sorted(os.listdir(path / "dog"))) if file == name]
        assert (
            np.abs(
                data.load(path, data_root=tmp_path).x[3 + place, :, 0, 0].numpy() - np.array(wanted)
            ).max()
            <= 2
        )


def test_a_folder_named_like_an_image_is_none(colours, tmp_path):
    path, pixels = colours
    (path / "dog" / "x.png").mkdir()
    assert len(data.load(path, data_root=tmp_path).y) == pixels.shape[0] * pixels.shape[1]


def test_what_lies_beside_images_is_passed_over(colours, tmp_path):
    path, pixels = colours
    for name in ("Thumbs.db", ".DS_Store", ".x.png", "README.md", "boxes.csv", "x.heic"):
        (path / "dog" / name).write_bytes(b"?")
    (path / "dog" / ".ipynb_checkpoints").mkdir()
    (path / "dog" / ".ipynb_checkpoints" / "x.png").write_text("none")
    assert len(data.load(path, data_root=tmp_path).y) == pixels.shape[0] * pixels.shape[1]


def test_the_files_and_their_order_are_those_of_torchvision(colours, tmp_path):
    path, pixels = colours
    Image.fromarray(pixels[0, 1]).save(path / "dog" / "a.JPG", "PNG")
    images = data.load(path, data_root=tmp_path)
    folder = _torchvision.datasets().ImageFolder(path)
    assert images.y.tolist() == folder.targets and images.classes == tuple(folder.classes)
    expected = np.stack([np.asarray(image) for image, _ in folder])
    assert np.array_equal(images.x.permute(0, 2, 3, 1), expected)


def test_images_deeper_than_in_a_class_folder_are_refused(colours, tmp_path):
    for part in ("train", "test"):
        write_folder(tmp_path / "parts" / part, colours[1])
    with pytest.raises(ValueError, match=r"test/cat/000\.png lies deeper .*there: 12") as error:
        data.load(tmp_path / "parts", data_root=tmp_path)
    one_line(error)
    assert data.load(tmp_path / "parts" / "train", data_root=tmp_path).classes == ("cat", "dog")


def test_a_class_of_hidden_images_alone_is_refused(colours, tmp_path):
    path, _ = colours
    for name in ("dog", "cat"):
        for file in (path / name).iterdir():
            file.rename(file.with_name(f".{file.name}"))
        with pytest.raises(ValueError, match=r"images of the class (cat|dog) are hidden") as error:
            data.load(path, data_root=tmp_path)
        one_line(error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("which", ["", "dog", "dog/000.png"])
def test_what_may_not_be_read_is_named(colours, tmp_path, which):
    path, _ = colours
    (path / which).chmod(0)
    with pytest.raises(ValueError, match=f"{which}.*(Permission denied|no valid file)"):
        data.load(path, data_root=tmp_path)
    (path / which).chmod(0o700)


def test_one_budget_holds_for_folders_archives_and_synthetic_images(colours, tmp_path, monkeypatch):
    path, _ = colours
    sources = [path, save(tmp_path, **GOOD), "synthetic:n=20,size=8"]
    for text, says in (
        ("1e-8", "take fewer or smaller images, or raise MIA_NB_MAX_GB"),
        ("much", "such as 8"),
        ("-1", "such as 8"),
    ):
        monkeypatch.setenv("MIA_NB_MAX_GB", text)
        for source in sources:
            with pytest.raises(ValueError, match=says) as error:
                data.load(source, data_root=tmp_path)
            one_line(error)
    for text in ("1e-3", "inf", ""):
        monkeypatch.setenv("MIA_NB_MAX_GB", text)
        assert all(len(data.load(source, data_root=tmp_path).y) > 3 for source in sources)
    monkeypatch.setenv("MIA_NB_MAX_GB", "1e-8")
    with pytest.raises(
        ValueError, match=r"^6 images of 99 pixels would take"
    ):  # from the cache as well
        data.load(path, data_root=tmp_path)
    with pytest.raises(
        ValueError, match=r"^6 images of 1,000,000,000,000 pixels would take 18,000"
    ):
        monkeypatch.delenv("MIA_NB_MAX_GB")
        data.load(path, data_root=tmp_path, size=10**6)


# --------------------------------------------------------------------------------------------------
# npz


def save(path, **arrays):
    np.savez(path / "set.npz", **arrays)
    return path / "set.npz"


def test_npz_parts_are_joined_and_floats_mean_the_same_as_bytes(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (10, 6, 7, 3), dtype=np.uint8), np.arange(10).reshape(-1, 1) % 3
    parts = {"train": slice(0, 5), "val": slice(5, 7), "test": slice(7, 10)}
    digests = set()
    for pixels in (x, x.astype(np.int64), x / 255, (x / 255).astype(np.float32), (x - 0.2).clip(0)):
        arrays = {
            f"{part}_{k}": v[rows]
            for part, rows in parts.items()
            for k, v in (("images", pixels), ("labels", y))
        }
        digests.add((images := data.load(save(tmp_path, **arrays))).digest)
    assert (images.x.numpy() == x.transpose(0, 3, 1, 2)).all() and images.y.tolist() == y[
        :, 0
    ].tolist()
    assert len(digests) == 1 and images.name == "set" and images.classes == ("0", "1", "2")


def test_npz_grey_images_get_one_channel_and_named_classes_may_be_empty(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (4, 5, 5), dtype=np.uint8)
    images = data.load(
        save(
            tmp_path, train_images=x, train_labels=np.array([0, 2, 2, 0.0]), classes=["a", "b", "c"]
        )
    )
    assert (
        (images.x[:, 0].numpy() == x).all()
        and images.y.tolist() == [0, 2, 2, 0]
        and images.classes == ("a", "b", "c")
    )


GOOD = {"train_images": np.zeros((4, 5, 5), np.uint8), "train_labels": np.array([0, 1, 0, 1])}
NAN = np.full((4, 5, 5), 0.5)
NAN[2, 3, 3] = np.nan


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"train_images": NAN}, "image 2 holds NaN"),
        ({"train_images": np.full((4, 5, 5), -1.5)}, "pixels run from -1.5 to -1.5"),
        ({"train_images": np.full((4, 5, 5), 300)}, "pixels run from 300 to 300"),
        ({"train_images": np.array(["a"] * 4)}, "wanted (N, H, W)"),
        ({"train_images": np.zeros((4, 5, 5, 5), np.uint8)}, "wanted (N, H, W) or (N, H, W, C)"),
        ({"train_images": np.zeros((3, 5, 5), np.uint8)}, "for each of 3 images"),
        ({"train_labels": np.array([0, 1, -1, 1])}, "labels run from -1 to 1"),
        ({"train_labels": np.array([0, 1, 3, 1])}, "class 2 has no image"),
        (
            {"train_labels": np.array([0, 1, 3, 1]), "classes": np.array(["a", "b"])},
            "labels run from 0 to 3; wanted 0..1",
        ),
        ({"train_labels": np.array([0, 1, 0.5, 1])}, "not whole numbers"),
        ({"train_labels": np.array([0, 1, np.nan, 1])}, "not whole numbers"),
        (
            {"train_images": np.zeros((0, 5, 5), np.uint8), "train_labels": np.zeros(0, int)},
            "labels have shape (0,)",
        ),
        ({"train_labels": np.eye(4)}, "train_labels have shape (4, 4)"),
        ({"train_labels": np.zeros(4, int)}, "one class"),
        ({"train_labels": np.array([None] * 4)}, "cannot be read"),
        ({"train_labels": np.array([0, 1, np.inf, 1])}, "not whole numbers"),
        ({"train_labels": np.array([0, 1, 1e300, 1])}, "not whole numbers"),
        ({"train_labels": np.array([0, 1, 2**63, 1], np.uint64)}, "labels run from"),
        ({"train_labels": np.array([0, 1, 2**40, 1])}, "class 2 has no image"),
        ({"train_labels": np.array(["cat", "dog"] * 2)}, "not whole numbers"),
        ({"train_labels": np.array(3)}, "wanted one class number for each of 4"),
        ({"train_images": np.array(3)}, "wanted (N, H, W)"),
        ({"train_images": np.zeros((4, 0, 5), np.uint8)}, "wanted (N, C, H, W)"),
        ({"train_images": np.zeros((4, 5, 5), complex)}, "images are complex128"),
        ({"train_images": np.zeros((4, 5, 5), bool)}, "images are bool"),
        ({"train_images": np.array([[[None]]] * 4)}, "Object arrays cannot be loaded"),
        ({"classes": np.array("cat")}, "wanted a list of names"),
        ({"classes": np.array([["a"], ["b"]])}, "wanted a list of names"),
        ({"val_images": np.zeros((2, 5, 5), np.uint8)}, "it lacks val_labels"),
        (
            {"val_images": np.zeros((2, 5, 6), np.uint8), "val_labels": np.zeros(2)},
            "val_images are (5, 6), not (5, 5)",
        ),
    ],
)
def test_bad_npz_is_refused_in_one_line_that_says_what_is_wrong(tmp_path, change, says):
    assert len(data.load(save(tmp_path, **GOOD)).y) == 4
    with pytest.raises(ValueError) as error:
        data.load(save(tmp_path, **(GOOD | change)))
    assert says in one_line(error)


def test_a_file_that_is_no_npz_or_cut_short_or_without_training_part_is_refused(tmp_path):
    path = save(tmp_path, **GOOD)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match="cannot be read as") as error:
        data.load(path)
    one_line(error)
    with pytest.raises(ValueError, match=r"holds x; it lacks train_images"):
        data.load(save(tmp_path, x=np.zeros(3)))


def archive(path, **members):
    """An .npz of members as they are: (bytes, the size that the directory claims or None)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, (content, size) in members.items():
            packed.writestr(f"{name}.npy", content)
            if size is not None:
                packed.getinfo(f"{name}.npy").file_size = size
    return path


def npy(shape, content=b"") -> bytes:
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue() + content


def member(array) -> tuple[bytes, None]:
    np.save(buffer := BytesIO(), array)
    return buffer.getvalue(), None


FULL = {name: member(array) for name, array in GOOD.items()}
BIG = 8 * 10**12
MEMBERS = {
    "more than the memory": (
        {"train_images": (npy((BIG,)), BIG + len(npy((BIG,))))},
        "8,000.0 GB of memory",
    ),
    "a claim of 300 TB": ({"train_images": (npy((300 * 10**12,)), None)}, "Unable to allocate"),
    "a negative shape": ({"train_images": (npy((-1, -4), bytes(4)), None)}, "cannot be read"),
    "too few bytes": ({"train_images": (npy((4, 5, 5), bytes(99)), None)}, "EOF"),
    "text for an array": ({"train_images": (b"hello", None)}, "train_images is no array"),
    "a header of brackets": (
        {"train_images": (b"\x93NUMPY\1\0\x10\x27" + b"(" * 10_000, None)},
        "cannot be read",
    ),
    "a pickle": ({"train_labels": (pickle.dumps([0, 1]), None)}, "train_labels is no array"),
}


@pytest.mark.parametrize("what", MEMBERS)
def test_members_that_are_no_arrays_or_too_large_are_refused(tmp_path, what):
    change, says = MEMBERS[what]
    path, start = archive(tmp_path / "set.npz", **(FULL | change)), process_time()
    with pytest.raises(ValueError, match=says) as error:
        data.load(path)
    assert process_time() - start < 1 and len(one_line(error)) < 400


def test_members_that_nobody_wants_are_not_read(tmp_path):
    whole = (npy((BIG,)), BIG + len(npy((BIG,))))
    path = archive(tmp_path / "set.npz", **FULL, other=whole, notes=(b"hello", None))
    assert len(data.load(path).y) == 4


def test_a_single_array_named_npz_is_refused(tmp_path):
    (tmp_path / "set.npz").write_bytes(FULL["train_images"][0])
    with pytest.raises(ValueError, match="of plain arrays: File is not a zip file") as error:
        data.load(tmp_path / "set.npz")
    one_line(error)


@pytest.mark.parametrize(
    "change",
    [
        {"train_labels": np.array([False, True] * 2)},
        {"classes": np.array(["a", "a"])},
        {"train_images": np.linspace(0, 1, 100).reshape(4, 5, 5)},
        {"train_images": np.linspace(0, 200, 100).reshape(4, 5, 5)},
        {"train_images": np.ones((4, 5, 5), int), "classes": np.array([b"a", b"b"])},
    ],
)
def test_arrays_of_many_kinds_are_read_without_a_word(tmp_path, change, recwarn):
    images = data.load(save(tmp_path, **(GOOD | change)))
    assert not recwarn.list and images.y.tolist() == [0, 1, 0, 1]
    assert images.classes[0] == ("a" if "classes" in change else "0")


def test_tensors_of_bfloat16_and_with_gradients_are_read_as_those_of_float32():
    x = torch.rand(6, 3, 4, 4).bfloat16()
    y = torch.arange(6) % 2
    wanted = data.from_arrays(x.float().numpy(), y.numpy())
    for kind in (x, x.float().requires_grad_()):
        assert torch.equal(data.from_arrays(kind, y).x, wanted.x)
        logits = kind.flatten(2)  # (M, N, K)
        signals = Signals.from_logits(logits, torch.tensor([0, 5, 2]))
        plain = Signals.from_logits(x.float().flatten(2).numpy(), [0, 5, 2])
        assert np.array_equal(signals.margin, plain.margin)


def test_floats_too_bright_for_0_to_1_and_too_dark_for_0_to_255_are_refused(tmp_path):
    path = save(tmp_path, **(GOOD | {"train_images": np.linspace(0, 1.02, 100).reshape(4, 5, 5)}))
    with pytest.raises(
        ValueError, match=r"run from 0 to 1.02: within 0..255 they are nearly black"
    ):
        data.load(path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"x": 1.5}, "wanted .N, C, H, W."),
        ({"mean": 0.5, "std": 1}, "^arrays: mean=0.5, std=1; wanted one positive std"),
        ({"mean": [np.nan], "std": [1]}, "wanted one positive std"),
        ({"mean": "a", "std": "b"}, "wanted one positive std"),
        ({"mean": 0.5, "std": 1, "name": "mine"}, "^mine: mean=0.5"),
        ({"classes": 5}, "classes=5; wanted a list of names"),
        ({"classes": "ab"}, "classes='ab'; wanted a list of names"),
        ({"classes": [["a"], ["b"]]}, "^arrays: classes=.*; wanted a list of names"),
        ({"classes": np.array([["a", "b"]])}, "^arrays: classes=.*; wanted a list of names"),
    ],
)
def test_wrong_arguments_of_from_arrays_are_refused_in_one_line(options, says):
    good = {"x": np.zeros((4, 1, 2, 2), np.uint8), "y": [0, 1, 0, 1]}
    with pytest.raises(ValueError, match=says) as error:
        data.from_arrays(**(good | options))
    one_line(error)


@pytest.mark.parametrize(
    "options",
    [
        {"limit": "5"},
        {"limit": 2.5},
        {"limit": np.zeros((2, 2))},
        {"size": "8"},
        {"seed": -1},
        {"seed": None},
    ],
)
def test_arguments_of_load_that_are_no_whole_numbers_are_refused(options):
    with pytest.raises(
        ValueError, match=f"{next(iter(options))}=.*: wanted a whole number"
    ) as error:
        data.load("digits", **options)
    one_line(error)


def test_from_arrays_takes_tensors_and_refuses_wrong_normalisation():
    x, y = torch.zeros(4, 3, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    assert data.from_arrays(x, y).std == (1.0, 1.0, 1.0)  # constant channels divide by 1
    for mean, std in (([0.5], None), ([0.5, 0.5], [1, 1]), ([0.5], [0])):
        with pytest.raises(ValueError):
            data.from_arrays(x, y, mean=mean, std=std)
    with pytest.raises(ValueError, match=r"canary has shape \(3,\); wanted \(4,\)"):
        data.from_arrays(x, y, canary=[True, False, True])
    with pytest.raises(ValueError, match=r"wanted \(N, C, H, W\)"):
        data.from_arrays(x[:, 0], y)


# ---------------------------------------------------------------------------------------------
# normalisation, augmentation


# --------------------------------------------------------------------------------------------------
# frames of events


def frames_of(images):
    """Frames (N, T, C, H, W) of images whose channels hold them."""
    return images.x.unflatten(1, (images.frames, images.channels)).numpy()


def test_frames_of_events_lie_along_the_channels_and_share_one_normalisation():
    counts = np.random.default_rng(0).integers(0, 4, (6, 5, 2, 8, 7))
    images = data.from_arrays(counts, np.arange(6) % 2)
    assert (images.frames, images.channels, images.x.shape) == (5, 2, (6, 10, 8, 7))
    np.testing.assert_array_equal(frames_of(images), counts)
    np.testing.assert_allclose(images.mean, np.tile(counts.mean((0, 1, 3, 4)) / 255, 5))
    np.testing.assert_allclose(images.std, np.tile(counts.std((0, 1, 3, 4)) / 255, 5))
    assert "6 of 5 frames of 2x8x7 pixels" in repr(images)
    assert "5 frames of 2 x 8 x 7" in images._repr_html_()
    assert data.check_images(images) is images


def test_the_number_of_frames_is_in_the_digest_and_one_frame_is_an_image():
    counts = np.random.default_rng(0).integers(0, 4, (6, 4, 1, 8, 8), dtype=np.uint8)
    y = np.arange(6) % 2
    four = data.from_arrays(counts, y, mean=(0,), std=(1,))
    two = data.from_arrays(counts.reshape(6, 2, 2, 8, 8), y, mean=(0,), std=(1,))
    image = data.from_arrays(counts[:, 0], y, mean=(0,), std=(1,))
    first_frame = data.from_arrays(counts[:, :1], y, mean=(0,), std=(1,))
    assert torch.equal(four.x, two.x) and four.digest != two.digest
    assert first_frame.digest == image.digest


@pytest.mark.parametrize(
    "x, says",
    [
        (np.zeros((4, 3, 2, 8, 8)), "frames of events are float64; wanted whole numbers"),
        (np.zeros((4, 3, 5, 8, 8), int), "frames of events have shape (4, 3, 5, 8, 8); wanted"),
        (np.zeros((4, 0, 2, 8, 8), int), "frames of events have shape (4, 0, 2, 8, 8); wanted"),
        (np.full((4, 3, 2, 8, 8), 256), "pixels run from 256 to 256; wanted 0..255"),
    ],
)
def test_what_counts_no_events_is_refused_in_one_line(x, says):
    with pytest.raises(ValueError) as error:
        data.from_arrays(x, [0, 1, 0, 1])
    assert says in one_line(error)


def test_a_number_of_frames_that_the_channels_are_no_multiple_of_is_refused():
    images = data.from_arrays(np.zeros((4, 3, 2, 8, 8), int), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="frames=4; wanted a whole number of which 6 channels"):
        data.check_images(images._replace(frames=4))


def test_an_npz_of_frames_is_read_as_its_arrays(tmp_path):
    fired = np.random.default_rng(0).integers(0, 2, (6, 3, 2, 8, 8)).astype(bool)
    labels = np.arange(6) % 2
    path = save(
        tmp_path,
        train_images=fired[:4],
        train_labels=labels[:4],
        test_images=fired[4:],
        test_labels=labels[4:],
    )
    images = data.load(path)
    assert images.digest == data.from_arrays(fired, labels).digest
    np.testing.assert_array_equal(frames_of(data.load(path, part="test")), fired[4:])


def edge(dark, bright, side=8):
    """An image that is dark on the left and bright on the right, as two samples."""
    x = np.full((2, 1, side, side), dark, np.uint8)
    x[..., side // 2 :] = bright
    return data.from_arrays(x, [0, 1])


def test_a_camera_that_stands_still_records_nothing(monkeypatch):
    monkeypatch.setattr("mia_nb.data.events.SACCADES", [(0, 0), (0, 0)])
    events = data.events_from_images(data.load("digits", limit=20))
    assert int(events.x.sum()) == 0


def test_a_brightness_step_of_k_thresholds_is_k_events_of_the_pixels_that_it_passes(monkeypatch):
    monkeypatch.setattr("mia_nb.data.events.SACCADES", [(0, 0), (0, 1)])
    step = math.log((200 / 255 + 0.05) / (20 / 255 + 0.05))
    for k in (1, 2, 5):
        options = {"frames": 3, "threshold": step / k}
        counts = frames_of(data.events_from_images(edge(20, 200), **options)).sum(1)
        expected = np.zeros((8, 8))
        expected[:, 3] = k  # the camera moves right, so the column left of the edge grows bright
        np.testing.assert_array_equal(counts[0, 0], expected)
        assert counts[:, 1].sum() == 0
        back = frames_of(data.events_from_images(edge(200, 20), **options)).sum(1)
        np.testing.assert_array_equal(back[0, 1], expected)
        assert back[:, 0].sum() == 0


def test_on_a_closed_path_every_pixel_grows_as_often_bright_as_dark():
    digits = data.load("digits", limit=50)
    events = data.events_from_images(digits, frames=6)
    on, off = frames_of(events).sum(1).swapaxes(0, 1)
    np.testing.assert_array_equal(on, off)
    assert on.any((1, 2)).all()
    assert events.digest == data.events_from_images(digits, frames=6).digest


@pytest.mark.parametrize(
    "options, says",
    [
        ({"threshold": 0}, "threshold=0"),
        ({"threshold": 1e-3}, "pixel fires"),
    ],
)
def test_a_camera_that_cannot_be_is_refused_in_one_line(options, says):
    with pytest.raises(ValueError) as error:
        data.events_from_images(edge(0, 255), frames=2, **options)
    assert says in one_line(error)


def test_normalise_is_the_textbook_formula_in_every_dtype():
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    exact = (x.numpy() / 255 - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    assert np.abs(data.normalise(x, mean, std, torch.float64).numpy() - exact).max() < 1e-14
    assert np.abs(data.normalise(x, mean, std).numpy() - exact).max() < 1e-6
    half = data.normalise(x, mean, std, torch.bfloat16)
    assert half.dtype == torch.bfloat16 and torch.equal(
        half, data.normalise(x, mean, std).bfloat16()
    )
    assert torch.equal(data.normalise(x, (0,), (1,), torch.float64), x.double() * (1 / 255))


def slow_augment(image: np.ndarray, draws: dict, i: int) -> np.ndarray:
    """One image at a time, as the words say it: pad with black, cut out, mirror, punch a hole."""
    _, height, width = image.shape
    if "shift" in draws:
        top, left = height // 8, width // 8
        padded = np.pad(image, ((0, 0), (top, top), (left, left)))
        row, column = (int(v) for v in draws["shift"][i])
        image = padded[:, top + row : top + row + height, left + column : left + column + width]
    if "flip" in draws and draws["flip"][i]:
        image = image[:, :, ::-1]
    image = image.copy()
    if "centre" in draws:
        row, column = (int(v) for v in draws["centre"][i])
        first, start = row - height // 8, column - width // 8
        image[
            :,
            max(first, 0) : max(first + height // 4, 0),
            max(start, 0) : max(start + width // 4, 0),
        ] = 0
    return image


@pytest.mark.parametrize("ops", ["none", "crop", "flip", "cutout", "crop+flip", "crop+flip+cutout"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 12, 20)])
def test_augmentation_of_a_batch_equals_one_image_at_a_time(ops, shape):
    x = torch.from_numpy(np.random.default_rng(0).integers(1, 256, (50, *shape), dtype=np.uint8))
    draws = data.augment_draws(ops, 50, *shape[1:], torch.Generator().manual_seed(1))
    out = data.apply_augment(x, draws)
    assert (
        out.numpy()
        == np.stack([slow_augment(image, draws, i) for i, image in enumerate(x.numpy())])
    ).all()
    assert torch.equal(out, x) == (ops == "none")


def test_autoaugment_is_torchvision_s_with_a_policy_for_each_image():
    """One image at a time, by torchvision's own class, which is handed what it would have drawn."""
    auto = _torchvision.module("torchvision.transforms.autoaugment")
    once = auto.AutoAugment(auto.AutoAugmentPolicy.CIFAR10, fill=[128] * 3)
    x = torch.randint(
        0, 256, (600, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    draws = data.augment_draws("autoaugment", 600, 16, 16, torch.Generator().manual_seed(1))
    same = torch.Generator().manual_seed(1)
    policy = torch.randint(0, 25, (600,), generator=same)
    uniform = torch.rand(600, 2, generator=same)
    sign = torch.randint(0, 2, (600, 2), generator=same)
    expected = []
    for image, *drawn in zip(x, policy.tolist(), uniform, sign, strict=True):
        once.get_params = lambda _, drawn=drawn: drawn
        expected.append(once(image))
    assert torch.equal(data.apply_augment(x, draws), torch.stack(expected))
    assert len(draws["operations"].unique()) > 50  # nearly all were seen
    two = torch.zeros(600, 2, 16, 16, dtype=torch.uint8)
    with pytest.raises(ValueError, match="have 2 channels; wanted 1 or 3"):
        data.apply_augment(two, draws)


def test_autoaugment_draws_every_policy_alike_and_its_operations_as_often_as_it_says():
    drawn = autoaugment.draw(250_000, torch.Generator().manual_seed(0))
    names = ["" if one is None else one[0] for one in autoaugment.operations()]
    for stage, numbers in enumerate(drawn.unbind(1)):
        wanted = Counter()
        for policy in autoaugment.policies():
            name, probability, _ = policy[stage]
            wanted[name] += probability / 25
        counts = torch.bincount(numbers, minlength=len(names))
        seen = Counter()
        for name, count in zip(names[1:], counts.tolist()[1:], strict=True):
            seen[name] += count / 250_000
        assert all(abs(seen[name] - share) < 0.005 for name, share in wanted.items()), seen
    signs = drawn[drawn > 0] % 2
    assert abs(signs.double().mean() - 0.5) < 0.01


def test_several_models_augment_at_once_as_each_would_alone():
    x = torch.randint(
        0, 256, (3, 10, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    draws = [
        data.augment_draws("crop+flip+cutout", 10, 16, 16, torch.Generator().manual_seed(m))
        for m in range(3)
    ]
    together = data.apply_augment(
        x.flatten(0, 1), {name: torch.cat([d[name] for d in draws]) for name in draws[0]}
    )
    alone = [data.apply_augment(x[m], draws[m]) for m in range(3)]
    assert torch.equal(together, torch.cat(alone))


def test_draws_are_uniform_over_shifts_mirrors_and_centres():
    draws = data.augment_draws("cutout+flip+crop", 81_000, 32, 32, torch.Generator().manual_seed(0))
    shifts = torch.bincount((draws["shift"] + 4) @ torch.tensor([9, 1]), minlength=81).double()
    centres = torch.bincount(draws["centre"] @ torch.tensor([32, 1]), minlength=1024).double()
    assert ((shifts - 1000).abs() < 5 * 1000**0.5).all() and len(shifts) == 81
    assert ((centres - 81000 / 1024).abs() < 6 * 80**0.5).all() and len(centres) == 1024
    assert abs(draws["flip"].double().mean() - 0.5) < 0.01
    again = data.augment_draws("crop+flip+cutout", 81_000, 32, 32, torch.Generator().manual_seed(0))
    assert all(torch.equal(again[name], draws[name]) for name in again)


def test_an_unknown_augmentation_is_refused():
    with pytest.raises(ValueError, match=r"'mirror' is not one of none, crop, flip, cutout"):
        data.augment_draws("crop+mirror", 4, 8, 8, torch.Generator())


# --------------------------------------------------------------------------------------------------
# membership


@pytest.mark.parametrize(
    ("samples", "population", "classes"),
    [(100, 0, 10), (101, 20, 7), (57, 13, 3), (1797, 300, 10), (9, 2, 5)],
)
def test_pairs_are_complements_and_halves_differ_by_at_most_one_in_every_class(
    samples, population, classes
):
    labels = np.random.default_rng(samples).integers(0, classes, samples)
    member = data.paired_membership(8, samples, labels=labels, num_population=population, seed=3)
    set_aside = ~member.any(0)
    assert member.dtype == bool and set_aside.sum() == population
    assert (member[0::2] ^ member[1::2] == ~set_aside).all()
    for c in range(classes):
        halves = member[:, (labels == c) & ~set_aside].sum(1)
        assert (np.abs(halves[0::2] - halves[1::2]) <= 1).all()
        assert abs(set_aside[labels == c].sum() - population * (labels == c).mean()) < 1
    assert (np.abs(member[0::2].sum(1) - member[1::2].sum(1)) <= 1).all()


def test_a_larger_pool_keeps_the_rows_of_a_smaller_one_and_pairs_differ():
    labels = np.arange(60) % 3
    for draw in (data.paired_membership, data.bernoulli_membership):
        large = draw(64, 60, labels=labels, num_population=10, seed=5)
        assert (draw(16, 60, labels=labels, num_population=10, seed=5) == large[:16]).all()
        assert len(np.unique(large, axis=0)) == 64
        assert (draw(64, 60, labels=labels, num_population=10, seed=6) != large).any()


def test_every_sample_is_a_member_half_of_the_time_whatever_its_class_size():
    labels = np.array([0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3])  # odd classes, odd total
    share = data.paired_membership(4000, 11, labels=labels, seed=0)[0::2].mean(0)
    assert (np.abs(share - 0.5) < 4.5 * 0.5 / 2000**0.5).all()
    population = np.mean(
        [
            ~data.paired_membership(2, 11, labels=labels, num_population=4, seed=s).any(0)
            for s in range(1500)
        ],
        0,
    )
    assert (np.abs(population - 4 / 11) < 4.5 * 0.5 / 1500**0.5).all()


def test_bernoulli_rows_are_independent_fair_coins():
    member = data.bernoulli_membership(400, 500, num_population=100, seed=0)
    audited = member[:, member.any(0)].astype(float)
    assert audited.shape == (400, 400) and abs(audited.mean() - 0.5) < 4 * 0.5 / 400
    rows = np.corrcoef(audited)[np.triu_indices(400, 1)]
    assert np.abs(rows).max() < 6 / 20 and abs(rows.std() * 20 - 1) < 0.05
    assert np.std(audited.sum(1)) > 5  # rows are not balanced by design: sd of a binomial is 10


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: data.paired_membership(5, 10), "take 6"),
        (lambda: data.paired_membership(0, 10), "take 2"),
        (lambda: data.paired_membership(4, 10, num_population=9), "leave two samples"),
        (lambda: data.paired_membership(4, 10, num_population=-1), "leave two samples"),
        (lambda: data.paired_membership(4, 10, labels=np.zeros(9)), "wanted (10,)"),
        (lambda: data.bernoulli_membership(0, 10), "at least 1"),
        (lambda: data.bernoulli_membership(3, 1), "leave two samples"),
    ],
)
def test_impossible_membership_is_refused_in_one_line(call, says):
    with pytest.raises(ValueError) as error:
        call()
    assert says in one_line(error)


def test_measured_statistics_are_rounded_once_and_so_the_same_on_every_machine():
    """Results are kept under a digest of them; a sum of floats differs between processors."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (501, 3, 7, 5), dtype=np.uint8)
    images = data.from_arrays(x, np.arange(501) % 10)
    for channel, mean, std in zip(x.transpose(1, 0, 2, 3), images.mean, images.std, strict=True):
        values = [Fraction(int(value), 255) for value in channel.reshape(-1)]
        exact = sum(values) / len(values)
        variance = sum(value**2 for value in values) / len(values) - exact**2
        assert mean == float(exact)
        assert std == math.sqrt(float(variance))
