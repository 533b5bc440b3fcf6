"""A low-level connection to a broker: sends requests of any API in any version, one at a time.

No version negotiation, no retries, no metadata: a test determines every request, and gets every response.
Blocking, with a time-out for every wait.
"""

from __future__ import annotations

import socket
import ssl
import struct
from types import TracebackType

from nilometer.wire.messages import Message, api, decode_response, encode_request

TIMEOUT_S = 60.0


class ConnectionEnded(Exception):
    """The broker closed the connection."""


class WirePeer:
    """Use as ``with WirePeer(broker.bootstrap) as peer: peer.ask(ApiKey.METADATA, 9, topics=None)``."""

    def __init__(
        self,
        bootstrap: str,
        client_id: str | None = "test",
        timeout_s: float = TIMEOUT_S,
        source: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``source``: the address from which to connect, if not the one that the system chooses.

        Raises OSError if the connection, or its TLS handshake, fails.
        """
        host, _, port = bootstrap.rpartition(":")
        origin = None if source is None else (source, 0)
        self._socket = socket.create_connection((host, int(port)), timeout_s, origin)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> WirePeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def socket(self) -> socket.socket:
        return self._socket

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: int, version: int, /, **fields: object) -> Message:
        """Send a request and return its response. Raises ConnectionEnded."""
        self.tell(key, version, **fields)
        return self.hear(key, version)

    def tell(self, key: int, version: int, /, **fields: object) -> None:
        """Send a request without waiting for the response."""
        self._correlation_id += 1
        request = api(key, version).request(**fields)
        self._socket.sendall(encode_request(self._correlation_id, self._client_id, request))

    def hear(self, key: int, version: int) -> Message:
        """Return the next response, which must be of this API and version. Raises ConnectionEnded."""
        return decode_response(key, version, self.receive())[1]

    def tell_bytes(self, frame: bytes) -> None:
        """Send ``frame`` after its length."""
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """Return the next frame without its length. Raises ConnectionEnded."""
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def is_ended(self) -> bool:
        """Wait until the broker closes the connection or sends something; return whether it closed it."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), 1 << 20))
            except ConnectionResetError:
                part = b""
            if not part:
                raise ConnectionEnded(f"after {len(data)} of {size} bytes")
            data += part
        return bytes(data)


def make(key: int, version: int, name: str, /, **fields: object) -> Message:
    """Make a nested message of a request; ``name`` is its type."""
    return api(key, version).make_request(name, **fields)
