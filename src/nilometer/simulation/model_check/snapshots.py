"""Copies and fingerprints of processes and their roles, by reflection on their fields.

The model check branches from one state into many, and must recognise a state it has visited. ``clone`` and
``fingerprint`` visit the whole object, so a field that is added to a role needs no change here.

Frozen structs and dataclasses, numbers, strings and enum members are values and are shared. Everything else
consists of fields, lists and dicts.
"""

# The walk is over objects of any type.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import enum
from collections.abc import Hashable, Iterable
from typing import Any

import msgspec

_VALUES = (int, str, bytes, tuple, frozenset, type(None), enum.Enum)


def _is_value(thing: Any) -> bool:
    if isinstance(thing, _VALUES):
        return True
    if isinstance(thing, msgspec.Struct):
        return thing.__struct_config__.frozen
    parameters = getattr(thing, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def clone(thing: Any, copies: dict[int, Any] | None = None) -> Any:
    """Return a deep copy of ``thing``; an object that occurs twice in it is copied once."""
    if _is_value(thing):
        return thing
    copies = {} if copies is None else copies
    if (known := copies.get(id(thing))) is not None:
        return known
    if isinstance(thing, list):
        copies[id(thing)] = copied = [clone(item, copies) for item in thing]
        return copied
    if isinstance(thing, dict):
        copies[id(thing)] = copied = {key: clone(item, copies) for key, item in thing.items()}
        return copied
    if isinstance(thing, msgspec.Struct):
        copied = copy.copy(thing)
    else:
        copied = type(thing).__new__(type(thing))  # pyright: ignore[reportCallIssue]
    copies[id(thing)] = copied
    for name in _fields(thing):
        setattr(copied, name, clone(getattr(thing, name), copies))
    return copied


def fingerprint(thing: Any, met: set[int] | None = None) -> Hashable:
    """Return a value that is equal for two objects exactly if their contents are equal."""
    if _is_value(thing):
        return thing
    met = set() if met is None else met
    if id(thing) in met:
        return "met before"
    met.add(id(thing))
    if isinstance(thing, list):
        return tuple(fingerprint(item, met) for item in thing)
    if isinstance(thing, dict):
        return tuple(sorted((key, fingerprint(item, met)) for key, item in thing.items()))
    return (type(thing).__name__, *(fingerprint(getattr(thing, name), met) for name in _fields(thing)))


def _fields(thing: Any) -> Iterable[str]:
    if isinstance(thing, msgspec.Struct):
        return thing.__struct_fields__
    slots = getattr(type(thing), "__slots__", None)
    return vars(thing) if slots is None else slots
