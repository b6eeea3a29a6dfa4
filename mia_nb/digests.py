"""Checksums of any content, and of everything that a function computes with.

Stored results are looked up by a digest from here, so that a result from other data or other code
is never mistaken for the wanted one. A digest is computed where it is used and never carried along.

Every value is written to a sha256 after its type and its length, so different contents give
different bytes. A value that cannot be compared by its content (an open file, a lock, a generator)
is refused. In doubt something is included: training again costs time, a wrong number costs more.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import importlib
import importlib.util
import pickle
import struct
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from mia_nb._code_origin import file_digest, installed, version

if TYPE_CHECKING:
    import torch

# kinds of array elements whose bytes are their values, unlike objects and texts of any length
PLAIN_KINDS = "biufcmMSUV"
# attributes of a class that depend on where it was defined, or follow from its other attributes
DERIVED = {
    "__module__",
    "__dict__",
    "__weakref__",
    "__doc__",
    "__qualname__",
    "__firstlineno__",
    "__static_attributes__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__abstractmethods__",
    "__parameters__",
    "_abc_impl",
    "__annotate__",
    "__annotate_func__",
    "__annotations_cache__",
    "__signature__",
    "__slotnames__",
    "__class_vars__",
    "__private_attributes__",
    "model_computed_fields",
}
# instructions that read a global
GLOBAL_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"}
# halves of surrogate pairs, which text may hold, are written too
UTF8 = ("utf-8", "surrogatepass")
# values without parts: how each is written as bytes or text
SCALARS: dict[type, Callable] = {
    type(None): lambda _: "",
    type(Ellipsis): lambda _: "",
    type(NotImplemented): lambda _: "",
    bool: str,
    int: lambda value: value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True),
    float: lambda value: struct.pack("<d", value),
    complex: lambda value: struct.pack("<dd", value.real, value.imag),
    str: lambda value: value.encode(*UTF8),
    bytes: lambda value: value,
}
HEAP_TYPE = 1 << 9  # flag of classes that were made at run time, unlike those of C
NUMBERED = (types.FunctionType, type)  # written once, and later as a reference
SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)  # of `__slots__`


def digest(*contents: object) -> str:
    """sha256 (hex) of any contents, equal only where they are equal in type and value.

    Parameters:
        contents: numbers, text, bytes, None, paths, dates; arrays of every dtype, those of objects
            by value; lists, tuples, sets, mappings of these, ragged ones too; tensors; functions,
            see `digest_of_function`; and whatever pickle can store, such as tables, modules of
            torch, estimators, records and instances of your own classes, with the code of the
            classes.

    Returns:
        64 hexadecimal digits, the same in every process.

    Raises:
        ValueError: of one line, for a value without content that could be compared.

    Caveat: a path counts as its text, not as the file there. -0.0 and 0.0 are different contents.

    Example:
        >>> digest([1, 2]) == digest([1, 2]), digest([1, 2]) == digest((1, 2))
        (True, False)
    """
    return _Writer().hex(contents)


def digest_of_function(function: Callable, *, versions: bool = True) -> str:
    """sha256 (hex) of everything that a function, a class or a callable object computes with.

    These are its code, its defaults, the contents of its closure, the arguments in a
    `functools.partial`, the object that a method is bound to, the function inside a decorator, and
    the globals that it names: your own functions and classes with everything that they compute
    with, values by content. A module of your own counts by its file and by what the function takes
    from it; installed code counts by name and version.

    Parameters:
        function: anything that can be called.
        versions: whether the versions of Python and of installed packages count, or only their
            names.

    Returns:
        64 hexadecimal digits, the same in every process that runs the same version of Python.

    Raises:
        ValueError: of one line, if this is not a function or uses a value without content that
            could be compared.

    Caveat: files that it reads, environment variables, and names that it looks up at run time
    (`getattr`, `eval`) do not count.

    Example:
        >>> import functools
        >>> of = [digest_of_function(functools.partial(max, n)) for n in (1, 2)]
        >>> of[0] == of[1]
        False
    """
    if not callable(function):
        raise ValueError(f"{_type_name(function)} is no function")
    return _Writer(versions).hex((function,))


class _Writer:
    """Writes contents to a sha256, each with its type and length.

    Parameters:
        versions: whether installed code counts with its version, or only by its name.
    """

    def __init__(self, versions: bool = True) -> None:
        self.versions = versions
        self.sha = hashlib.sha256()
        self.in_progress: list[object] = []  # the values being written, outermost first
        self.numbers: dict[int, int] = {}  # id of a function, class or module: its number
        self.kept_alive: list[object] = []  # the objects of these ids, so that no id is reused
        self.trail: list[str] = []  # names that lead to the value being written, for messages

    def digest_of_entry(self, value: object) -> str:
        """The digest of one entry of a set or mapping, as if it were written next."""
        copy = _Writer(self.versions)
        copy.in_progress = [*self.in_progress]
        copy.numbers = {**self.numbers}
        copy.kept_alive = [*self.kept_alive]
        copy.trail = [*self.trail]
        copy.write(value)
        self.kept_alive += copy.kept_alive
        return copy.sha.hexdigest()

    def version(self, home: str | None) -> str:
        """The version of a module's distribution; "" if versions do not count."""
        return version(home) if self.versions else ""

    def hex(self, contents: tuple) -> str:
        """Write these contents; returns the sha256 of everything written."""
        try:
            self.put("contents", len(contents))
            for content in contents:
                self.write(content)
        except RecursionError:
            raise ValueError(f"{self.where()} is nested too deeply to be compared") from None
        return self.sha.hexdigest()

    def put(self, tag: str, *parts: object) -> None:
        """Write a tag and its parts (bytes, text or whole numbers), each preceded by its length."""
        for part in (tag, len(parts), *parts):
            raw = part if isinstance(part, bytes | memoryview) else str(part).encode(*UTF8)
            self.sha.update(len(raw).to_bytes(8, "big"))
            self.sha.update(raw)

    def write_named(self, name: str, value: object) -> None:
        """Write a value under a name, which messages use if the value cannot be written."""
        self.put("name", name)
        self.trail.append(name)
        self.write(value)
        self.trail.pop()

    def where(self) -> str:
        """The names that lead to the value being written, for a message."""
        return f"`{'.'.join(self.trail)}`" if self.trail else "this"

    def refusal(self, value: object) -> ValueError:
        """The error for a value without content that could be compared."""
        return ValueError(
            f"{self.where()} is {_type_name(value)}, which has no content that could be compared"
        )

    def write(self, value: object) -> None:
        """Write any value. A value that is already being written, and a function or class that was
        written before, is written as a reference.
        """
        kind = type(value)
        if kind in SCALARS:
            self.put(kind.__name__, SCALARS[kind](value))
            return
        # containers and objects may hold themselves
        for depth, outer in enumerate(self.in_progress):
            if outer is value:
                self.put("within", depth)
                return
        if isinstance(value, NUMBERED):
            if id(value) in self.numbers:
                self.put("again", self.numbers[id(value)])
                return
            self.numbers[id(value)] = len(self.numbers)
            self.kept_alive.append(value)
        self.in_progress.append(value)
        self.write_by_type(value)
        self.in_progress.pop()

    def write_by_type(self, value: object) -> None:
        """Write a value in the first way that fits its type."""
        kind = type(value)
        if kind in CONTAINERS:
            CONTAINERS[kind](self, value)
        elif isinstance(value, type):
            self.write_class(value)
        elif isinstance(value, np.ndarray | np.generic):
            self.write_array(value)
        elif isinstance(value, types.ModuleType):
            self.write_module(value, ())
        elif isinstance(value, PurePath):
            self.put("path", kind.__name__, str(value))
        elif _is_tensor(value):
            self.write_tensor(value)
        elif isinstance(value, types.FunctionType):
            self.write_function(value)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.put("lru_cache")
            self.write(value.__wrapped__)
        else:
            self.write_object(value)

    # ----------------------------------------------------------------------------------------------
    # containers and arrays

    def write_sequence(self, value: Iterable) -> None:
        entries = list(value)
        self.put(type(value).__name__, len(entries))
        for entry in entries:
            self.write(entry)

    def write_set(self, value: Iterable) -> None:
        self.put(type(value).__name__, *sorted(self.digest_of_entry(entry) for entry in value))

    def write_mapping(self, value: dict) -> None:
        """Write the entries sorted by key."""
        entries = []  # the key as it is written, the key, the value
        for key, entry in value.items():
            key_text = f"text {key}" if type(key) is str else f"digest {self.digest_of_entry(key)}"
            entries.append((key_text, key, entry))
        entries.sort(key=lambda triple: triple[0])
        self.put(type(value).__name__, len(entries))
        for key_text, key, entry in entries:
            self.put("key", key_text)
            self.trail.append(str(key) if isinstance(key, str | int) else "entry")
            self.write(entry)
            self.trail.pop()

    def write_array(self, array: np.ndarray | np.generic) -> None:
        """Write kind, shape, type and values, whatever the order in memory."""
        kind = type(array)
        if isinstance(array, np.generic):
            self.put("scalar")
        elif kind in (np.ndarray, np.memmap):
            self.put("array")
        else:
            self.put("array of a class")
            self.write(kind)
            self.write_named("attributes", dict(vars(array)))
        array = np.asarray(array)
        self.put("shape", *array.shape)
        self.write_dtype(array.dtype)
        if array.dtype.names is not None:
            for name in array.dtype.names:
                self.write_named(name, array[name])
        elif array.dtype.kind not in PLAIN_KINDS or array.dtype.hasobject:
            for entry in array.ravel().tolist():
                self.write(entry)
        elif array.size and array.dtype.itemsize:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self.put("values", memoryview(raw).cast("B"))

    def write_tensor(self, tensor: torch.Tensor) -> None:
        """Write type, shape and values, whatever the device; as an object, a tensor whose values
        are not stored one by one (sparse, quantised).
        """
        import torch

        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            self.write_object(tensor)
            return
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        self.put("tensor", str(plain.dtype), *plain.shape)
        if plain.numel():
            raw = plain.reshape(-1).view(torch.uint8).numpy()
            self.put("values", memoryview(raw).cast("B"))

    def write_dtype(self, dtype: np.dtype) -> None:
        # dtypes with the same elements count as equal, such as C's long and long long
        kind = "" if dtype.kind in PLAIN_KINDS.replace("V", "") else type(dtype).__qualname__
        self.put("dtype", dtype.str, str(dtype), kind, dtype.itemsize)
        if dtype.names is not None:
            self.put("fields", len(dtype.names), dtype.isalignedstruct)
            for name in dtype.names:
                field = dtype.fields[name]
                self.put("field", name, field[1], *field[2:])
                self.write_dtype(field[0])

    # ----------------------------------------------------------------------------------------------
    # functions, classes, modules

    def write_function(self, function: types.FunctionType) -> None:
        """Write the name of an installed function; of any other, its code and what it refers to."""
        home = str(function.__globals__.get("__name__"))
        from_package = installed(home)
        if from_package and _looked_up(home, function.__code__.co_qualname) is function:
            self.put("installed", home, function.__code__.co_qualname, self.version(home))
            return
        self.put("function", home if from_package else "")
        self.write_code(function.__code__)
        self.write_named("defaults", function.__defaults__)
        self.write_named("keyword defaults", function.__kwdefaults__)
        self.write_named("attributes", function.__dict__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                content = cell.cell_contents
            except ValueError:
                self.put("empty", name)
            else:
                self.write_named(name, content)
        if from_package:
            self.put("version", self.version(home))
        else:
            self.write_globals(function)

    def write_code(self, code: types.CodeType) -> None:
        """Write compiled code without its file and line numbers."""
        self.put("code", code.co_code, code.co_flags, code.co_name)
        self.put("arguments", code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self.put("exceptions", getattr(code, "co_exceptiontable", b""))
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self.put("names", *names)
        self.put("constants", len(code.co_consts))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self.write_code(constant)
            else:
                self.write(constant)

    def write_globals(self, function: types.FunctionType) -> None:
        """Write the globals and imports that a function of your own uses, name by name."""
        reads, imports, attributes = _names_in_code(function.__code__)
        for name in sorted(reads):
            if name in function.__globals__:
                value = function.__globals__[name]
            elif hasattr(builtins, name):
                value = getattr(builtins, name)
            else:
                self.put("missing", name)
                continue
            if isinstance(value, types.ModuleType):
                self.put("name", name)
                self.write_module(value, attributes)
            else:
                self.write_named(name, value)
        package = function.__globals__.get("__package__") or ""
        for name in sorted(imports):
            self.put("import", name)
            try:
                full = importlib.util.resolve_name(name, package)
                if installed(full):
                    self.put("module", full, self.version(full))
                else:  # imported, as the function itself does
                    self.write_module(importlib.import_module(full), attributes)
            except ImportError:
                self.put("missing", name)

    def write_module(
        self, module: types.ModuleType, attributes: Iterable[str], passed: tuple = ()
    ) -> None:
        """Write name and version of an installed module; for a module of your own, its file and
        those of these attributes that it has.

        Parameters:
            module: the module.
            attributes: names that may be looked up in it.
            passed: modules through which this one was reached; they are not entered again.
        """
        name = module.__name__
        if installed(name):
            self.put("module", name, self.version(name))
            return
        if id(module) in self.numbers:
            self.put("again", self.numbers[id(module)])
        else:
            self.numbers[id(module)] = len(self.numbers)
            self.kept_alive.append(module)
            self.put("own module", name, file_digest(module))
        for attribute in sorted({*attributes} & vars(module).keys()):
            value = vars(module)[attribute]
            if not isinstance(value, types.ModuleType):
                self.write_named(attribute, value)
            elif value is not module and value not in passed:
                self.put("name", attribute)
                self.write_module(value, attributes, (*passed, module))

    def write_class(self, kind: type) -> None:
        """Write the name of an installed class; of any other, its bases and attributes."""
        home, name = kind.__module__, kind.__qualname__
        if installed(home) and _looked_up(home, name) is kind:
            self.put("installed class", home, name, self.version(home))
            return
        if not kind.__flags__ & HEAP_TYPE:
            self.put("built-in class", home, name, self.version(home))
            return
        self.put("class", name, len(kind.__bases__))
        self.write(type(kind))
        for base in kind.__bases__:
            self.write(base)
        for attribute, value in sorted(vars(kind).items()):
            if attribute in DERIVED or attribute.startswith("__pydantic_"):
                continue
            self.write_attribute(attribute, value)
        for attribute, field in getattr(kind, "__pydantic_fields__", {}).items():
            self.write_named(attribute, field)

    def write_attribute(self, name: str, value: object) -> None:
        """Write an attribute of a class."""
        if isinstance(value, staticmethod | classmethod):
            self.put(type(value).__name__)
            self.write_named(name, value.__func__)
        elif isinstance(value, property):
            self.put("property")
            self.write_named(name, (value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            self.put("cached property")
            self.write_named(name, value.func)
        elif isinstance(value, SLOTS):
            self.put("slot", name)
        else:
            self.write_named(name, value)

    # ----------------------------------------------------------------------------------------------
    # objects

    def write_object(self, value: object) -> None:
        """Write an instance: its class, and the content that pickle would store."""
        kind = type(value)
        self.put("object")
        self.write(kind)
        if isinstance(value, set | frozenset):  # pickle lists the entries in arbitrary order
            self.write(frozenset(value))
            self.write_named("attributes", vars(value))
            return
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception:
            raise self.refusal(value) from None
        if isinstance(reduced, str):  # a name in its module
            home = pickle.whichmodule(value, reduced)
            known = installed(home) and _looked_up(home, reduced) is value
            if not known and kind.__module__ != "typing":
                raise self.refusal(value)
            self.put("global", home, reduced, self.version(home))
            return
        function, args, *rest = reduced
        self.put("made by", len(rest))
        self.write(function)
        self.write(args)
        for part in rest:
            self.write(list(part) if isinstance(part, Iterator) else part)


CONTAINERS: dict[type, Callable] = {
    list: _Writer.write_sequence,
    tuple: _Writer.write_sequence,
    set: _Writer.write_set,
    frozenset: _Writer.write_set,
    dict: _Writer.write_mapping,
    types.CodeType: _Writer.write_code,
}


def _is_tensor(value: object) -> bool:
    """Whether this is a tensor of torch; there is none where torch was not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def _type_name(value: object) -> str:
    """ "a module.Class" for an instance of it, for messages."""
    kind = type(value)
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"a {home}{kind.__qualname__}"


# --------------------------------------------------------------------------------------------------
# what code names


def _names_in_code(code: types.CodeType) -> tuple[set[str], set[str], set[str]]:
    """(globals that this code reads, modules that it imports, all names in it), including those of
    functions defined inside it.
    """
    reads = set()
    imports = set()
    attributes = set(code.co_names)
    arguments: list[object] = []  # of the instructions so far
    for step in dis.get_instructions(code):
        if step.opname in GLOBAL_READS:
            reads.add(step.argval)
        elif step.opname == "IMPORT_NAME":
            # two instructions earlier the number of leading dots of a relative import was loaded
            is_relative = len(arguments) > 1 and isinstance(arguments[-2], int)
            level = arguments[-2] if is_relative else 0
            imports.add("." * level + step.argval)
        arguments.append(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_reads, inner_imports, inner_attributes = _names_in_code(constant)
            reads |= inner_reads
            imports |= inner_imports
            attributes |= inner_attributes
    return reads, imports, attributes


def _looked_up(home: str, name: str) -> object:
    """The value of a dotted name in a module; None if there is none."""
    value: object = sys.modules.get(home)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
