"""The entities of quotas: users, client ids, pairs of both, and addresses (KIP-13, KIP-55, KIP-612).

Entities and keys have Kafka's names.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Mapping

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
