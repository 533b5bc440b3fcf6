"""Which principal a client of an SSL listener has."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import cast

import pytest

from nilometer.broker.authentication.handshakes import CertificateGate
from nilometer.broker.connection import Connection, Dispatcher
from nilometer.broker.request_context import RequestContext
from nilometer.security.principal import ANONYMOUS, Principal, PrincipalMapping
from support.authority import Authority

LIMIT = 1000


class Served:
    def __init__(self) -> None:
        self.opened: list[Principal] = []

    def connection_opened(self, connection: Connection) -> bool:
        self.opened.append(connection.context.principal)
        return True


def opened_as(certificate: bytes | None, rules: str) -> list[Principal]:
    served = Served()
    gate = CertificateGate(PrincipalMapping(rules), cast(Dispatcher, served), LIMIT)
    connection = Connection(gate, LIMIT, lambda _: None, None, RequestContext(listener="SSL"))
    connection.certificate = certificate
    assert gate.connection_opened(connection) is bool(served.opened)
    return served.opened


def test_the_principal_is_the_subject_by_the_rules(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = Authority(tmp_path).issue("alice", "/O=Nilometer/CN=Alice").read_text()
    alice = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE") :])
    assert opened_as(alice, "DEFAULT") == [Principal("User", "CN=Alice,O=Nilometer")]
    assert opened_as(alice, "RULE:^CN=(.*?),.*$/$1/L") == [Principal("User", "alice")]
    assert opened_as(None, "RULE:^CN=(.*?),.*$/$1/L") == [ANONYMOUS]
    assert opened_as(alice, "RULE:^CN=Bob$/bob/") == []
    assert opened_as(b"damaged", "DEFAULT") == []
    assert caplog.text.count("Authentication failed") == 2
