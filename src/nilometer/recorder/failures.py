"""Errors that a runtime raises, as values on the tape."""

from __future__ import annotations

from typing import Any

from nilometer.runtime import LockHeld
from nilometer.runtime.object_store import ObjectNotFound, ObjectStoreError
from nilometer.runtime.tls import TlsUnusable

Failure = list[Any]
"""An error on the tape: the name of its class and what it was made of."""


def failure_of(error: BaseException) -> Failure:
    match error:
        case LockHeld():
            return ["LockHeld", error.path, error.holder_pid]
        case ObjectNotFound():
            return ["ObjectNotFound", error.name]
        case ObjectStoreError():
            return ["ObjectStoreError", str(error), error.is_passing]
        case TlsUnusable():
            return ["TlsUnusable", str(error)]
        case OSError():
            return ["OSError", error.errno, error.strerror, error.filename, error.filename2]
        case _:
            return [type(error).__name__, str(error)]


def error_of(failure: Failure) -> Exception:
    """Make the error again; of a class that no caller tells apart, a RuntimeError."""
    kind, *fields = failure
    match kind:
        case "LockHeld":
            return LockHeld(*fields)
        case "ObjectNotFound":
            return ObjectNotFound(*fields)
        case "ObjectStoreError":
            return ObjectStoreError(fields[0], is_passing=fields[1])
        case "TlsUnusable":
            return TlsUnusable(*fields)
        case "OSError":
            number, text, *names = fields
            if number is None:
                return OSError(text)
            if names[1] is not None:
                return OSError(number, text, names[0], None, names[1])
            return OSError(number, text) if names[0] is None else OSError(number, text, names[0])
        case _:
            return RuntimeError(f"{kind}: {fields[0]}")
