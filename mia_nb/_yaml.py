"""Reading of YAML 1.2, the language of parameter values, presets and claims."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from mia_nb._files import without_collection
from mia_nb.checks import shown

LONGEST_YAML = 200_000  # characters of a preset or a value
MERGE = "tag:yaml.org,2002:merge"  # `<<: *recipe`, which presets use
CORE = {  # the core schema of YAML 1.2: how a scalar is written, and how to read it
    "null": (re.compile(r"null|Null|NULL|~|"), lambda text: None),
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    "int": (
        re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
        lambda text: int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)),
    ),
    "float": (
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        lambda text: float(text.replace(".", "", 1) if text[-1].isalpha() else text),
    ),
    "str": (re.compile(r"(?s:.*)"), str),
}


def read_yaml(text: str, where: str) -> Any:
    """Read a text as YAML 1.2: 010 is ten; 1:30, yes and dates are text; names are unique.

    Parameters:
        text: of a value or of a file.
        where: the place of the text, with which messages begin.

    Returns:
        Numbers, text, booleans, None, lists and mappings of these.

    Raises:
        ValueError: of one line, if the text is not YAML, too large or nested too deeply.
    """
    import yaml

    # cut in the middle, as a path ends with the name of its file
    start = where if len(where) <= 120 else f"{where[:60]}...{where[-60:]}"
    if len(text) > LONGEST_YAML:
        raise ValueError(f"{start} is {len(text):,} characters of YAML; wanted {LONGEST_YAML:,}")
    try:
        with without_collection():
            return yaml.load(text, Loader=_yaml_loader())
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{start} is not YAML ({reason[:300]}); quote it") from error
    except RecursionError:
        raise ValueError(f"{start} is nested too deep") from None
    except ValueError as error:  # a number of thousands of digits
        raise ValueError(f"{start} cannot be read ({str(error)[:120]})") from None


def read_yaml_file(path: Path) -> Any:
    """Read a file as YAML 1.2; ValueError of one line as for `read_yaml`, and for a file that is
    not UTF-8.
    """
    if path.stat().st_size > 4 * LONGEST_YAML:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes: that is no list of parameters")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8; save it with that encoding") from None
    return read_yaml(text, str(path))


@cache
def _yaml_loader() -> type:
    """A loader for YAML 1.2's core schema; PyYAML's own reads YAML 1.1, where 010 is eight."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: ClassVar[dict] = {}
        yaml_constructors: ClassVar[dict] = {}

        def mapping(self, node):
            """A mapping whose names are text and unique."""
            if not isinstance(node, yaml.MappingNode):
                problem = f"{shown(node.value)} is no map"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            names = set()
            for key, _ in node.value:
                name = key.value if key.tag == MERGE else self.construct_object(key, deep=True)
                if not isinstance(name, str):
                    problem = f"{shown(name)} is a name in a mapping, and names are text"
                elif name in names:
                    problem = f"{shown(name)} is there twice"
                else:
                    names.add(name)
                    continue
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            self.flatten_mapping(node)
            return {
                self.construct_object(key, deep=True): self.construct_object(value, deep=True)
                for key, value in node.value
            }

        def sequence(self, node):
            return self.construct_sequence(node, deep=True)

        def scalar(self, node):
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            pattern, read = CORE[kind]
            if not isinstance(node, yaml.ScalarNode) or not pattern.fullmatch(node.value):
                problem = f"{shown(node.value)} is no {kind}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            return read(node.value)

        def unknown(self, node):
            problem = f"the tag {shown(node.tag)} is not known"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)

    for kind, (pattern, _) in CORE.items():
        tag = f"tag:yaml.org,2002:{kind}"
        if kind != "str":
            whole = re.compile(f"(?:{pattern.pattern})$")
            Loader.add_implicit_resolver(tag, whole, None)
        Loader.add_constructor(tag, Loader.scalar)
    Loader.add_implicit_resolver(MERGE, re.compile("<<$"), ["<"])
    Loader.add_constructor("tag:yaml.org,2002:seq", Loader.sequence)
    Loader.add_constructor("tag:yaml.org,2002:map", Loader.mapping)
    Loader.add_constructor(None, Loader.unknown)
    return Loader
