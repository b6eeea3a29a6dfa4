"""The attacks by name: finding one, and which of them a number of references supports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from mia_nb.arguments import Anything, Count, Positive, Whole
from mia_nb.attacks.learned import shokri, song_mittal
from mia_nb.attacks.likelihood import lira, nig
from mia_nb.attacks.reference import attack_r, base, rmia, watson
from mia_nb.attacks.single import attack_p, loss, vote
from mia_nb.attacks.smooth import lira_smooth, releases
from mia_nb.attacks.spikes import spikes
from mia_nb.attacks.tuned import rmia_tuned
from mia_nb.checks import checked, hint, instance, one_of
from mia_nb.types import QUERY_KINDS

Attack = Callable[..., np.ndarray]

ATTACKS: dict[str, Attack] = {
    "loss": loss,
    "correctness": partial(song_mittal, metric="correctness"),
    "attack_p": attack_p,
    "vote": vote,
    "attack_r": attack_r,
    "attack_r_lattice": partial(attack_r, form="lattice"),
    "watson": watson,
    "shokri": shokri,
    "song_mittal": song_mittal,
    "lira": lira,
    "lira_global": partial(lira, variance="global"),
    "lira_shrunk": partial(lira, variance="shrunk"),
    "lira_per_sample": partial(lira, variance="per_sample"),
    "lira_smooth": lira_smooth,
    "lira_offline": partial(lira, offline=True),
    "lira_joint": partial(lira, combine="mean_sd"),
    "rmia": rmia,
    "rmia_tuned": rmia_tuned,
    "rmia_offline": partial(rmia, offline=True),
    "rmia_count": partial(rmia, form="count"),
    "base": base,
    "nig": nig,
    "nig_offline": partial(nig, offline=True),
    "releases": releases,
    "spikes": spikes,
}

NAMES = {  # the name of every attack for people; the key is for code
    "loss": "loss threshold",
    "correctness": "correctness rule",
    "attack_p": "Attack-P",
    "vote": "label-only vote",
    "attack_r": "Attack-R",
    "attack_r_lattice": "Attack-R, counted",
    "watson": "difficulty calibration",
    "shokri": "shadow-model classifier (Shokri et al.)",
    "song_mittal": "threshold per class (Song and Mittal)",
    "lira": "LiRA",
    "lira_global": "LiRA, one variance",
    "lira_shrunk": "LiRA, shrunken variances",
    "lira_per_sample": "LiRA, variance per sample",
    "lira_smooth": "LiRA, smoothed",
    "lira_offline": "LiRA, offline",
    "lira_joint": "LiRA, mean and spread",
    "rmia": "RMIA",
    "rmia_tuned": "RMIA, tuned",
    "rmia_offline": "RMIA, offline",
    "rmia_count": "RMIA, counted",
    "base": "BASE (Lassila et al.)",
    "nig": "Student-t LiRA",
    "nig_offline": "Student-t LiRA, offline",
    "releases": "LiRA over releases",
    "spikes": "LiRA over spikes",
}

# (fewest references a side, attacks with the headline first), from many references to none
SUITES = (
    (32, ("lira_smooth", "rmia", "nig", "lira_per_sample")),
    (16, ("lira_smooth", "rmia", "nig", "lira_shrunk")),
    (5, ("rmia", "nig", "lira_global", "lira_shrunk")),
    (2, ("rmia", "nig", "lira_global", "attack_r")),
    (1, ("rmia", "watson", "nig")),
    (0, ("loss", "attack_p")),
)
# beginnings of the keys of attacks that learn a spread from the references
LEARN_A_SPREAD = ("lira", "nig_offline", "releases", "spikes")
FEWEST_FOR_A_SPREAD = 6  # models in pairs, which leave a target two references on each side


def in_words(key: str) -> str:
    """The name of an attack for people; for an attack of your own, its key."""
    return NAMES.get(key, key)


@checked
def suite(k: Count) -> dict[str, Attack]:
    """The attacks for k references a side, headline first.

    Parameters:
        k: references a side, k IN and k OUT.

    Returns:
        {name: attack}, the headline first; loss and correctness always, rmia from k = 1. Attacks
        that k references cannot support are left out: per-sample variance below k = 32, any lira
        at k = 1.

    Example:
        scores = {name: score(attack, signals) for name, attack in suite(7).items()}
    """
    keys = next(keys for fewest, keys in SUITES if k >= fewest)
    return {key: ATTACKS[key] for key in (*keys, "loss", "correctness")}


@checked
def literature(k: Count, query_kind: str = "plain", queries: Positive = 1) -> dict[str, Attack]:
    """The suite first, then one form of every other attack that k references a side can support.

    Parameters:
        k: references a side.
        query_kind: what the queries are, of `types.QUERY_KINDS`.
        queries: how many there are.

    Returns:
        {name: attack}; without `base`, which in pairs ranks as rmia does. Without references it is
        the suite alone. Several releases of one model add `releases`. Stochastic models ("noise")
        queried 4 times or more add lira_joint, which uses how much the outputs for one image vary:
        a member's may vary less.

    Example:
        names = list(literature(7, "noise", 16))
    """
    one_of("query_kind", query_kind, QUERY_KINDS)
    others = []
    if k > 0:
        others += ["attack_r", "watson", "song_mittal", "shokri", "attack_p", "vote"]
    if k > 1 and query_kind == "noise" and queries >= 4:
        others.append("lira_joint")
    if k > 1 and query_kind == "releases":
        others.append("releases")
    return suite(k) | {name: ATTACKS[name] for name in others}


@checked
def find(attack: Anything) -> tuple[str, Attack]:
    """An attack by name.

    Parameters:
        attack: a name of ATTACKS, also as tables write it ("RMIA"), or a function (target,
            references, **options) -> scores (N,), maybe with options bound by functools.partial.

    Returns:
        (its name in ATTACKS, or the function's own with the bound options; the function).

    Raises:
        ValueError: for a name that is not known.

    Example:
        name, attack = find("rmia")
    """
    if isinstance(attack, str):
        key = _key(attack)
        return key, ATTACKS[key]
    function, options = function_and_options(instance("attack", attack, Callable))
    for key, known in ATTACKS.items():
        if function_and_options(known) == (function, options):
            return key, attack
    name = getattr(function, "__name__", type(function).__name__)
    if options:
        bound = ", ".join(f"{option}={value!r}" for option, value in options.items())
        name = f"{name}({bound})"
    return name, attack


def _key(name: str) -> str:
    """The key of an attack in ATTACKS, given the key or the name for people in any case."""
    if name in ATTACKS:
        return name
    key_of = {in_words(key).casefold(): key for key in ATTACKS}
    lower = name.casefold()
    key = key_of.get(lower, lower)
    if key not in ATTACKS:
        raise ValueError(
            f"unknown attack {name!r}{hint(name, ATTACKS)}; known are {', '.join(ATTACKS)}"
        )
    return key


@checked
def refuse_too_few(attacks: Anything, num_models: Whole) -> None:
    """Refuse, before anything is trained, attacks that need more models.

    Parameters:
        attacks: a list of names of ATTACKS, or of functions.
        num_models: how many a pool in pairs will have; a target's references are all but its pair.

    Raises:
        ValueError: for a name that is not known, and for an attack that learns a spread from two
            references or more on each side where fewer are left.

    Example:
        refuse_too_few(["rmia", "loss"], 4)
    """
    for attack in attacks:
        name, _ = find(attack)
        if num_models < FEWEST_FOR_A_SPREAD and name.startswith(LEARN_A_SPREAD):
            raise ValueError(
                f"num_models={num_models}: {name} learns a spread from two references or more on"
                f" each side; take {FEWEST_FOR_A_SPREAD} models or more, or leave it out"
            )


def function_and_options(attack: Attack) -> tuple[Callable, dict]:
    """An attack's function, and the options that functools.partial bound to it."""
    return getattr(attack, "func", attack), dict(getattr(attack, "keywords", {}))
