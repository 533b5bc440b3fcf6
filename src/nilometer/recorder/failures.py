"""Errors that a runtime raises, as values on the tape."""

from __future__ import annotations

import builtins
import socket
import ssl
from typing import Any

from nilometer.runtime import LockHeld
from nilometer.runtime.object_store import ObjectNotFound, ObjectStoreError
from nilometer.runtime.tls import TlsUnusable

Failure = list[Any]
"""An error on the tape: the name of its class and what it was made of."""

_OF_SYSTEM: dict[str, type[OSError]] = {
    one.__name__: one
    for one in (
        *(each for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, OSError)),
        socket.gaierror,
        socket.herror,
        ssl.SSLError,
        ssl.SSLCertVerificationError,
        ssl.SSLEOFError,
        ssl.SSLZeroReturnError,
        ssl.SSLSyscallError,
    )
}
"""The errors of the system that callers may tell apart, by name."""


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
        case UnicodeError():
            return ["UnicodeError", str(error)]
        case ssl.SSLError():
            kind, *args = _of_system(error)
            return [
                "TLS",
                getattr(error, "reason", None),
                getattr(error, "verify_message", None),
                kind,
                *args,
            ]
        case OSError():
            return _of_system(error)
        case _:
            return [type(error).__name__, str(error)]


def _of_system(error: OSError) -> Failure:
    """Return the nearest class that callers may tell apart, and the arguments by which it is made again."""
    kind = next(one.__name__ for one in type(error).__mro__ if _OF_SYSTEM.get(one.__name__) is one)
    names = [error.filename] if error.filename2 is None else [error.filename, None, error.filename2]
    args = [*error.args, *(names if error.filename is not None else [])]
    return [kind, *(one if isinstance(one, int | str) else None for one in args)]


def error_of(failure: Failure) -> Exception:
    """Make the error again; a RuntimeError of a class that is neither the system's nor the runtime's own."""
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
        case "UnicodeError":
            return UnicodeError(*fields)
        case "TLS":
            reason, message, name, *args = fields
            made: Any = _OF_SYSTEM[name](*args)
            made.reason = reason
            if isinstance(made, ssl.SSLCertVerificationError):
                made.verify_message = message
            return made
        case _ if kind in _OF_SYSTEM:
            return _OF_SYSTEM[kind](*fields)
        case _:
            return RuntimeError(f"{kind}: {fields[0]}")
