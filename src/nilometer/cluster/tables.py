"""What the image keeps by name besides topics and brokers: settings, SCRAM credentials, delegation tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.entries import ConfigSnapshot
from nilometer.cluster.records import ConfigResourceType, DelegationTokenChanged, ScramCredentialChanged
from nilometer.security.delegation_token import DelegationToken
from nilometer.security.scram import ScramCredential, ScramMechanism

# The settings of topics, brokers and the cluster in the metadata, and a topic's effective values.

_EMPTY: Mapping[str, str] = {}
_INT_MAX = 2**31 - 1


def min_insync_replicas_of(text: str) -> int | None:
    """Parse a value of min.insync.replicas; None if it is not a whole number from 1 to 2^31 - 1."""
    digits = text.strip().removeprefix("+")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    return number if 1 <= (number := int(digits)) <= _INT_MAX else None


class ConfigTable:
    """All settings by resource. Invariant: the table has a resource only while a setting of it is set."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[ConfigResource, dict[str, str]] = {}

    def of(self, resource: ConfigResource) -> Mapping[str, str]:
        """Return the settings of the resource itself, without inherited ones."""
        return self._values.get(resource, _EMPTY)

    def resources(self) -> list[ConfigResource]:
        return sorted(self._values, key=lambda resource: (resource.type.value, resource.name))

    def topic_setting(self, topic: str, key: str) -> str | None:
        """Return a topic's effective value: its own, else the one for all brokers, else the controller's."""
        return next(self._topic_settings(topic, key), None)

    def min_insync_replicas(self, topic: str) -> int:
        """Return a topic's effective min.insync.replicas, ignoring invalid values; 1 if none is set.

        All brokers with the same table get the same result.
        """
        for text in self._topic_settings(topic, "min.insync.replicas"):
            if (value := min_insync_replicas_of(text)) is not None:
                return value
        return 1

    def _topic_settings(self, topic: str, key: str) -> Iterator[str]:
        for resource in (
            ConfigResource(ConfigResourceType.TOPIC, topic),
            ConfigResource(ConfigResourceType.BROKER, ""),
            ConfigResource(ConfigResourceType.CLUSTER, ""),
        ):
            value = self.of(resource).get(key)
            if value is not None:
                yield value

    def put(self, resource: ConfigResource, key: str, value: str | None) -> None:
        """Set a value; None removes the setting."""
        values = self._values.setdefault(resource, {})
        if value is None:
            values.pop(key, None)
            if not values:
                del self._values[resource]
        else:
            values[key] = value

    def forget_topic(self, name: str) -> dict[str, str]:
        """Remove all settings of a topic; return them."""
        return self._values.pop(ConfigResource(ConfigResourceType.TOPIC, name), {})

    def restore_topic(self, name: str, values: dict[str, str]) -> None:
        """Undo :meth:`forget_topic`, which returned ``values``."""
        if values:
            self._values[ConfigResource(ConfigResourceType.TOPIC, name)] = values

    def snapshot(self) -> tuple[ConfigSnapshot, ...]:
        return tuple(
            ConfigSnapshot(resource.type, resource.name, dict(sorted(self._values[resource].items())))
            for resource in self.resources()
        )

    def restore(self, configs: Iterable[ConfigSnapshot]) -> None:
        for config in configs:
            self._values[ConfigResource(config.resource_type, config.resource_name)] = dict(config.values)


# The credentials of users in the metadata: SCRAM credentials and delegation tokens.

_NONE: Mapping[ScramMechanism, ScramCredential] = {}


class ScramUsers:
    """Invariant: the table has a user only while the user has a credential."""

    __slots__ = ("_by_user",)

    def __init__(self) -> None:
        self._by_user: dict[str, dict[ScramMechanism, ScramCredential]] = {}

    def names(self) -> list[str]:
        return sorted(self._by_user)

    def of(self, user: str) -> Mapping[ScramMechanism, ScramCredential]:
        return self._by_user.get(user, _NONE)

    def apply(self, record: ScramCredentialChanged) -> Callable[[], None]:
        """Set or remove a credential; return the function that undoes it."""
        before = self.of(record.user).get(record.mechanism)
        self._put(record.user, record.mechanism, record.credential)
        return lambda: self._put(record.user, record.mechanism, before)

    def _put(self, user: str, mechanism: ScramMechanism, credential: ScramCredential | None) -> None:
        credentials = self._by_user.setdefault(user, {})
        credentials.pop(mechanism, None)
        if credential is not None:
            credentials[mechanism] = credential
        elif not credentials:
            del self._by_user[user]

    def snapshot(self) -> tuple[ScramCredentialChanged, ...]:
        return tuple(
            ScramCredentialChanged(user=user, mechanism=mechanism, credential=credential)
            for user in self.names()
            for mechanism, credential in sorted(self._by_user[user].items(), key=lambda item: item[0].number)
        )

    def restore(self, records: Iterable[ScramCredentialChanged]) -> None:
        for record in records:
            self._put(record.user, record.mechanism, record.credential)


class DelegationTokens:
    """All tokens by id, expired ones too until the controller removes them."""

    __slots__ = ("_by_id", "_bytes_of")

    def __init__(self) -> None:
        self._by_id: dict[str, DelegationToken] = {}
        self._bytes_of: Counter[str] = Counter()

    def get(self, token_id: str) -> DelegationToken | None:
        return self._by_id.get(token_id)

    def bytes_of(self, requester: str) -> int:
        """Return about how much memory the tokens take that this principal has requested."""
        return self._bytes_of[requester]

    def items(self) -> list[tuple[str, DelegationToken]]:
        """Return the tokens with their ids, in no order."""
        return list(self._by_id.items())

    def apply(self, record: DelegationTokenChanged) -> Callable[[], None]:
        """Set or remove a token; return the function that undoes it."""
        before = self._by_id.get(record.id)
        self._put(record.id, record.token)
        return lambda: self._put(record.id, before)

    def _put(self, token_id: str, token: DelegationToken | None) -> None:
        before = self._by_id.pop(token_id, None)
        if before is not None:
            self._bytes_of[before.requester] -= before.size
            if not self._bytes_of[before.requester]:
                del self._bytes_of[before.requester]
        if token is not None:
            self._by_id[token_id] = token
            self._bytes_of[token.requester] += token.size

    def snapshot(self) -> tuple[DelegationTokenChanged, ...]:
        return tuple(
            DelegationTokenChanged(id=token_id, token=self._by_id[token_id])
            for token_id in sorted(self._by_id)
        )

    def restore(self, records: Iterable[DelegationTokenChanged]) -> None:
        for record in records:
            self._put(record.id, record.token)
