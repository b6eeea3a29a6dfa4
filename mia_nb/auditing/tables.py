"""Reading a .csv of one model's outputs as arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from mia_nb.auditing.samples import in_one_line, whole_numbers
from mia_nb.checks import shown

# names of columns that hold something else than a class's logit
NUMBERINGS = ("id", "idx", "index", "row", "sample", "model", "query", "split", "fold", "epoch")
FILES = ("file", "filename", "path", "name")
RESULTS = ("loss", "pred", "prediction", "predicted", "y_pred", "correct", "confidence", "score")
LABELS = ("labels", "target", "targets", "class", "y", "y_true")
MASKS = ("members", "is_member", "population")
NO_LOGITS = {*NUMBERINGS, *FILES, *RESULTS, *LABELS, *MASKS}


def table_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz of one model's outputs, from a table with a row per sample.

    Its columns are label, member, and one of logits for each class, which has its name. Labels are
    such names, also where these are whole numbers, or else class numbers from 0. Raises ValueError
    for a file that is no such table, and for columns that hold no logits.
    """
    try:
        table = pd.read_csv(path, encoding="utf-8-sig", float_precision="round_trip")
        # pandas calls a second column cat "cat.1", so names are compared as they are written
        names = pd.read_csv(path, encoding="utf-8-sig", header=None, nrows=1, dtype=str).iloc[0]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a table ({in_one_line(error, 120)})") from error
    classes = [name for name in table.columns if name not in ("label", "member")]
    if not {"label", "member"} <= {*table.columns} or len(classes) < 2:
        raise ValueError(
            f"{path.name} has the columns {shown([*table.columns])}; wanted label (class names or"
            " numbers), member (1 for samples of the training set, else 0) and one of logits for"
            " each class, separated by commas; outputs of several models go into an .npz"
            " (mia_nb.auditing.collect)"
        )
    repeated = names[names.duplicated()]
    if len(repeated):
        raise ValueError(f"{path.name}: two columns are called {shown(repeated.iloc[0])}")
    for name in classes:
        if _no_logits(name, table[name]):
            raise ValueError(
                f"{path.name}: column {name} holds no class's logits, it seems; leave it out"
            )
    labels = table["label"]
    if not labels.astype(str).isin(classes).all():  # 1.0 is the name "1" too
        labels = pd.Series(whole_numbers(labels.to_numpy()))
    class_names = labels.astype(str)
    named = class_names.isin(classes)
    if named.all():
        labels = class_names.map(classes.index)
    elif labels.dtype.kind not in "biuf":
        raise ValueError(
            f"{path.name}: no column is called {shown(labels[~named].iloc[0])}, which is a label;"
            f" the columns of logits are {shown(classes)}"
        )
    member = table["member"]
    if member.dtype.kind not in "biuf":
        raise ValueError(
            f"{path.name}: member holds {shown(member.unique().tolist())}; wanted 1 for samples of"
            " the training set, else 0"
        )
    return {
        "logits": table[classes].to_numpy(np.float64)[None],
        "labels": labels.to_numpy(),
        "member": whole_numbers(member.to_numpy())[None],
        "classes": np.array(classes),
    }


def _no_logits(name: str, column: pd.Series) -> bool:
    """Whether a column is named for something else, holds no numbers, or numbers the rows."""
    if name.lower() in NO_LOGITS or name.startswith("Unnamed"):
        return True
    return column.dtype.kind not in "iuf" or (column.diff()[1:] == 1).all()
