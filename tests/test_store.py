import contextlib
import errno
import io
import json
import multiprocessing
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile

import filelock
import numpy as np
import pytest
from attack_worlds import gaussian, save_signals, signals

import mia_nb
from mia_nb import store
from mia_nb._files import replacing, scratch_name
from mia_nb.store import manifest
from mia_nb.types import PER_MODEL


@pytest.fixture
def folder(tmp_path):
    return store.open_folder(tmp_path, "pool", "digits/tiny cnn", "a" * 64, {"epochs": 3})


def test_what_was_written_is_read_back_to_the_bit(folder):
    array = np.random.default_rng(0).normal(size=(3, 4))
    folder.write_array("a.npy", array)
    folder.write_arrays("b.npz", {"x": array, "y": array > 0})
    folder.write_json("c.json", {"k": [1, 2.5, None]})
    assert np.array_equal(folder.read_array("a.npy"), array)
    assert np.array_equal(folder.read_arrays("b.npz")["y"], array > 0)
    assert folder.read_json("c.json") == {"k": [1, 2.5, None]}
    assert folder.recipe == {"epochs": 3} and folder.key == "a" * 64 and folder.kind == "pool"


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b""]
)
def test_a_truncated_or_altered_file_is_refused_by_name(folder, damage):
    folder.write_array("a.npy", np.arange(10))
    path = folder.path / "a.npy"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(store.Corrupt, match=r"a\.npy"):
        folder.read_array("a.npy")
    assert not folder.intact("a.npy") and "a.npy" in folder.verify()[0]


def test_a_missing_file_is_refused_by_name(folder):
    folder.write_array("a.npy", np.arange(10))
    (folder.path / "a.npy").unlink()
    assert not folder.has("a.npy")
    with pytest.raises(store.Corrupt, match=r"a\.npy"):
        folder.read_array("a.npy")


def test_a_file_that_is_not_in_the_manifest_is_not_there(folder):
    (folder.path / "stray.npy").write_bytes(b"x")
    assert not folder.has("stray.npy")
    with pytest.raises(store.Corrupt):
        folder.read_bytes("stray.npy")


def test_a_torn_last_line_of_the_manifest_hides_that_file_and_no_other(folder):
    folder.write_bytes("a", b"1")
    folder.write_bytes("b", b"2")
    manifest = folder.path / store.MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:-5])
    assert folder.has("a") and not folder.has("b")
    folder.write_bytes("c", b"3")
    assert folder.has("a") and folder.has("c") and not folder.has("b")


def test_a_failed_write_leaves_the_old_file_and_nothing_temporary(folder, monkeypatch):
    folder.write_bytes("a", b"old")
    monkeypatch.setattr(
        os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space left"):
        folder.write_bytes("a", b"new")
    monkeypatch.undo()
    assert folder.read_bytes("a") == b"old"
    assert not list(folder.path.glob(".tmp-*"))


def test_keys_depend_on_every_part_and_not_on_the_order_of_entries():
    key = store.content_key({"a": 1, "b": [1, 2]}, "x", b"y")
    assert key == store.content_key({"b": [1, 2], "a": 1}, "x", b"y")
    others = [
        ({"a": 2, "b": [1, 2]}, "x", b"y"),
        ({"a": 1, "b": [1, 2]}, "xy", b""),
        ({"a": 1, "b": [1, 2]}, "x"),
    ]
    assert len({key, *(store.content_key(*other) for other in others)}) == 4


def test_find_takes_a_unique_prefix_of_key_or_name_and_lists_what_is_there(tmp_path):
    one = store.open_folder(tmp_path, "pool", "digits-tinycnn", "ab" + "0" * 62, {})
    two = store.open_folder(tmp_path, "signals", "digits-tinycnn", "ac" + "0" * 62, {})
    assert store.find("ab", tmp_path) == one
    assert store.find("signals-digits", tmp_path) == two
    assert store.find("a", tmp_path, kind="pool") == one
    with pytest.raises(ValueError, match="fits 2 results"):
        store.find("a", tmp_path)
    with pytest.raises(ValueError, match=r"no result in .*digits_tinycnn-ab0000000000"):
        store.find("zz", tmp_path)
    with pytest.raises(ValueError, match=r"no signals in .* starts with 'ab'"):
        store.find("ab", tmp_path, kind="signals")


def test_a_damaged_record_does_not_hide_the_other_results(tmp_path):
    one, two = (store.open_folder(tmp_path, "pool", "digits", c * 64, {}) for c in "ab")
    (two.path / "recipe.json").write_text("{")
    assert store.find("aaaa", tmp_path) == one
    assert store.find("b", tmp_path).path == two.path


def test_a_results_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write results"):
        store.open_folder(tmp_path / "file", "pool", "x", "a" * 64, {})


def hold(path, ready):
    with store.Folder(path).lock():
        ready.set()
        time.sleep(60)


def test_a_lock_keeps_others_out_and_is_freed_when_its_holder_is_killed(folder):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=hold, args=(folder.path, ready))
    holder.start()
    assert ready.wait(30)
    assert folder.locked()
    with pytest.raises(filelock.Timeout), folder.lock(timeout=0.05):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with folder.lock(timeout=5):
        assert True
    assert not folder.locked()


def test_sweep_removes_only_old_temporary_files(folder):
    old, new = folder.path / ".tmp-1-old", folder.path / ".tmp-1-new"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    assert folder.sweep() == [old.name]
    assert new.exists() and not old.exists()


def test_nothing_in_a_folder_is_unpickled(folder):
    class Evil:
        def __reduce__(self):
            return (os.system, ("true",))

    np.save(folder.path / "evil.npy", np.array([Evil()], object), allow_pickle=True)
    folder.add("evil.npy")
    with pytest.raises(ValueError, match="allow_pickle"):
        folder.read_array("evil.npy")


def test_records_are_json_that_a_person_can_read(folder):
    assert json.loads((folder.path / "recipe.json").read_text())["recipe"] == {"epochs": 3}


def test_an_array_written_row_by_row_is_the_file_that_numpy_would_write(folder):
    array = np.random.default_rng(0).normal(size=(5, 3, 4))
    with folder.rows("a.npy", array.dtype, array.shape) as append:
        append(array[:2])
        assert not folder.has("a.npy")
        append(array[2:].swapaxes(1, 2).copy().swapaxes(1, 2))
    np.save(folder.path / "whole.npy", array)
    assert (
        folder.intact("a.npy")
        and (folder.path / "a.npy").read_bytes() == (folder.path / "whole.npy").read_bytes()
    )


@pytest.mark.parametrize(
    "rows",
    [np.zeros((2, 4)), np.zeros((4, 4)), np.zeros((3, 5)), np.zeros((3, 4), np.float32)],
    ids=lambda a: f"{a.shape}",
)
def test_rows_that_do_not_make_up_the_promised_array_leave_nothing(folder, rows):
    with (
        pytest.raises(ValueError, match=r"a\.npy"),
        folder.rows("a.npy", np.dtype(float), (3, 4)) as append,
    ):
        append(rows)
    assert not folder.has("a.npy") and not list(folder.path.glob(".tmp-*"))


@pytest.mark.parametrize("size", [10, 20_000])
def test_a_mapped_array_is_read_only_and_stays_as_it_was_when_the_file_is_written_anew(
    folder, size, monkeypatch
):
    monkeypatch.setattr(store.folder, "SMALL", 1 << 10)
    array = np.arange(size, dtype=float)
    folder.write_array("a.npy", array)
    mapped = folder.map_array("a.npy")
    folder.write_array("a.npy", -array)
    assert type(mapped) is np.ndarray and np.array_equal(mapped, array)
    assert np.array_equal(folder.map_array("a.npy"), -array)
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    with pytest.raises(store.Corrupt):
        folder.map_array("b.npy")


def test_signals_are_read_back_to_the_bit_with_membership_or_without(folder):
    world = gaussian(6, 50, queries=3, query_kind="noise", population=8)
    for known in (world, world.hide()):
        other = store.Folder(folder.path.parent / f"signals-here-{known.member is None}")
        other.path.mkdir()
        assert not store.has_signals(other)
        save_signals(other, known)
        again = store.load_signals(other)
        assert (
            store.has_signals(other)
            and again.query_kind == "noise"
            and (again.member is None) == (known.member is None)
        )
        for name in ("labels", "population", *PER_MODEL):
            assert np.array_equal(getattr(again, name), getattr(known, name)), name


@pytest.mark.parametrize("size", [50, 40_000])
@pytest.mark.parametrize("name", ["labels", "member", "entropy", "top_log_p", "margin"])
def test_an_altered_file_of_signals_is_refused_by_name_however_large_it_is(
    folder, name, size, monkeypatch
):
    monkeypatch.setattr(store.folder, "SMALL", 1 << 15)
    rng = np.random.default_rng(0)
    save_signals(folder, signals(rng.normal(size=(4, size)), rng.random((4, size)) < 0.5))
    with open(folder.path / f"{name}.npy", "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"!!!")
    with pytest.raises(store.Corrupt, match=rf"{name}\.npy is missing, truncated or altered"):
        store.load_signals(folder)


@pytest.mark.parametrize("name", [*store.OUTPUTS, *store.DESIGN, "samples", "info"])
def test_signals_of_which_a_file_was_taken_away_are_none_and_are_refused_by_its_name(folder, name):
    save_signals(folder, gaussian(4, 30), np.arange(30))
    file = f"{name}.json" if name == "info" else f"{name}.npy"
    folder.remove(file)
    assert not store.has_signals(folder)
    with pytest.raises(store.Corrupt, match=file):
        store.load_signals(folder)
    save_signals(folder, gaussian(4, 30), np.arange(30))
    assert store.has_signals(folder) and store.load_signals(folder).member is not None


def test_what_is_not_known_of_new_signals_is_not_kept_from_the_old_ones(folder):
    world = gaussian(4, 30)
    save_signals(folder, world, np.arange(30))
    assert np.array_equal(store.load_samples(folder), np.arange(30))
    save_signals(folder, world.hide())
    assert store.load_signals(folder).member is None and store.load_samples(folder) is None
    assert not {"member.npy", "samples.npy"} & {path.name for path in folder.path.iterdir()}


@pytest.mark.parametrize("last", [*store.OUTPUTS, *store.DESIGN, "info"])
def test_signals_whose_overwriting_was_stopped_are_none_rather_than_a_mixture(
    folder, last, monkeypatch
):
    world = gaussian(4, 30)
    save_signals(folder, world)
    listing = store.Folder._append

    def killed(self, entries):
        listing(self, entries)
        if any(sha256 and name.startswith(f"{last}.") for name, sha256 in entries.items()):
            raise KeyboardInterrupt

    monkeypatch.setattr(store.Folder, "_append", killed)
    with pytest.raises(KeyboardInterrupt):
        save_signals(folder, gaussian(4, 30, seed=9))
    monkeypatch.undo()
    if last != store.FINISHED.removesuffix(".npy"):
        assert not store.has_signals(folder)
        with pytest.raises(store.Corrupt):
            store.load_signals(folder)
    else:
        assert np.array_equal(store.load_signals(folder).entropy, gaussian(4, 30, seed=9).entropy)


def test_a_full_disk_is_told_once_and_another_fault_is_not_called_one(folder, monkeypatch):
    world = gaussian(4, 30)

    def failing(number):
        def fail(_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fail)

    for number, way in ((errno.EDQUOT, "make room"), (errno.EIO, "see to that")):
        failing(number)
        with (
            pytest.raises(
                OSError, match=f"{os.strerror(number)} while writing .*{way} and run again"
            ) as caught,
            folder.rows("a.npy", np.dtype(float), (1, 2)) as first,
            folder.rows("b.npy", np.dtype(float), (1, 2)) as second,
        ):
            first(np.zeros((1, 2)))
            second(np.zeros((1, 2)))
        assert str(caught.value).count("while writing") == 1 and caught.value.errno == number
        monkeypatch.undo()
    monkeypatch.setattr(
        os,
        "replace",
        lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")),
    )
    with pytest.raises(OSError, match=r"while writing .*partial-002.*make room"):
        store.write_partial(folder, 2, world.select(models=[2]))
    assert not list(folder.path.glob(".tmp-*"))


def test_signals_of_usual_size_hold_no_file_open(folder):
    rng = np.random.default_rng(0)
    save_signals(folder, signals(rng.normal(size=(4, 40_000)), rng.random((4, 40_000)) < 0.5))
    assert not isinstance(store.load_signals(folder).margin.base, np.memmap)


def test_damaged_answers_of_a_model_count_as_none(folder):
    world = gaussian(4, 30)
    store.write_partial(folder, 2, world.select(models=[2]))
    assert (
        np.array_equal(store.read_partial(folder, 2)["margin"][0], world.margin[2])
        and store.read_partial(folder, 1) is None
    )
    (path,) = folder.path.glob(".partial-*")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    for damaged in (raw, raw[: len(raw) // 2], b""):
        path.write_bytes(damaged)
        assert store.read_partial(folder, 2) is None


HOSTILE = [
    "../victim",
    "a/../../victim",
    "model_/../../../victim",
    "/tmp/victim",
    "..",
    ".",
    "",
    ".lock-folder",
]
HOSTILE += [
    store.MANIFEST,
    "a\\..\\victim",
    "C:victim",
    "a\0b",
    "\ud800",
    "x" * 300,
    3,
    None,
    ["a"],
    {"a": 1},
]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_a_name_that_is_not_plain_is_no_record_and_nothing_outside_is_removed_because_of_it(
    folder, name, capsys
):
    victim = folder.path.parent.parent / "victim"
    victim.write_text("precious")
    (folder.path / "model_").mkdir()
    line = json.dumps({"file": name, "sha256": "0" * 64})
    with open(folder.path / store.MANIFEST, "a") as manifest:
        manifest.write(line + "\n")
    folder.write_bytes("a", b"1")
    assert folder.files().keys() == {"recipe.json", "a"} and folder.damaged() == []
    folder.remove(*folder.files(), name)
    assert victim.read_text() == "precious" and (folder.path / store.MANIFEST).exists()
    assert capsys.readouterr().err.count("what is no record is skipped (line 2)") == 1
    if isinstance(name, str):
        with pytest.raises(ValueError, match="is no name of a stored file"):
            folder.write_bytes(name, b"")


def test_lines_that_are_no_records_are_said_once_and_the_others_count(folder, capsys):
    folder.write_bytes("a", b"1")
    junk = [
        b"\0" * 100,
        b"\xff\xfe{",
        b"[1]",
        b"3",
        b'"a"',
        b"null",
        b"[" * 100_000,
        b'{"file": "b", "sha256": 5}',
        b'{"file": "b"}',
    ]
    with open(folder.path / store.MANIFEST, "ab") as manifest:
        manifest.write(b"\n".join(junk))
    folder.write_bytes("c", b"3")
    assert folder.files().keys() == {"recipe.json", "a", "c"} and not folder.verify()
    said = capsys.readouterr().err
    assert (
        said.count("\n") == 1
        and "manifest.jsonl: what is no record is skipped (line 3, 4, 5, 6, 7, ...)" in said
    )


def test_a_manifest_is_parsed_once(folder, monkeypatch):
    for n in range(50):
        folder.write_bytes(f"f{n}", b"1")
    folder.files()
    parsed, entry = [], manifest._entry
    monkeypatch.setattr(manifest, "_entry", lambda line: parsed.append(line) or entry(line))
    assert all(folder.intact(f"f{n}") for n in range(50)) and not parsed


def test_a_manifest_that_was_rewritten_in_place_is_read_anew(folder):
    folder.write_bytes("a", b"1")
    manifest = folder.path / store.MANIFEST
    was = manifest.read_bytes()
    assert folder.has("a")
    manifest.write_bytes(was.replace(b'"file": "a"', b'"file": "b"'))
    os.utime(manifest, (1, 1))
    assert folder.files().keys() == {"recipe.json", "b"}
    manifest.write_bytes(b"junk\n" + was)
    assert folder.has("a")


def spoiled(path, kind):
    """Put something that is no regular file in a file's place."""
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):
            made.bind(path.name)
    else:
        path.symlink_to(
            {"link": path.parent.parent / "same", "device": "/dev/zero", "dangling": "nowhere"}[
                kind
            ]
        )


@pytest.mark.skipif(os.name == "nt", reason="files of Unix")
@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device", "dangling"])
def test_what_is_no_regular_file_counts_as_missing_and_is_never_waited_for(folder, kind):
    folder.write_array("a.npy", np.arange(10))
    spoiled(folder.path / "a.npy", kind)
    assert not folder.has("a.npy") and not folder.intact("a.npy") and folder.damaged() == ["a.npy"]
    for read in (folder.read_array, folder.map_array, folder.read_json):
        with pytest.raises(store.Corrupt, match=r"a\.npy is missing"):
            read("a.npy")
    if kind != "folder":
        folder.write_array("a.npy", np.arange(3))
        assert len(folder.read_array("a.npy")) == 3


@pytest.mark.skipif(os.name == "nt", reason="files of Unix")
@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "device"])
@pytest.mark.parametrize("name", [store.MANIFEST, "recipe.json"])
def test_one_folder_without_a_readable_record_hides_no_other(folder, kind, name, tmp_path):
    other = store.open_folder(tmp_path, "pool", "digits", "b" * 64, {})
    spoiled(folder.path / name, kind)
    assert {f.path for f in store.folders(tmp_path)} == {folder.path, other.path}
    assert store.find("b", tmp_path) == other
    with pytest.raises(store.Corrupt, match=r"recipe\.json"):
        _ = folder.recipe
    if name == store.MANIFEST and kind == "link":
        for change in (lambda: folder.write_bytes("a", b""), lambda: folder.remove("a")):
            with pytest.raises(ValueError, match="is a link: nothing is written through it"):
                change()


@pytest.mark.skipif(os.name == "nt", reason="links of Unix")
def test_links_are_removed_themselves_and_never_what_they_point_to(folder, tmp_path):
    aside = tmp_path / "aside"
    aside.mkdir()
    (aside / "victim").write_text("precious")
    folder.write_bytes("a", b"1")
    (folder.path / "a").unlink()
    for name, target in (
        ("a", aside / "victim"),
        (".tmp-1", aside / "victim"),
        (".partial-000.npz", "gone"),
    ):
        (folder.path / name).symlink_to(target)
    folder.remove("a")
    assert folder.sweep(older_than=-1) == [".tmp-1"]
    assert store.drop_partial(folder) == [".partial-000.npz"]
    moved = folder.path.rename(aside / "real")
    folder.path.symlink_to(moved)
    assert folder.recipe == {"epochs": 3}  # it can be read
    folder.delete()
    assert (
        not folder.path.exists()
        and (moved / "recipe.json").exists()
        and (aside / "victim").read_text() == "precious"
    )


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "raw",
    [b"[]", b"3", b"null", DEEP, b'{"a":' * 50_000, b"\xff\0", b"{}", b'{"key": 5, "recipe": []}'],
)
def test_a_record_of_another_form_is_corrupt_though_its_checksum_is_right(folder, raw):
    for name in ("recipe.json", "info.json"):
        folder.write_bytes(name, raw)
    for read in (
        lambda: folder.key,
        lambda: store.read_info(folder),
        lambda: store.load_signals(folder),
    ):
        with pytest.raises(
            store.Corrupt, match=r"json is not what it should be though its checksum is right"
        ) as caught:
            read()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    assert not store.has_signals(folder)


def npy(shape, data=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + data


UNTRUE = [
    npy((10**14, 3)),
    npy((-1, -8), bytes(64)),
    npy((-8,)),
    npy((3,), bytes(23)),
    b"",
]
UNTRUE += [
    b"\x93NUMPY\x01\x00",
    b"\x93NUMPY\x01\x00\x20\x23" + b"(" * 8991 + b"\n",
    b"\x93NUMPY\x09\x00junk",
]


@pytest.mark.parametrize("raw", UNTRUE, ids=range(8))
@pytest.mark.parametrize("small", [0, 1 << 24])
def test_an_array_whose_header_is_not_true_is_refused_before_memory_is_taken(
    folder, raw, small, monkeypatch
):
    monkeypatch.setattr(store.folder, "SMALL", small)
    folder.write_bytes("a.npy", raw)
    for read in (folder.read_array, folder.map_array) if raw or small else (folder.read_array,):
        with pytest.raises(store.Corrupt, match=r"a\.npy is not what it should be"):
            read("a.npy")


def test_arrays_of_every_layout_are_read_as_numpy_reads_them(folder):
    for array in (
        np.zeros((0, 3)),
        np.array(5.0),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(5)[::2],
        np.array([True]),
    ):
        folder.write_array("a.npy", array)
        read = folder.read_array("a.npy")
        assert np.array_equal(read, array) and read.dtype == array.dtype and read.flags.writeable
        assert np.array_equal(folder.map_array("a.npy"), array)


def test_an_archive_that_unpacks_to_more_than_memory_or_claims_to_is_refused(folder, monkeypatch):
    monkeypatch.setenv("MIA_NB_MAX_GB", "0.001")
    for compression, data in (
        (zipfile.ZIP_DEFLATED, npy((1 << 20,), bytes(8 << 20))),
        (zipfile.ZIP_STORED, npy((10**14,))),
    ):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", compression) as archive:
            archive.writestr("margin.npy", data)
        folder.write_bytes("raster.npz", file.getvalue())
        (folder.path / ".partial-000.npz").write_bytes(file.getvalue())
        with pytest.raises(store.Corrupt, match=r"raster\.npz is not what it should be"):
            folder.read_arrays("raster.npz")
        assert store.read_partial(folder, 0) is None


def test_own_archives_have_no_budget(folder, monkeypatch):
    monkeypatch.setenv("MIA_NB_MAX_GB", "1e-9")
    one = gaussian(4, 30)
    store.write_partial(folder, 0, one)
    assert np.array_equal(store.read_partial(folder, 0)["margin"], one.margin)
    folder.write_arrays("b.npz", {"x": one.margin})
    assert np.array_equal(folder.read_arrays("b.npz")["x"], one.margin)


def test_too_many_open_files_are_no_damage(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(store.folder, "SMALL", 0)
    monkeypatch.setattr(store.folder, "open_memmap", full)
    folder.write_array("a.npy", np.arange(10))
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        folder.map_array("a.npy")


@pytest.mark.parametrize("fields", [["../../victim"], [["a"]], ["margin"], []])
def test_fields_that_signals_do_not_have_are_corrupt(folder, fields):
    save_signals(folder, gaussian(4, 30))
    folder.write_json("info.json", {"draws": "plain", "fields": fields})
    with pytest.raises(store.Corrupt, match=r"info\.json"):
        store.load_signals(folder)


# --------------------------------------------------------------------------------------------------
# names in shared places


def test_a_file_that_is_replaced_is_new_and_neither_a_link_nor_another_name_is_written_through(
    tmp_path,
):
    victim, backup = tmp_path / "victim", tmp_path / "backup"
    victim.write_text("precious")
    link, named = tmp_path / "link", tmp_path / "named"
    link.symlink_to(victim)
    os.link(victim, backup)
    os.link(victim, named)
    for path in (link, named, tmp_path / "new"):
        with replacing(path) as file:
            file.write(b"other")
        assert path.read_text() == "other" and not path.is_symlink()
    assert victim.read_text() == backup.read_text() == "precious"
    with pytest.raises(RuntimeError), replacing(named) as file:
        file.write(b"half")
        raise RuntimeError
    assert named.read_text() == "other"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "backup",
        "link",
        "named",
        "new",
        "victim",
    ]


def test_no_two_writers_share_a_temporary_name():
    names = {scratch_name("a.npz") for _ in range(1000)}
    assert len(names) == 1000
    assert all(name.startswith(".tmp-") and name.endswith("-a.npz") for name in names)


def test_whether_a_lock_is_held_is_asked_without_making_a_file(tmp_path):
    folder = store.open_folder(tmp_path, "pool", "a", "k" * 64, {})
    assert not folder.locked("run")
    assert not (folder.path / ".lock-run").exists()
    holder = (
        "import sys, pathlib; from mia_nb.store import Folder\n"
        f"with Folder(pathlib.Path({str(folder.path)!r})).lock('run'):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        before = sorted(folder.path.iterdir())
        assert folder.locked("run") and folder.locked("run")
        assert sorted(folder.path.iterdir()) == before
        process.communicate()
    assert not folder.locked("run")


@pytest.mark.parametrize(("number", "held"), [(errno.EACCES, True), (errno.EROFS, False)])
def test_a_lock_of_another_user_counts_as_held(folder, monkeypatch, number, held):
    with folder.lock("run"):
        pass

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    assert folder.locked("run") == held


READS = """
import sys
import mia_nb as mia
from mia_nb import store, training, widgets
from mia_nb.cli import main
root, key = sys.argv[1:]
images = mia.load("digits", limit=60)
pool = mia.load_pool(key, root)
again = mia.train(pool.recipe, images, root=root, progress=False, workers=1)
assert again.key == pool.key and len(pool.model(0).state_dict()) and pool.trace(0).size
signals = mia.query(pool, images, progress=False)
assert signals.member.any()
for command in (["list"], ["show", key], ["show", "signals"]):
    assert main([*command, "--results", root]) == 0
assert any(str(source.folder.path).startswith(root) for source in widgets.sources(root))
try:
    mia.query(pool, images, queries=2, input_dropout=0.5, progress=False)
except ValueError as error:
    print("REFUSED", error)
try:
    mia.train(pool.recipe.replace(seed=1), images, root=root, progress=False, workers=1)
except ValueError as error:
    print("REFUSED", error)
print("READ")
"""


def read_only(folder):
    """How a command sees this folder where nothing can be written to it; skips where that cannot be
    arranged.
    """
    start = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && exec"
    way = ["unshare", "--mount", "--map-root-user", "sh", "-c", f'{start} "$@"', "sh"]
    try:
        tried = subprocess.run([*way, "touch", str(folder / "x")], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if "Read-only" not in tried.stderr:
        pytest.skip(f"nothing can be mounted here: {tried.stderr}")
    return way


def finished_run(root):
    """A run of one empty notebook, done, whose report is not there."""
    folder = store.open_folder(root, "run", "a", "e" * 64, {"steps": [1]})
    notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    folder.write_json("a.ipynb", notebook)
    step = {"notebook": "a", "file": "a.ipynb", "status": "done", "error": None, "seconds": 1.0}
    folder.write_json("status.json", {"steps": [step | {"started": "2026-01-01T00:00:00"}]})
    return folder


def told(way, *words):
    """(exit status, the one line of complaint) of a command of ours."""
    command = [*way, sys.executable, "-m", "mia_nb.cli", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr.count("\n") <= 1 and ".tmp-" not in done.stderr, done.stderr
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_report_that_cannot_be_written_names_its_folder_and_a_way_that_works(tmp_path):
    root = tmp_path / "results"
    folder = finished_run(root)
    way = read_only(root)
    code, said = told(way, "report", "--results", root)
    assert code == 2 and f"cannot write to {folder.path}: Read-only" in said
    advice = said.partition("elsewhere: mia-nb ")[2].split()
    assert advice[-2:] == ["--out", "report.html"]
    out = tmp_path / "report.html"
    assert told(way, *advice[:-1], out) == (0, "")
    assert "<html" in out.read_text() and not (folder.path / "report.html").exists()
    # the folder itself is no way out, and neither is one that is not there
    for place in (folder.path / "other.html", tmp_path / "gone" / "report.html"):
        code, said = told(way, *advice[:-1], place)
        assert code == 2 and str(place) in said
    code, said = told(way, "clean", "--all", "--yes", "--results", root)
    assert code == 2 and f"{folder.path}: Read-only" in said


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EISDIR])
def test_a_write_that_fails_names_the_file_that_was_wanted_and_no_scratch_file(
    tmp_path, monkeypatch, number
):
    folder = store.open_folder(tmp_path / "results", "pool", "a", "k" * 64, {})
    opened, fails = open, OSError(number, os.strerror(number))

    def no_new_file(path, *mode, **options):
        if "xb" in mode:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *mode, **options)

    def unlink(*_, **__):
        raise OSError(errno.EROFS, "as read-only file systems answer")

    monkeypatch.setattr("builtins.open", no_new_file)
    monkeypatch.setattr(pathlib.Path, "unlink", unlink)
    with pytest.raises(OSError) as refused, replacing(tmp_path / "report.html"):
        pass
    assert refused.value.filename == str(tmp_path / "report.html")
    with pytest.raises(OSError, match=re.escape(str(folder.path / "one.json"))) as stored:
        folder.write_json("one.json", 1)
    for error in (refused.value, stored.value):
        assert error.errno == fails.errno and ".tmp-" not in str(error)


@pytest.mark.slow
def test_a_store_that_cannot_be_written_to_is_listed_shown_and_read(tmp_path):
    root = tmp_path / "results"
    images = mia_nb.load("digits", limit=60)
    recipe = mia_nb.Recipe(num_models=2, epochs=1, batch=8, model_args={"width": 4})
    pool = mia_nb.train(recipe, images, root=root, progress=False, workers=1)
    mia_nb.query(pool, images, progress=False)
    command = [*read_only(root), sys.executable, "-c", READS, str(root), pool.key[:12]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused = [line for line in done.stdout.splitlines() if line.startswith("REFUSED")]
    assert "READ" in done.stdout and len(refused) == 2
    assert all("cannot write" in line for line in refused)
