"""A broker with a PLAINTEXT and a SASL listener, and its users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nilometer.security.sasl import PLAIN_MODULE
from nilometer.security.scram import ScramMechanism, salted_password
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..ports import HOST, free_ports
from ..wire.wire_peer import WirePeer, make
from .nilometer_broker import NilometerBroker

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORDS = {"alice": "alice-secret", "bob": "böb, =secret"}
"""The users of all mechanisms."""
SALT, ITERATIONS = b"0123456789abcdefghijklmnop", 4096


class SaslBroker:
    """``bootstrap``: of the SASL listener; ``open_bootstrap``: of the PLAINTEXT listener."""

    def __init__(self, broker: NilometerBroker, port: int) -> None:
        self.broker = broker
        self.bootstrap = f"{HOST}:{port}"

    @property
    def open_bootstrap(self) -> str:
        return self.broker.bootstrap

    def alter_users(
        self, deletions: tuple[object, ...] = (), upsertions: tuple[object, ...] = ()
    ) -> list[ErrorCode]:
        with WirePeer(self.open_bootstrap) as peer:
            key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
            answer = peer.ask(key, 0, deletions=deletions, upsertions=upsertions)
        return [result.error_code for result in answer.results]


def upsertion(user: str, password: str, mechanism: ScramMechanism, iterations: int = ITERATIONS) -> object:
    return make(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        "ScramCredentialUpsertion",
        name=user,
        mechanism=mechanism.number,
        iterations=iterations,
        salt=SALT,
        salted_password=salted_password(mechanism, password, SALT, iterations),
    )


def deletion(user: str, mechanism: ScramMechanism) -> object:
    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    return make(key, 0, "ScramCredentialDeletion", name=user, mechanism=mechanism.number)


def sasl_settings(open_port: int, port: int) -> dict[str, str]:
    users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    return {
        "listeners": f"PLAINTEXT://{HOST}:{open_port},SASL_PLAINTEXT://{HOST}:{port}",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
    }


@contextmanager
def sasl_broker(
    folder: Path, overrides: Mapping[str, str] | None = None, more: Mapping[str, int] | None = None
) -> Iterator[SaslBroker]:
    """``more``: the ports of more listeners, by protocol."""
    open_port, port = free_ports(2)
    settings = {**sasl_settings(open_port, port), **(overrides or {})}
    for protocol, another in (more or {}).items():
        settings["listeners"] += f",{protocol}://{HOST}:{another}"
        users = settings["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
        if protocol.startswith("SASL"):
            settings[f"listener.name.{protocol.lower()}.plain.sasl.jaas.config"] = users
    with NilometerBroker(folder, settings, open_port) as broker:
        secured = SaslBroker(broker, port)
        for mechanism in ScramMechanism:
            users = tuple(upsertion(user, password, mechanism) for user, password in PASSWORDS.items())
            assert secured.alter_users(upsertions=users) == [ErrorCode.none] * len(users)
        yield secured
