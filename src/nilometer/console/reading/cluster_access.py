"""The cluster as one user of it sees it: that user's connections, and what is read and written over them.

A console without a login has one access, with the settings of its command. With a login each session has its
own, as the user who logged in: the brokers' ACLs decide what it shows and does.
"""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.client.settings.client_security import JAAS, MECHANISM, MODULES, PROTOCOL
from nilometer.console.reading.cluster_reader import ClusterReader
from nilometer.console.reading.connection import ClusterConnection
from nilometer.console.reading.feeds import Feeds
from nilometer.console.reading.record_reader import RecordReader, RecordSlots
from nilometer.runtime import Runtime
from nilometer.security.jaas import client_jaas
from nilometer.security.oauthbearer import OAUTHBEARER
from nilometer.security.protocol import SecurityProtocol


class CannotLogIn(Exception):
    """Users cannot log in with the console's settings of clients; the message says why."""


class ClusterAccess:
    """``client``: settings of clients. ``slots``: shared by all accesses of a console."""

    def __init__(self, runtime: Runtime, client: Mapping[str, str], slots: RecordSlots) -> None:
        """Raises ConfigError."""
        self._connection = ClusterConnection(runtime, client)
        self.reader = ClusterReader(self._connection)
        self.records = RecordReader(self._connection, slots)
        self.feeds = Feeds(runtime.clock)

    async def connect(self) -> None:
        """Connect to a broker, as the user of the settings. Raises KafkaError."""
        await self._connection.admin()

    async def end_events(self) -> None:
        """End the live pages and the tails."""
        await self.feeds.close()
        await self.records.close()

    async def close(self) -> None:
        await self.end_events()
        await self.reader.close()


def check_login(client: Mapping[str, str]) -> None:
    """Check that the settings let users log in with their own passwords. Raises CannotLogIn."""
    protocol = client.get(PROTOCOL, SecurityProtocol.PLAINTEXT.value)
    if not SecurityProtocol(protocol).has_sasl:
        raise CannotLogIn(
            f"users of the brokers log in, and with {PROTOCOL}={protocol} the brokers have none: give "
            f"--command-config a file with {PROTOCOL}=SASL_SSL and {MECHANISM}"
        )
    mechanism = client.get(MECHANISM)
    if mechanism not in MODULES or mechanism == OAUTHBEARER:
        known = ", ".join(name for name in MODULES if name != OAUTHBEARER)
        raise CannotLogIn(f"users log in with a name and a password: set {MECHANISM} to one of {known}")
    if JAAS in client:
        raise CannotLogIn(
            f"each user logs in with a password of their own: remove {JAAS} from the file of --command-config"
        )


def settings_of_user(client: Mapping[str, str], user: str, password: str) -> dict[str, str]:
    """Return settings of clients that connect as ``user``; ``client`` passed :func:`check_login`."""
    return {**client, JAAS: client_jaas(MODULES[client[MECHANISM]], user, password)}
