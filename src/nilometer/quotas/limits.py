"""The limit that counts for a client, among the quotas of one key (KIP-55).

The first of these that exists counts, where ``default`` stands for all without a quota of their own:

```
user and client id    user and default client id    user
default user and client id    default user and default client id    default user
client id    default client id
```

All connections of a user share the rate of the user's quota, and all with a client id that of the client id;
a quota of both is shared by the connections that have both. A default quota gives such a rate to each user or
client id. As in Kafka, an empty client id has no quota.
"""

from __future__ import annotations

from typing import NamedTuple

from nilometer.quotas.entity import CLIENT_ID, IP, USER, QuotaEntity, canonical_address

_ABSENT = ""
"""Stands in a pair for a type that the entity does not have. No name is empty."""
_Pair = tuple[str | None, str | None]


class Limit(NamedTuple):
    shared_by: tuple[str, str]
    """User and client id of the connections that share the rate; empty: with any."""
    rate: float


class Limits:
    """The quotas of one key, by entity."""

    __slots__ = ("_of_addresses", "_of_clients")

    def __init__(self) -> None:
        self._of_clients: dict[_Pair, float] = {}
        self._of_addresses: dict[str | None, float] = {}

    def __bool__(self) -> bool:
        return bool(self._of_clients or self._of_addresses)

    def put(self, entity: QuotaEntity, rate: float) -> None:
        names = dict(entity)
        if IP not in names:
            self._of_clients[names.get(USER, _ABSENT), names.get(CLIENT_ID, _ABSENT)] = rate
            return
        address = names[IP]
        self._of_addresses[None if address is None else canonical_address(address) or address] = rate

    def of_client(self, user: str, client_id: str) -> Limit | None:
        """Return the limit that counts for this user and client id, or None."""
        rates = self._of_clients
        for pair in _precedence(user, client_id):
            rate = rates.get(pair)
            if rate is not None:
                of_user, of_client = pair
                shared_by = user if of_user != _ABSENT else "", client_id if of_client != _ABSENT else ""
                return Limit(shared_by, rate)
        return None

    def of_address(self, address: str) -> Limit | None:
        """Return the limit of a client's address, or None."""
        known = canonical_address(address) or address
        rate = self._of_addresses.get(known, self._of_addresses.get(None))
        return None if rate is None else Limit((known, ""), rate)


def _precedence(user: str, client_id: str) -> tuple[_Pair, ...]:
    if not client_id:
        return (user, _ABSENT), (None, _ABSENT)
    return (
        (user, client_id),
        (user, None),
        (user, _ABSENT),
        (None, client_id),
        (None, None),
        (None, _ABSENT),
        (_ABSENT, client_id),
        (_ABSENT, None),
    )
