"""PKCS12 stores as PEM text, which is what OpenSSL's contexts are made of. Needs the library cryptography."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

PASSWORD_BYTES = 24


class UnreadableStore(Exception):
    """The message says why, without any secret."""


def key_of(path: str, password: str | None) -> tuple[str, str]:
    """Return the private key and its certificate chain as PEM text, and the password of the key in that text.

    The text may be written to a file, so it is encrypted with a random password. Raises UnreadableStore.
    """
    found = _load(path, password)
    if found.key is None or found.cert is None:
        raise UnreadableStore("it contains no private key with its certificate")
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    passing = os.urandom(PASSWORD_BYTES).hex()
    key = found.key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passing.encode())
    )
    return key.decode() + _certificates(found), passing


def certificates_of(path: str, password: str | None) -> str:
    """Return all certificates of a store as PEM text. Raises UnreadableStore."""
    text = _certificates(_load(path, password))
    if not text:
        raise UnreadableStore("it contains no certificate")
    return text


def _load(path: str, password: str | None) -> PKCS12KeyAndCertificates:
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ModuleNotFoundError:
        raise UnreadableStore("PKCS12 needs: pip install 'nilometer[secure]'") from None
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise UnreadableStore(error.strerror or str(error)) from None
    try:
        return load_pkcs12(data, None if password is None else password.encode())
    except ValueError:  # the library cannot tell which
        raise UnreadableStore("it is not PKCS12, or the password is wrong") from None


def _certificates(found: PKCS12KeyAndCertificates) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    own = [found.cert] if found.cert is not None else []
    every = [*own, *found.additional_certs]
    return "".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in every)
