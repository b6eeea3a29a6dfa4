"""Content-addressed results on disk: atomic writes, the manifest last, checksums on every read, and
locks that end with their holder.

    <root>/<kind>-<name>-<key12>/    kind = pool | signals | run
        recipe.json  ...files...     each written under a temporary name, then renamed
        manifest.jsonl               one line per finished file with its sha256; a file not listed
                                     is not there

Nothing is ever unpickled: arrays are .npy/.npz, weights safetensors, records JSON. Signals have one
.npy per field, mapped into memory: fields that are not read stay on the disk, and the system may
drop those that were read.

A folder may come from anywhere: names are plain (`is_plain`), and a line of the manifest that names
anything else, or is no record, is reported and skipped. A link in the place of a file is replaced,
not written through; a result that is itself a link is the one that it leads to.

What is checked when (docs/store.md):
    every read                          the file's checksum, then its form: JSON entries, type and
                                        shape of an array
    train_pool, query, mia-nb run       results that they would reuse; damaged files are made again
    mia-nb list, widgets.sources        recipe.json, info.json and status.json; arrays are not read
    mia-nb show, clean, doctor          every listed file, read or not
"""

from mia_nb.store.folder import READ_ONLY, Corrupt, Folder, ReadOnly, content_key, sha256_of
from mia_nb.store.manifest import MANIFEST
from mia_nb.store.results import find, folders, open_folder, place
from mia_nb.store.signals import (
    DESIGN,
    FINISHED,
    OUTPUTS,
    drop_partial,
    has_signals,
    join_partial,
    load_samples,
    load_signals,
    read_info,
    read_partial,
    write_partial,
)

__all__ = [
    "DESIGN",
    "FINISHED",
    "MANIFEST",
    "OUTPUTS",
    "READ_ONLY",
    "Corrupt",
    "Folder",
    "ReadOnly",
    "content_key",
    "drop_partial",
    "find",
    "folders",
    "has_signals",
    "join_partial",
    "load_samples",
    "load_signals",
    "open_folder",
    "place",
    "read_info",
    "read_partial",
    "sha256_of",
    "write_partial",
]
