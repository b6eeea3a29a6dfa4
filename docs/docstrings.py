"""What griffe, which reads the docstrings, is told about their style."""

import re

import griffe

OWN = r"(?m)^(Forms|Form|Options|Keys):\n((?:(?: {4}.*)?\n?)+)"  # sections of `name: meaning`


class Style(griffe.Extension):
    """`Example:` holds what is typed at a prompt; entries of `Forms:` and the like are a list."""

    def on_object(self, *, obj, **_) -> None:
        if obj.docstring:
            text = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
            obj.docstring.value = re.sub(OWN, listed, text)


def listed(match: re.Match) -> str:
    entries = re.sub(r"(?m)^ {4}(\w+):", r"    * **\1**:", match[2])
    return f"{match[1]}:\n{entries}"
