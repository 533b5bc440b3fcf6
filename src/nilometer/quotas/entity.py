"""The entities of quotas: users, client ids, pairs of both, and addresses (KIP-13, KIP-55, KIP-612); and the
limit that counts for a client, among the quotas of one key.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Mapping
from typing import NamedTuple

# The entities of quotas: users, client ids, pairs of both, and addresses (KIP-13, KIP-55, KIP-612).
#
# Entities and keys have Kafka's names.

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)

QuotaEntity = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, sorted by type. A name of None stands for all that have no quota of their own."""

PRODUCER_BYTE_RATE = "producer_byte_rate"
"""Bytes of Produce requests per second, on each broker."""
CONSUMER_BYTE_RATE = "consumer_byte_rate"
"""Bytes of Fetch responses per second, on each broker."""
REQUEST_PERCENTAGE = "request_percentage"
"""Percent of the time of one thread that requests may take, on each broker (KIP-124)."""
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
"""Partitions created and deleted per second (KIP-599)."""
CONNECTION_CREATION_RATE = "connection_creation_rate"
"""Connections per second from one address, on each broker (KIP-612)."""

CLIENT_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
"""The keys of users and client ids."""
ADDRESS_KEYS = (CONNECTION_CREATION_RATE,)
"""The keys of addresses."""


def entity_of(names: Mapping[str, str | None]) -> QuotaEntity:
    """Return the entity with these names, by type."""
    return tuple(sorted(names.items()))


@functools.lru_cache(maxsize=1024)
def canonical_address(text: str) -> str | None:
    """Return the address in its canonical form, an IPv4 address in IPv6 as IPv4; None if it is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(address if mapped is None else mapped)


# The limit that counts for a client, among the quotas of one key (KIP-55).
#
# The first of these that exists counts, where ``default`` stands for all without a quota of their own:
#
# ```
# user and client id    user and default client id    user
# default user and client id    default user and default client id    default user
# client id    default client id
# ```
#
# All connections of a user share the rate of the user's quota, and all with a client id that of the client
# id; a quota of both is shared by the connections that have both. A default quota gives such a rate to each
# user or client id. As in Kafka, an empty client id has no quota.

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
