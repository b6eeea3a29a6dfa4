"""Reading of YAML 1.2, the language of parameter values, presets and claims."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

# how YAML 1.2 writes what is no text; PyYAML's own patterns are those of YAML 1.1, in which 010 is
# eight, 1e-3 text, and yes a truth value
WRITTEN = {
    "null": r"null|Null|NULL|~|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
    "merge": "<<",  # `<<: *recipe`, which presets use
}


def read_yaml(text: str, where: str) -> Any:
    """Read a text as YAML 1.2: 010 is ten; 1:30, yes and dates are text; names are unique.

    Parameters:
        text: of a value or of a file.
        where: the place of the text, with which messages begin.

    Returns:
        Numbers, text, booleans, None, lists and mappings of these.

    Raises:
        ValueError: of one line, if the text is not YAML or cannot be read.
    """
    import yaml

    try:
        return yaml.load(text, Loader=_yaml_loader())
    except Exception as error:  # a wrong tag alone raises half a dozen kinds
        # cut in the middle, as a path ends with the name of its file
        start = where if len(where) <= 120 else f"{where[:60]}...{where[-60:]}"
        reason = " ".join(str(error).split())
        raise ValueError(f"{start} is not YAML ({reason[:300]}); quote it") from None


def read_yaml_file(path: Path) -> Any:
    """Read a file as YAML 1.2; ValueError of one line as for `read_yaml`, and for a file that is
    not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8; save it with that encoding") from None
    return read_yaml(text, str(path))


@cache
def _yaml_loader() -> type:
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: ClassVar[dict] = {}

        def whole_number(self, node: yaml.ScalarNode) -> int:
            return int(node.value)

        def unique_names(self, node: yaml.MappingNode) -> dict:
            names = [str(name.value) for name, _ in node.value]
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                problem = f"{min(twice)!r} is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            return self.construct_mapping(node, deep=True)

    for kind, pattern in WRITTEN.items():
        tag = f"tag:yaml.org,2002:{kind}"
        Loader.add_implicit_resolver(tag, re.compile(f"({pattern})$"), None)
    Loader.add_constructor("tag:yaml.org,2002:int", Loader.whole_number)
    Loader.add_constructor("tag:yaml.org,2002:map", Loader.unique_names)
    return Loader
