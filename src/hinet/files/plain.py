"""Values from JSON checked against type hints, which serve as the schema."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from hinet.errors import HiNetError, quoted

MAX_DEPTH = 50  # of nested lists and mappings
INT_LIMIT = 1 << 63  # integers are smaller than this


def check_plain(value: Any, kind: Any, where: str) -> None:
    """Raise HiNetError, which names the entry, unless a JSON value matches a type hint.

    ``kind`` is a plain type, a union, a literal, a list, tuple or dict of such hints, a dataclass or a TypedDict,
    whose fields a mapping must have; ``Any`` is any JSON value. Integers are valid floats. A mapping may have more
    keys than a TypedDict, but not more than the fields of a dataclass.

    >>> check_plain({"rows": "many"}, dict[str, int], "metrics")
    Traceback (most recent call last):
    hinet.errors.HiNetError: metrics.rows is 'many', expected a whole number
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        _check_union(value, parts, where)
    elif origin is Literal:
        _require(isinstance(value, str) and value in parts, value, where, f"one of {', '.join(map(repr, parts))}")
    elif origin in (list, tuple):
        _check_items(value, origin, parts, where)
    elif origin is dict:
        _require(isinstance(value, dict), value, where, "a mapping")
        for name, item in value.items():
            check_plain(item, parts[1], f"{where}.{name}")
    elif is_typeddict(kind) or dataclasses.is_dataclass(kind):
        _check_fields(value, kind, where)
    elif kind is Any:
        _check_depth(value, where)
    else:
        fits, name = _PLAIN[kind]
        _require(fits(value), value, where, name)


def _is_int(value: Any) -> bool:
    return type(value) is int and -INT_LIMIT <= value < INT_LIMIT


_PLAIN: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    int: (_is_int, "a whole number"),
    float: (lambda value: isinstance(value, float) or _is_int(value), "a number"),
    str: (lambda value: isinstance(value, str), "text"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    list: (lambda value: isinstance(value, list), "a list"),
    types.NoneType: (lambda value: value is None, "nothing"),
}


def _require(valid: bool, value: Any, where: str, expected: str) -> None:
    if not valid:
        raise HiNetError(f"{where} is {_format(value)}, expected {expected}")


def _format(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value):,}"
    if type(value) is int and not _is_int(value):
        return "a number beyond 64 bits"
    return quoted(value) if isinstance(value, str) else repr(value)


def _check_union(value: Any, kinds: tuple[Any, ...], where: str) -> None:
    if value is None and types.NoneType in kinds:
        return
    messages = []
    for kind in kinds:
        try:
            check_plain(value, kind, where)
            return
        except HiNetError as error:
            messages.append(str(error))
    raise HiNetError(max(messages, key=lambda message: message.partition(" ")[0].count(".")))  # of the best match


def _check_items(value: Any, origin: Any, kinds: tuple[Any, ...], where: str) -> None:
    _require(isinstance(value, (list, tuple)), value, where, "a list")
    if origin is tuple and kinds[-1] is not Ellipsis:
        _require(len(value) == len(kinds), value, where, f"a list of {len(kinds)}")
    for index, item in enumerate(value):
        kind = kinds[index] if origin is tuple and kinds[-1] is not Ellipsis else kinds[0]
        check_plain(item, kind, f"{where}[{index}]")


def _check_fields(value: Any, kind: Any, where: str) -> None:
    _require(isinstance(value, dict), value, where, "a mapping")
    hints, needed = _fields_of(kind)
    for name in value.keys() - hints.keys():
        if not is_typeddict(kind):
            raise HiNetError(f"{where} has the unknown entry {quoted(str(name))}")
        check_plain(value[name], Any, f"{where}.{name}")
    for name, field_kind in hints.items():
        if name in value:
            check_plain(value[name], field_kind, f"{where}.{name}")
        elif name in needed:
            raise HiNetError(f"{where} has no entry {name!r}")


@cache
def _fields_of(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the type hints of all fields of a TypedDict or dataclass, and the names of the required ones."""
    hints = get_type_hints(kind)  # strips NotRequired from a TypedDict
    if is_typeddict(kind):  # its __required_keys__ ignore NotRequired in string annotations
        extras = get_type_hints(kind, include_extras=True)
        return hints, frozenset(name for name, hint in extras.items() if get_origin(hint) is not NotRequired)
    missing = dataclasses.MISSING
    fields = [
        field for field in dataclasses.fields(kind) if field.default is missing and field.default_factory is missing
    ]
    return hints, frozenset(field.name for field in fields)


def _check_depth(value: Any, where: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        below = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))]
        level = [item for items in below for item in items]
        if not level:
            return
    raise HiNetError(f"{where} has more than {MAX_DEPTH} levels of nested lists and mappings")
