"""Image folders, archives and outputs of strangers: truncated, huge, odd, mislabelled."""

from __future__ import annotations

import math
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
from faults_stores import World
from PIL import Image

from mia_nb import auditing, data

Make = Callable[[Path], object]  # puts something at, or into, a path
SYNTHETIC = (
    "n=-1",
    "size=100000",
    "a=1",
    "n=a",
    "n",
    "n=1e3",
    "noise=nan",
    "noise=inf",
    "channels=9",
    "n=100000000000",
    "classes=1",
    "seed=-1",
)
OTHER = ("imagenet", "", "/dev/zero", "\0", "a.npz", "cifar10", "tiny_imagenet")


def files(w: World, rng) -> Iterator[tuple]:
    """Each is made just before it is read."""
    made, cache = w.place / "tmp" / "made", w.place / "cache"
    path = made.with_suffix(".npz")
    for name, (make, expect, *size) in folders().items():
        yield (
            f"a folder with {name}",
            partial(read_folder, made, *size),
            expect,
            partial(start, made, make),
        )
    with np.errstate(invalid="ignore"):
        tables = archives(), outputs()
    reads = lambda: data.load(path, data_root=cache) and "", lambda: read_outputs(path)
    for what, table, read in zip(("an npz", "outputs"), tables, reads, strict=True):
        for name, (make, expect, *seconds) in table.items():
            yield f"{what} with {name}", read, expect, partial(make, path), *seconds
    for name in (*(f"synthetic:{options}" for options in SYNTHETIC), *OTHER):
        yield f"data.load({name!r})", partial(data.load, name, data_root=cache), "refused"


def read_outputs(path: Path) -> str:
    """Outputs as the audit takes them; what is said beside the verdict counts as a warning."""
    signals = auditing.read_outputs(path).signals
    said = auditing.comparable(signals) if hasattr(auditing, "comparable") else {}
    for remark in filter(None, [*said.get("remarks", ()), said.get("doubt")]):
        warnings.warn(remark, stacklevel=2)
    return ""


def read_folder(path: Path, size: int | None = None) -> str:
    images = data.load(path, data_root=path.parent, size=size)
    if "turned" in os.listdir(path) and images.x.shape[2:] != (8, 4):
        raise AssertionError(f"stored turned, read as {tuple(images.x.shape)}")
    return ""


def start(path: Path, make: Make) -> None:
    """Two classes of three pictures each, and then something else."""
    for n in range(6):
        (path / f"class{n % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), 40 * n, np.uint8)).save(
            path / f"class{n % 2}" / f"{n}.png"
        )
    make(path)


def picture(image: Image.Image, form: str = "PNG", **how) -> bytes:
    image.save(buffer := BytesIO(), form, **how)
    return buffer.getvalue()


def plain_png(side: int, *, grey: bool = False) -> bytes:
    """A black picture, made without holding its pixels: of three bytes each, or of a bit if grey."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    packer, row = zlib.compressobj(1), b"\0" * (1 + (-(-side // 8) if grey else side * 3))
    body = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, *((1, 0) if grey else (8, 2)), 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def turned(path: Path) -> None:
    """All pictures 8 x 4 pixels, to be shown turned by a quarter."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for file in list(path.glob("*/*.png")):
        Image.new("RGB", (8, 4)).save(file.with_suffix(".jpg"), exif=exif)
        file.unlink()
    (path / "turned").touch()


def folders() -> dict[str, tuple]:
    """{what: (how to put it there, expectation, size)}."""

    def put(name: str, content: bytes) -> Make:
        return lambda p: (p / "class0" / name).write_bytes(content)

    def nothing(path: Path) -> None:
        pass

    rgb, frame = picture(Image.new("RGB", (4, 4))), Image.new("P", (4, 4))
    large, larger = plain_png(13_000), plain_png(30_000, grey=True)
    bad = {
        "a truncated picture": put("x.png", rgb[:40]),
        "an empty picture": put("x.png", b""),
        "text named png": put("x.png", b"hello"),
        "13,000 x 13,000 pixels": put("x.png", large),
        "30,000 x 30,000 pixels": put("x.png", larger),
        "other sizes": put("x.png", picture(Image.new("RGB", (5, 4)))),
        "a link to itself": lambda p: (p / "class0" / "x.png").symlink_to("x.png"),
        "a link to /dev/zero": lambda p: (p / "class0" / "x.png").symlink_to("/dev/zero"),
        "16 bits": put("x.png", picture(Image.fromarray(np.ones((4, 4), np.uint16)))),
        "an empty class": lambda p: (p / "z").mkdir(),
        "a long name": put("x" * 200 + ".png", b"a"),
        "a name with a line break": put("x\ny.png", b"a"),
        "a bad name": put("\udcff.png", b"a"),
    }
    odd = {
        "CMYK": put("x.jpg", picture(Image.new("CMYK", (4, 4)), "JPEG")),
        "moving pictures": put(
            "x.gif", picture(frame, "GIF", save_all=True, append_images=[frame])
        ),
        "transparency": put("x.png", picture(Image.new("RGBA", (4, 4)))),
        "a folder named png": lambda p: (p / "class0" / "x.png").mkdir(),
        "a FIFO beside the classes": lambda p: os.mkfifo(p / "class9"),
    }
    return (
        {name: (make, "refused") for name, make in bad.items()}
        | {name: (make, "any") for name, make in odd.items()}
        | {
            "nothing odd": (nothing, "accepted"),
            "a size": (nothing, "accepted", 8),
            "a size of 10^9": (nothing, "refused", 10**9),
            "a size of 0": (nothing, "refused", 0),
            "13,000 x 13,000 pixels and a size": (put("x.png", large), "any", 8),
            "other sizes and a size": (
                put("x.png", picture(Image.new("RGB", (5, 4)))),
                "accepted",
                4,
            ),
            "EXIF orientation": (turned, "accepted"),
            "a name that is not UTF-8": (put("\udcff.png", rgb), "accepted"),
            "hidden files": (put(".x.png", b"a"), "accepted"),
        }
    )


def claim(
    saved: Callable[..., Make], name: str, shape: tuple, kind: str = "<f8", megabytes: int = 0
) -> Make:
    """An archive whose member says that it has this shape, and holds so many megabytes of zeros."""

    def make(path: Path) -> None:
        saved(**{name: None})(path)
        head = {"descr": kind, "fortran_order": False, "shape": shape}
        with (
            zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            archive.open(f"{name}.npy", "w", force_zip64=True) as file,
        ):
            np.lib.format.write_array_header_1_0(file, head)
            for _ in range(megabytes):
                file.write(b"\0" * (1 << 20))

    return make


def writer(fine: dict) -> Callable[..., Make]:
    """saved(name=array, ...): an archive of the fine arrays with these changes; None leaves one
    out.
    """

    def saved(pickled: bool = False, **arrays) -> Make:
        given = {name: value for name, value in (fine | arrays).items() if value is not None}
        return lambda path: np.savez(path, allow_pickle=pickled, **given)

    return saved


def wrecks(fine: dict, saved: Callable[..., Make], *optional: str) -> dict[str, tuple]:
    """What no archive of these arrays is, whoever reads it."""

    def text(path: Path) -> None:
        saved(**{first: None})(path)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(first, "hello")

    first, huge, pickle = next(iter(fine)), (10**6, 10**6, 300), np.array([{}], object)
    np.save(buffer := BytesIO(), fine[first])
    bad = {f"no {name}": saved(**{name: None}) for name in fine}
    bad |= {f"pickled {name}": saved(True, **{name: pickle}) for name in (*fine, *optional)}
    bad |= {f"a claim of 2 PB for {name}": claim(saved, name, huge) for name in fine}
    bad |= {
        f"{content[:9]!r} in it": lambda path, c=content: path.write_bytes(c)
        for content in (b"", b"\xff" * 999, buffer.getvalue(), b"PK\3\4" + b"\0" * 99)
    }
    bad |= {
        "a negative shape": claim(saved, first, (-3, 8, 8)),
        "an odd type": claim(saved, first, (3,), "junk"),
        "a FIFO's place": os.mkfifo,
        "a folder's place": Path.mkdir,
        "a member that is no array": text,
        "half of it": lambda path: (saved()(path), os.truncate(path, path.stat().st_size // 2)),
        "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    }
    found = {name: (make, "refused") for name, make in bad.items()}
    found["2 GB in 2 MB"] = claim(saved, first, (1 << 28,), megabytes=2048), "refused", 60.0
    found["2 GB beside it"] = claim(saved, "other", (1 << 28,), megabytes=2048), "accepted", 60.0
    return found | {"2 PB claimed beside it": (claim(saved, "other", huge), "accepted")}


def archives() -> dict[str, tuple]:
    """{what: (how to write the .npz of images, expectation, seconds)}."""
    x, y = np.random.default_rng(0).integers(0, 255, (30, 8, 8), np.uint8), np.arange(30) % 3
    fine = {"train_images": x, "train_labels": y}
    saved = writer(fine)
    good = {
        "train_images": [
            np.asfortranarray(x),
            x.astype("u2"),
            x / 255,
            x[..., None],
            np.stack([x] * 3, 3),
            x[:, None, None],  # a frame of events
        ],
        "train_labels": [y.astype(">i4"), y[:, None], y.astype("f4"), y > 0],
        "classes": [list("abc"), list("aab")],
    }
    bad = {
        "train_images": [
            x * math.nan,
            x * math.inf,
            x - 300.0,
            x * 3.0,
            x / 255 * 1.5,
            x * 1j,
            x.astype(str),
            x[:0],
            x[:-1],
            x.reshape(30, 64),
            x[:, None, None, None],
            x[:, None, None] / 255,
            np.stack([x] * 7, 3),
            x[:, :0],
            x[0, 0, 0],
            x.astype("M8[s]"),
            np.zeros((30, 8, 8), "i4,f4"),
            x > 9,
        ],
        "train_labels": [
            y + 0.5,
            y.astype(str),
            y * math.nan,
            y - 1,
            y * 2,
            y + 10**15,
            y * 0,
            np.arange(31),
            np.eye(3)[y],
            y * 1j,
            np.int64(3),
            y.astype("M8[s]"),
            (y - 1).astype("u8"),
        ],
        "classes": ["a", list("ab"), 3, [[]]],
    }
    return tabled(saved, good, {}, bad) | wrecks(fine, saved, "classes")


def outputs() -> dict[str, tuple]:
    """{what: (how to write the .npz of outputs, expectation, seconds)}."""
    rng, m, n, k = np.random.default_rng(0), 4, 400, 10
    member, y = data.paired_membership(m, n, seed=1), rng.integers(0, k, n)
    z = rng.normal(size=(m, n, k)) + 4 * np.eye(k)[y] * (0.6 + 0.4 * member[..., None])
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    fine = {"logits": z, "labels": y, "member": member}
    saved = writer(fine)
    good = {
        "logits": [z, np.log(p), z.astype("f2"), z[:, None]],
        "member": [member * 1],
        "split": ["pairs"],
    }
    told = {"logits": [-np.log(p)], "labels": [rng.permutation(y)]}
    bad = {
        "logits": [
            p,
            z * math.nan,
            z * math.inf,
            z.swapaxes(0, 1),
            z[..., :1],
            z[:0],
            z[:, :0],
            z[0],
            0 * z,
            1 / (1 + np.exp(-z)),
            np.concatenate([p[:2], z[2:]]),
            z.astype(str),
            z * 1j,
            z.astype("i8").astype("M8[s]"),
            3.0,
        ],
        "labels": [y + 1, y.astype(str), y + 0.5, np.eye(k)[y], y[:0], y * math.nan],
        "member": [
            ~member,
            member * 0.7,
            member.astype(str),
            member * math.nan,
            np.where(member, 1, -1),
            member | True,
            member & False,
            member.T,
            member[:, :9],
        ],
        "split": ["bogus", [[]]],
        "classes": [["a"]],
        "population": [member[0], [True], ["a"] * n],
        "images": [np.zeros((n, 4, 4)), np.zeros((3, 4, 4), "u1")],
    }
    return (
        tabled(saved, good, told, bad)
        | wrecks(fine, saved, "split", "draws", "classes", "population")
        | {
            "odd draws": (saved(logits=np.stack([z, z + 1], 1), draws="bogus"), "refused"),
        }
    )


def tabled(saved: Callable[..., Make], good: dict, told: dict, bad: dict) -> dict[str, tuple]:
    """{what: (how to write it, expectation)} of {name of an array: its values}."""
    return {
        f"{expect} {name} {number}": (saved(**{name: value}), expect)
        for expect, table in (("accepted", good), ("told", told), ("refused", bad))
        for name, values in table.items()
        for number, value in enumerate(values)
    }


CATEGORIES = {"files": (files, 60)}
