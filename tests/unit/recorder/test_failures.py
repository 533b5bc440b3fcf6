"""Errors keep their class and their text on the tape."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any

import pytest

from nilometer.recorder.failures import error_of, failure_of
from nilometer.runtime import LockHeld
from nilometer.runtime.object_store import ObjectNotFound, ObjectStoreError
from nilometer.runtime.tls import TlsUnusable


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/a"),
        OSError("Multiple exceptions: [Errno 111] refused, [Errno 111] refused"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/a", None, "/b"),
        ConnectionAbortedError("SSL handshake is taking longer than 5 seconds"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        TimeoutError(),
        socket.gaierror(-2, "Name or service not known"),
        ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
        ssl.SSLCertVerificationError(1, "certificate verify failed"),
        LockHeld("/lock", 5),
        ObjectNotFound("a/b"),
        ObjectStoreError("no answer", is_passing=False),
        TlsUnusable("no key"),
        UnicodeError("label empty or too long"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_made_again_with_its_class_and_text(error: Exception) -> None:
    again = error_of(failure_of(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert getattr(again, "errno", None) == getattr(error, "errno", None)
    assert getattr(again, "is_passing", None) == getattr(error, "is_passing", None)


def test_a_refused_certificate_says_again_why() -> None:
    error: Any = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.reason, error.verify_message = "CERTIFICATE_VERIFY_FAILED", "self-signed certificate"
    again: Any = error_of(failure_of(error))
    assert (again.reason, again.verify_message) == (error.reason, error.verify_message)
    bare: Any = error_of(failure_of(ssl.SSLError(1, "[SSL] unknown")))
    assert bare.reason is None


class Played(ConnectionError):
    pass


def test_of_another_class_of_system_errors_all_but_the_class_is_kept() -> None:
    error = Played(errno.EIO, "Input/output error", "/a")
    again = error_of(failure_of(error))
    assert type(again) is ConnectionError
    assert (again.errno, again.strerror, again.filename) == (errno.EIO, "Input/output error", "/a")
    assert str(again) == str(error)


def test_of_another_class_the_text_is_kept() -> None:
    again = error_of(failure_of(ArithmeticError("odd")))
    assert str(again) == "ArithmeticError: odd"
