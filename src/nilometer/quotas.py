"""Quotas of clients as values: their entities, which one counts, how its use is measured. Pure."""

from __future__ import annotations

import functools
import ipaddress
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

# The entities of quotas: users, client ids, pairs of both, and addresses (KIP-13, KIP-55, KIP-612); and the
# limit that counts for a client, among the quotas of one key.

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


# How the use of a quota is measured: a rate over a sliding time (Kafka's ``Rate``, KIP-13), and a token
# bucket, which allows bursts (Kafka's ``TokenBucket``, KIP-599).

# A rate over a sliding time: the sum of the last windows by their length (Kafka's ``Rate``, KIP-13).
#
# A window begins with the first value after the end of the one before it, so there may be gaps. It is dropped
# when its last value is older than all windows together. The rate is the sum of the values divided by the
# time since the oldest window began; but this time is at least that of all full windows and the begun one, so
# that a client that has just connected is not throttled for its first request.
#
# Invariants: windows are in the order of time, and none that is dropped is counted again.

THROTTLE_MS_MAX = 2**31 - 1
"""The field of a response that names a throttle time has four bytes."""


class _Window:
    __slots__ = ("began_ms", "last_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.began_ms = now_ms
        self.last_ms = now_ms
        self.value = 0.0


class WindowedRate:
    __slots__ = ("_count", "_length_ms", "_windows")

    def __init__(self, count: int, length_ms: int) -> None:
        """``count`` windows of ``length_ms`` each, the begun one included."""
        self._count = count
        self._length_ms = length_ms
        self._windows: deque[_Window] = deque()

    def record(self, value: float, now_ms: int) -> None:
        """Count ``value``; a negative one takes back what was recorded."""
        windows = self._windows
        if not windows or now_ms - windows[-1].began_ms >= self._length_ms:
            windows.append(_Window(now_ms))
        window = windows[-1]
        window.value += value
        window.last_ms = now_ms

    def per_second(self, now_ms: int) -> float:
        time_ms = self._time_ms(now_ms)
        return sum(window.value for window in self._windows) * 1000 / time_ms

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return after which time (ms) without another value the rate is ``limit``; 0 if it is below.

        At most THROTTLE_MS_MAX.
        """
        rate = self.per_second(now_ms)
        if rate <= limit:
            return 0
        return round(min(THROTTLE_MS_MAX, (rate - limit) / limit * self._time_ms(now_ms)))

    def is_idle(self, rate: float, now_ms: int) -> bool:
        """Whether no value counts any more, as in a new object; whatever the ``rate`` allowed."""
        self._drop_old(now_ms)
        return not self._windows

    def use(self, rate: float, now_ms: int) -> float:
        """Return the rate as a share of the one that is allowed."""
        return self.per_second(now_ms) / rate

    def _time_ms(self, now_ms: int) -> int:
        self._drop_old(now_ms)
        elapsed_ms = now_ms - self._windows[0].began_ms if self._windows else 0
        missing = self._count - 1 - elapsed_ms // self._length_ms
        return max(1, elapsed_ms + max(0, missing) * self._length_ms)

    def _drop_old(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._count * self._length_ms
        while self._windows and self._windows[0].last_ms <= oldest_ms:
            self._windows.popleft()


# A token bucket: allows bursts, and then a rate (Kafka's ``TokenBucket``, KIP-599).
#
# Invariant: the bucket has at most the tokens of all windows at the full rate. It may be overdrawn: what is
# taken while tokens are left is taken as a whole, and then the next one has to wait.


class TokenBucket:
    __slots__ = ("_filled_ms", "_span_ms", "_tokens")

    def __init__(self, count: int, length_ms: int, rate: float, now_ms: int) -> None:
        """A full bucket for ``rate`` tokens per second over ``count`` windows of ``length_ms``."""
        self._span_ms = count * length_ms
        self._tokens = self._capacity(rate)
        self._filled_ms = now_ms

    def take(self, tokens: float, rate: float, now_ms: int) -> None:
        """Take ``tokens``; a negative number gives them back."""
        self._refill(rate, now_ms)
        self._tokens = min(self._capacity(rate), self._tokens - tokens)

    def throttle_ms(self, rate: float, now_ms: int) -> int:
        """Return the time (ms) until the bucket is no longer overdrawn, at most THROTTLE_MS_MAX; 0 if it is
        not."""
        self._refill(rate, now_ms)
        return 0 if self._tokens >= 0 else round(min(THROTTLE_MS_MAX, -self._tokens / rate * 1000))

    def is_idle(self, rate: float, now_ms: int) -> bool:
        """Whether the bucket is full, as a new one."""
        self._refill(rate, now_ms)
        return self._tokens >= self._capacity(rate)

    def use(self, rate: float, now_ms: int) -> float:
        """Return the share of the tokens that is taken; above 1 the bucket is overdrawn."""
        self._refill(rate, now_ms)
        return 1 - self._tokens / self._capacity(rate)

    def _capacity(self, rate: float) -> float:
        return rate * self._span_ms / 1000

    def _refill(self, rate: float, now_ms: int) -> None:
        earned = rate * (now_ms - self._filled_ms) / 1000
        self._tokens = min(self._capacity(rate), self._tokens + earned)
        self._filled_ms = now_ms
