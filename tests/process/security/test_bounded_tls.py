"""Servers' TLS: a client's records may be small or arrive in parts; a row of records without data ends it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from nilometer.runtime.tls import ServerContexts, ServerTls, TlsFiles
from support.authority import Authority

RECORDS = 3_000
RECORD_BYTES = 16_384


class Pair:
    """A client and a server, and what is on its way from the client."""

    def __init__(self, folder: Path, version: str) -> None:
        authority = Authority(folder)
        files = TlsFiles(key_file=str(authority.issue("server", "/CN=server")), versions=(version,))
        self.arrived = ssl.MemoryBIO()
        back, self._sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = ServerContexts(ServerTls(files=files)).first.wrap_bio(
            self.arrived, back, server_side=True
        )
        self.client = authority.context().wrap_bio(back, self._sent, server_hostname="localhost")
        for _ in range(3):
            for side in (self.client, self.server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    pass  # the other side is next
                self.arrived.write(self._sent.read())

    def encrypted(self, data: bytes) -> bytes:
        assert self.client.write(data) == len(data)
        return self._sent.read()

    def readable(self, size: int) -> bytes:
        try:
            return self.server.read(size)
        except ssl.SSLWantReadError:
            return b""


@pytest.fixture(params=["TLSv1.2", "TLSv1.3"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    return Pair(tmp_path / "authority", request.param)


def test_thousands_of_records_of_one_byte_are_read(pair: Pair) -> None:
    for number in range(RECORDS):
        pair.arrived.write(pair.encrypted(bytes([number % 256])))
        assert pair.readable(100) == bytes([number % 256])
        assert pair.readable(100) == b""


def test_records_that_arrive_in_parts_and_are_read_in_parts_are_whole(pair: Pair) -> None:
    sent = bytes(range(256)) * (RECORD_BYTES // 256)
    for _ in range(20):
        data = pair.encrypted(sent)
        read = b""
        for begin in range(0, len(data), 5_000):
            pair.arrived.write(data[begin : begin + 5_000])
            while piece := pair.readable(1_000):
                read += piece
        assert read == sent
