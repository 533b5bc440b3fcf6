"""Both systems with a listener of each security protocol, from the same keys, users and settings.

TLS 1.3 alone, with the cipher that both systems prefer; `check_cipher` sees that it is used.
"""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

from tests.support.authority import Authority
from tests.support.brokers.sasl_broker import ITERATIONS, upsertion
from tests.support.ports import HOST, free_ports
from tests.support.wire.wire_peer import WirePeer

from nilometer.security.sasl import PLAIN_MODULE
from nilometer.security.scram import ScramMechanism
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from .systems import Kafka, Nilometer, Settings, System

USER, PASSWORD = "bench", "bench-secret"
PLAIN, SCRAM = "PLAIN", ScramMechanism.SHA_256
ITERATIONS_OF_SCRAM = ITERATIONS
PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
CIPHER, TLS_VERSION = "TLS_AES_256_GCM_SHA384", "TLSv1.3"
CREATED_TIMEOUT_S = 30.0
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Security:
    """What the listeners of one broker are made of."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        key = authority.issue("broker", "/CN=broker")
        self.certificate = authority.certificate
        """Of the authority."""
        self.addresses = {
            protocol: f"{HOST}:{port}"
            for protocol, port in zip(PROTOCOLS, free_ports(len(PROTOCOLS)), strict=True)
        }
        self.listeners = [f"{protocol}://{address}" for protocol, address in self.addresses.items()]
        self.settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(key),
            "ssl.enabled.protocols": TLS_VERSION,
            "sasl.enabled.mechanisms": f"{PLAIN},{SCRAM.value}",
            **{
                f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": (
                    f'{PLAIN_MODULE} required user_{USER}="{PASSWORD}";'
                )
                for protocol in PROTOCOLS
                if protocol.startswith("SASL")
            },
        }

    @property
    def client_settings(self) -> tuple[str, ...]:
        """Those of librdkafka for the listener SSL."""
        return ("security.protocol=ssl", f"ssl.ca.location={self.certificate}")


class SecuredNilometer(Nilometer):
    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        self.security = Security(folder / "authority")
        [port] = free_ports(1)
        listeners = ",".join((f"PLAINTEXT://{HOST}:{port}", *self.security.listeners))
        super().__init__(folder, {**self.security.settings, "listeners": listeners, **(settings or {})}, port)


class SecuredKafka(Kafka):
    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        self.security = Security(folder / "authority")
        scram = {
            f"listener.name.{protocol.lower()}.{SCRAM.value.lower()}.sasl.jaas.config": (
                f"{_SCRAM_MODULE} required;"
            )
            for protocol in PROTOCOLS
            if protocol.startswith("SASL")
        }
        own = {**self.security.settings, **scram}
        super().__init__(folder, {**own, **(settings or {})}, self.security.listeners)


def secured_systems() -> dict[str, type[Nilometer] | type[Kafka]]:
    return {"nilometer": SecuredNilometer, "kafka": SecuredKafka}


def security_of(system: System) -> Security:
    if not isinstance(system, SecuredNilometer | SecuredKafka):
        raise TypeError(f"{system.name} has no listeners with TLS and SASL")
    return system.security


def check_cipher(system: System) -> None:
    """Raises RuntimeError if the broker chooses another version or cipher of TLS than the rows name."""
    security = security_of(system)
    host, _, port = security.addresses["SSL"].rpartition(":")
    context = ssl.create_default_context(cafile=str(security.certificate))
    with (
        socket.create_connection((host, int(port)), 20.0) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        found = encrypted.cipher()
    if found is None or found[:2] != (CIPHER, TLS_VERSION):
        raise RuntimeError(f"{system.name} uses {found}, not {CIPHER} of {TLS_VERSION}")


def create_user(system: System) -> None:
    """Create the user of SCRAM; returns when the broker knows it."""
    with WirePeer(system.bootstrap) as peer:
        answer = peer.ask(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            0,
            deletions=(),
            upsertions=(upsertion(USER, PASSWORD, SCRAM, ITERATIONS_OF_SCRAM),),
        )
        errors = [result.error_code for result in answer.results]
        if errors != [ErrorCode.none]:
            raise RuntimeError(f"{system.name} does not take the user: {errors}")
        deadline = time.monotonic() + CREATED_TIMEOUT_S
        while True:
            described = peer.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
            if any(each.user == USER for each in described.results):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{system.name} does not know the user after {CREATED_TIMEOUT_S:.0f} s")
            time.sleep(0.05)
