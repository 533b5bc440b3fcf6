"""A broker with a listener of each security protocol, ACLs, and the user alice with few rights.

Clients of its PLAINTEXT listener have all rights: it is the test's own way in.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.security.sasl import PlainClient
from nilometer.security.scram import ScramMechanism
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..authority import Authority
from ..authorization.prepared import AUTHORIZER, create_acls
from ..ports import HOST, free_ports
from ..wire.wire_peer import WirePeer
from .nilometer_broker import NilometerBroker
from .sasl_broker import PASSWORDS, SaslBroker, sasl_settings, upsertion
from .two_brokers import Side

ALICE, PASSWORD = "alice", PASSWORDS["alice"]
PREFIX = "alices-"
"""What the names of topics, groups and transactional ids begin with that alice has all rights on."""


class SecuredBroker:
    """Use as ``with SecuredBroker(folder) as secured``. ``mutual``, ``sasl``, ``sasl_ssl``: the ports."""

    def __init__(self, folder: Path, overrides: Mapping[str, str] | None = None) -> None:
        authority = Authority(folder / "authority")
        plain, self.sasl, self.mutual, self.sasl_ssl = free_ports(4)
        settings = sasl_settings(plain, self.sasl)
        users = settings["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
        settings |= {
            "listeners": ",".join(
                (settings["listeners"], f"SSL://{HOST}:{self.mutual}", f"SASL_SSL://{HOST}:{self.sasl_ssl}")
            ),
            "listener.name.sasl_ssl.plain.sasl.jaas.config": users,
            "ssl.keystore.location": str(authority.issue("broker", "/CN=broker-1")),
            "ssl.keystore.type": "PEM",
            "ssl.truststore.location": str(authority.certificate),
            "ssl.truststore.type": "PEM",
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS",
            **(overrides or {}),
        }
        self.broker = NilometerBroker(folder / "data", settings, plain)
        self.context = authority.context()
        """The TLS of a client without a certificate; ``certified``: that of alice."""
        self.certificate = authority.issue("alice", f"/CN={ALICE}")
        """The file with alice's private key and certificate."""
        self.certified = authority.context(self.certificate)

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def __enter__(self) -> SecuredBroker:
        self.broker.start()
        try:
            self._prepare()
        except BaseException:
            self.broker.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()

    def _prepare(self) -> None:
        users = SaslBroker(self.broker, self.sasl)
        for mechanism in ScramMechanism:
            assert users.alter_users(upsertions=(upsertion(ALICE, PASSWORD, mechanism),)) == [ErrorCode.none]
        admin = Side("admin", self.bootstrap)
        create_acls(admin, [_all_rights(kind) for kind in _KINDS])
        admin.hang_up()

    # --- connections of alice

    def log_in(self, port: int, source: str | None = None) -> WirePeer:
        """Return a connection on which alice has authenticated, to one of the three listeners.

        ``source``: the address from which to connect. Raises OSError and ConnectionEnded.
        """
        if port == self.mutual:
            return WirePeer(f"{HOST}:{port}", tls=self.certified, source=source)
        context = self.context if port == self.sasl_ssl else None
        peer = WirePeer(f"{HOST}:{port}", tls=context, source=source)
        assert peer.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == ErrorCode.none
        message = PlainClient(ALICE, PASSWORD).begin()
        assert peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=message).error_code == ErrorCode.none
        return peer

    def connect(self, port: int, source: str | None = None) -> socket.socket:
        """Open a TCP connection, without a login and without TLS."""
        origin = None if source is None else (source, 0)
        return socket.create_connection((HOST, port), 20, origin)


_KINDS = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


def _all_rights(kind: ResourceType) -> Acl:
    return Acl(kind, PREFIX, PatternType.PREFIXED, f"User:{ALICE}", "*", Operation.ALL, Permission.ALLOW)
