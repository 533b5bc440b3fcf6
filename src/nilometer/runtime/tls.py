"""TLS of listeners and connections: settings as data, and the contexts that sockets are made with.

Certificates are PEM, as a file or the text itself, or a file in PKCS12. A listener whose files change uses
the new ones for the next handshake, without a restart; if they cannot be read, it keeps the previous ones and
logs why. The connection of a client that sends many records without data, such as requests for new keys, ends
(``_BoundedObject``).
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates


# PKCS12 stores as PEM text, which is what OpenSSL's contexts are made of. Needs the library cryptography.

PASSWORD_BYTES = 24


class UnreadableStore(Exception):
    """The message says why, without any secret."""


def key_of(path: str, password: str | None) -> tuple[str, str]:
    """Return the private key and the certificate chain of a PKCS12 store as PEM text, and a password.

    The key is encrypted in that text with this random password, so the text may be written to a file. Raises
    UnreadableStore.
    """
    found = _load_pkcs12(path, password)
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
    text = _certificates(_load_pkcs12(path, password))
    if not text:
        raise UnreadableStore("it contains no certificate")
    return text


def _load_pkcs12(path: str, password: str | None) -> PKCS12KeyAndCertificates:
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


logger = logging.getLogger("nilometer.tls")

PEM, PKCS12 = "PEM", "PKCS12"
"""The formats of files."""
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsUnusable(Exception):
    """Keys or certificates cannot be used; the message says which and why, without any secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The own key and certificates, and those of trusted authorities. A name ending in ``_file`` is a path,
    the others are PEM texts."""

    key_file: str | None = None
    """The private key and the certificate chain."""
    certificate_file: str | None = None
    """The certificate chain, in PEM, if ``key_file`` has the private key only."""
    key: str | None = field(default=None, repr=False)
    """The private key and the certificate chain, as text."""
    key_type: str = PEM
    """The format of ``key_file``; ``trusted_type`` that of ``trusted_file``."""
    key_password: str | None = field(default=None, repr=False)
    """The password of the private key, or of a PKCS12 store."""
    trusted_file: str | None = None
    """Certificates of authorities; without them and ``trusted``, those of the system."""
    trusted: str | None = None
    trusted_type: str = PEM
    trusted_password: str | None = field(default=None, repr=False)
    """The password of a PKCS12 store."""
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")

    @property
    def paths(self) -> tuple[str, ...]:
        paths = (self.key_file, self.certificate_file, self.trusted_file)
        return tuple(path for path in paths if path is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    files: TlsFiles
    client_auth: str = "none"
    """``none``, ``requested`` or ``required``: whether clients need a certificate."""
    handshake_timeout_ms: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    files: TlsFiles
    checks_hostname: bool = True
    """Whether the server's certificate must be for the host that is connected to."""


_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """Return the context of a client's connections. Raises TlsUnusable if a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.checks_hostname
    context.verify_mode = ssl.CERT_REQUIRED
    _load(context, tls.files, ssl.Purpose.SERVER_AUTH)
    return context


def _server_context(tls: ServerTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = _CLIENT_AUTH[tls.client_auth]
    # A resumed session would not check the client's certificate against replaced authorities. For those of
    # TLS 1.2 see _ListeningContext.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.sslobject_class = _BoundedObject
    _load(context, tls.files, ssl.Purpose.CLIENT_AUTH)
    return context


def _load(context: ssl.SSLContext, files: TlsFiles, purpose: ssl.Purpose) -> None:
    known = [VERSIONS[name] for name in files.versions]
    context.minimum_version, context.maximum_version = min(known), max(known)
    if files.key_file is not None or files.key is not None:
        _load_own_key(context, files)
    try:
        if files.trusted_file is not None and files.trusted_type == PKCS12:
            context.load_verify_locations(cadata=certificates_of(files.trusted_file, files.trusted_password))
        elif files.trusted_file is not None or files.trusted is not None:
            context.load_verify_locations(files.trusted_file, cadata=files.trusted)
        elif context.verify_mode is not ssl.CERT_NONE:
            context.load_default_certs(purpose)
    except (OSError, ValueError, UnreadableStore) as error:  # ssl.SSLError is an OSError
        where = files.trusted_file or "the given certificates"
        raise TlsUnusable(f"{where}: no trusted certificates can be read: {_reason(error)}") from None


def _load_own_key(context: ssl.SSLContext, files: TlsFiles) -> None:
    location, text, password = files.key_file, files.key, files.key_password
    shown = files.key_file or "the given key"
    if files.key_file is not None and files.key_type == PKCS12:
        try:
            text, password = key_of(files.key_file, files.key_password)
        except UnreadableStore as error:
            raise TlsUnusable(f"{shown}: no private key can be read: {error}") from None
        location = None
    if files.certificate_file is not None:
        shown = f"{shown} with {files.certificate_file}"
    with _as_file(location, text) as path:
        _load_key(context, path, files.certificate_file, password, shown)


def _load_key(
    context: ssl.SSLContext, path: str, certificate: str | None, password: str | None, shown: str
) -> None:
    def give() -> str:
        if password is None:
            raise TlsUnusable(f"{shown}: the private key is encrypted, and no password is given")
        return password

    try:
        context.load_cert_chain(certificate or path, path, password=give)
    except (OSError, ValueError) as error:
        raise TlsUnusable(
            f"{shown}: no private key with its certificates can be read: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not PEM, or the password is wrong"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextmanager
def _as_file(path: str | None, text: str | None) -> Generator[str]:
    """Give the path of a file with the key: OpenSSL reads keys from files only."""
    if path is not None:
        yield path
        return
    descriptor, temporary = tempfile.mkstemp(prefix="nilometer-", suffix=".pem")  # readable by this user only
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text or "")
        yield temporary
    finally:
        os.unlink(temporary)


RECORDS_WITHOUT_DATA_MAX = 32
"""How many records without data a client may send in a row after its handshake."""
_RECORD_TYPES = range(20, 25)
_RECORD_HEADER_BYTES = 5
_RECORD_CONTENT_BYTES_MAX = (16 + 2) * 1024
"""What TLS 1.2 allows for an encrypted record; TLS 1.3 allows less."""


class _BoundedObject(ssl.SSLObject):
    """The TLS of one client's connection, which fails if the client sends many records without data.

    OpenSSL derives new keys, and answers, for each of the client's KeyUpdate messages (TLS 1.3), which have
    27 bytes and need no login; and it reads on until a record has data. Python cannot limit their number. So
    OpenSSL gets one record at a time: a message that changes keys ends its record (RFC 8446, 5.1).
    """

    incoming: ssl.MemoryBIO
    """What has arrived after ``_header``."""
    given: ssl.MemoryBIO
    """What OpenSSL reads."""
    _header = b""
    """The header of the next record, or the begin of it."""
    _records_without_data = 0

    def do_handshake(self) -> None:
        while True:
            try:
                super().do_handshake()
            except ssl.SSLWantReadError:
                if not self._give_record():
                    raise
            else:
                return

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """As SSLObject. Also raises SSLError if too many records without data have come."""
        has_record = not self.pending() and self._give_record()
        while True:
            try:
                data = super().read(len, buffer)
            except ssl.SSLWantReadError:
                if not has_record:
                    raise
                self._count_record_without_data()
                has_record = self._give_record()
            else:
                self._records_without_data = 0
                return data

    def unwrap(self) -> None:
        """As SSLObject, and raises SSLError as :meth:`read`."""
        while True:
            try:
                super().unwrap()
            except ssl.SSLWantReadError:
                if not self._give_record():
                    raise
                self._count_record_without_data()
            else:
                return

    def _count_record_without_data(self) -> None:
        self._records_without_data += 1
        if self._records_without_data > RECORDS_WITHOUT_DATA_MAX:
            logger.info("Closing a connection: %d records of its TLS had no data", self._records_without_data)
            raise ssl.SSLError("too many records without data")

    def _give_record(self) -> bool:
        """Give OpenSSL the next record; return False if it has not arrived as a whole.

        What cannot be a record is given as it is: OpenSSL knows the error.
        """
        incoming = self.incoming
        missing = _RECORD_HEADER_BYTES - len(self._header)
        if missing:
            self._header += incoming.read(missing)
            if len(self._header) < _RECORD_HEADER_BYTES:
                return False
        size = int.from_bytes(self._header[3:], "big")
        if self._header[0] not in _RECORD_TYPES or size > _RECORD_CONTENT_BYTES_MAX:
            size = incoming.pending
        elif incoming.pending < size:
            return False
        self.given.write(self._header + incoming.read(size))
        self._header = b""
        return True


class _ListeningContext(ssl.SSLContext):
    """Makes each connection from the newest context.

    OpenSSL keeps the sessions of TLS 1.2 in the context that a connection was made from, and Python cannot
    switch that off: with a context for each reading of the files, no session is resumed that was checked
    against earlier authorities.
    """

    newest: Callable[[], ssl.SSLContext]

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        given = ssl.MemoryBIO()
        made = self.newest().wrap_bio(given, outgoing, server_side, server_hostname, session)
        assert isinstance(made, _BoundedObject), "the class that each context of a listener makes"
        made.incoming, made.given = incoming, given
        return made


class ServerContexts:
    """The context of a listener; a new one after its files have changed.

    Invariant: a handshake uses key, certificates and authorities of one reading of the files.
    """

    def __init__(self, tls: ServerTls) -> None:
        """Raises TlsUnusable."""
        self._tls = tls
        self._seen = _marks(tls.files.paths)
        self._newest = _server_context(tls)
        self.first = _ListeningContext(ssl.PROTOCOL_TLS_SERVER)
        """The context to listen with; it makes each connection from the newest one."""
        self.first.newest = self._refreshed

    def _refreshed(self) -> ssl.SSLContext:
        self._refresh()
        return self._newest

    def _refresh(self) -> None:
        seen = _marks(self._tls.files.paths)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._newest = _server_context(self._tls)
        except TlsUnusable as error:
            logger.error("The previous certificates stay in use: %s", error)
        else:
            logger.info("New certificates are in use: %s", ", ".join(self._tls.files.paths))


def _marks(paths: tuple[str, ...]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what changes with each file's content."""
    return tuple(_mark(path) for path in paths)


def _mark(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
