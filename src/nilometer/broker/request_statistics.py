"""Counts requests and their durations, by API. Written by the dispatcher, read by a scrape.

A request's duration ends when its response is ready to be sent; that of a waiting fetch includes its wait.
"""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.metrics import Distribution
from nilometer.wire.api_keys import AnyApiKey, ApiKey, api_name


class ApiStatistics:
    """The requests of one API. ``name`` is Kafka's, as in ``Produce``."""

    __slots__ = ("by_version", "durations", "failed", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.by_version: dict[int, int] = {}
        """How many requests have begun, by version; served versions only."""
        self.failed = 0
        """How many requests closed their connection in place of a response, by an error."""
        self.durations = Distribution()

    @property
    def begun(self) -> int:
        return sum(self.by_version.values())

    @property
    def in_flight(self) -> int:
        """How many requests wait for their response."""
        return self.begun - self.durations.count - self.failed

    def begin(self, version: int) -> None:
        self.by_version[version] = self.by_version.get(version, 0) + 1

    def end(self, began_us: int, now_us: int) -> None:
        self.durations.observe(now_us - began_us, now_us)


class RequestStatistics:
    """The statistics of all APIs served. Fetches of followers are counted apart from those of consumers."""

    def __init__(self, keys: Mapping[int, AnyApiKey]) -> None:
        self.of_clients = {number: ApiStatistics(api_name(key)) for number, key in keys.items()}
        """By API key, for requests of clients."""
        self.of_brokers = dict(self.of_clients)
        """By API key, for requests of brokers: the same objects, but for Fetch."""
        fetch = int(ApiKey.FETCH)
        self.of_clients[fetch] = ApiStatistics("FetchConsumer")
        self.of_brokers[fetch] = ApiStatistics("FetchFollower")

    @property
    def waiting_fetches(self) -> int:
        """How many Fetch requests wait for their response."""
        fetch = int(ApiKey.FETCH)
        return self.of_clients[fetch].in_flight + self.of_brokers[fetch].in_flight

    def all(self) -> list[ApiStatistics]:
        """Return the statistics of all APIs, each once, by name."""
        found = {one.name: one for one in (*self.of_clients.values(), *self.of_brokers.values())}
        return [found[name] for name in sorted(found)]
