"""The cluster as one user of it sees it: that user's connections, and what is read and written over them.

Readings repeat while a browser watches; they are shared by all browsers that watch the same subject.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from nilometer.client.settings import JAAS, MECHANISM, MODULES, PROTOCOL
from nilometer.console.reading.cluster_reader import ClusterReader
from nilometer.console.reading.connection import ClusterConnection
from nilometer.console.reading.record_reader import RecordReader, RecordSlots
from nilometer.runtime import Clock, Runtime
from nilometer.security.oauthbearer import OAUTHBEARER
from nilometer.security.principal import SecurityProtocol
from nilometer.security.sasl import client_jaas
from nilometer.wire.errors import KafkaError

# Each subject is read by one task, however many browsers watch it. A browser that is slow gets the newest
# reading and misses those between. A subject that no browser watches is read for :data:`LINGER_S` more, so
# that a page and the events that follow it share a reading; then its task ends.

logger = logging.getLogger("nilometer.console")

INTERVAL_S = 1.0
LINGER_S = 3.0
SHARE = 1
"""A subject whose reading takes t seconds is read again after at least ``SHARE`` * t."""
FEEDS_MAX = 64
WATCHERS_MAX = 256
BUG = "The console failed to read this; its log has the reason."

Read = Callable[[], Awaitable[Any]]


class TooManyWatchers(Exception):
    """More pages are open than this console serves."""


class Update(msgspec.Struct, frozen=True):
    """One reading of a subject: its value, or why there is none."""

    number: int
    value: Any
    error: str | None
    is_missing: bool = False
    """Whether the error is that the subject does not exist."""


class Feeds:
    def __init__(self, clock: Clock, interval_s: float = INTERVAL_S, linger_s: float = LINGER_S) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._linger_s = linger_s
        self._feeds: dict[str, _Feed] = {}
        self._is_closed = False

    async def first(self, subject: str, read: Read) -> Update:
        """Return the newest reading of a subject, or read it. Raises TooManyWatchers."""
        async with aclosing(self.watch(subject, read)) as updates:
            async for update in updates:
                return update
        return Update(0, None, "The console is stopping.")

    async def watch(self, subject: str, read: Read, after: int = 0) -> AsyncGenerator[Update]:
        """Yield the newest reading with a number above ``after``, and then each newer one, until closed.

        ``read`` is called if no browser watches the subject yet; all that watch it get its results.
        Raises TooManyWatchers.
        """
        feed = self._join(subject, read)
        try:
            while True:
                update = await feed.newer(after)
                if update is None:
                    return
                after = update.number
                yield update
        finally:
            feed.watchers -= 1
            if feed.watchers == 0:
                feed.idle_at(asyncio.get_running_loop().call_later(self._linger_s, self._drop, feed))

    async def close(self) -> None:
        self._is_closed = True
        feeds = list(self._feeds.values())
        for feed in feeds:
            self._drop(feed)
        await asyncio.gather(*(feed.task for feed in feeds), return_exceptions=True)

    @property
    def subjects(self) -> list[str]:
        """The subjects that are being read."""
        return list(self._feeds)

    def _join(self, subject: str, read: Read) -> _Feed:
        if sum(feed.watchers for feed in self._feeds.values()) >= WATCHERS_MAX or self._is_closed:
            raise TooManyWatchers
        feed = self._feeds.get(subject)
        if feed is None:
            if len(self._feeds) >= FEEDS_MAX:
                self._drop_idle()
            feed = self._feeds[subject] = _Feed(subject, read, self._clock, self._interval_s)
        feed.watchers += 1
        feed.idle_at(None)
        return feed

    def _drop_idle(self) -> None:
        """Stop reading the subject that has been without a watcher for longest. Raises TooManyWatchers."""
        idle = next((feed for feed in self._feeds.values() if feed.watchers == 0), None)
        if idle is None:
            raise TooManyWatchers
        self._drop(idle)

    def _drop(self, feed: _Feed) -> None:
        feed.close()
        if self._feeds.get(feed.subject) is feed:
            del self._feeds[feed.subject]


class _Feed:
    """The task that reads one subject again and again, and its newest reading."""

    def __init__(self, subject: str, read: Read, clock: Clock, interval_s: float) -> None:
        self.subject = subject
        self.watchers = 0
        self._read = read
        self._clock = clock
        self._interval_s = interval_s
        self._newest: Update | None = None
        self._changed = asyncio.Event()
        self._is_closed = False
        self._idle: asyncio.TimerHandle | None = None
        self.task = asyncio.ensure_future(self._poll())

    async def newer(self, number: int) -> Update | None:
        """Return the newest reading once it has a higher number; None if the feed is closed."""
        while not self._is_closed:
            if self._newest is not None and self._newest.number > number:
                return self._newest
            await self._changed.wait()
        return None

    def idle_at(self, timer: asyncio.TimerHandle | None) -> None:
        """Keep the timer that drops this feed; None cancels it."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = timer

    def close(self) -> None:
        self._is_closed = True
        self.idle_at(None)
        self.task.cancel()
        self._changed.set()

    async def _poll(self) -> None:
        number = 0
        while True:
            begin_ms = self._clock.monotonic_ms()
            number += 1
            self._publish(await self._one(number))
            took_s = (self._clock.monotonic_ms() - begin_ms) / 1000
            await asyncio.sleep(max(self._interval_s, SHARE * took_s))

    async def _one(self, number: int) -> Update:
        try:
            return Update(number, await self._read(), None)
        except KafkaError as error:
            return Update(number, None, error.message or error.name, error.name in _MISSING)
        except Exception:
            logger.exception("Reading %s failed", self.subject)
            return Update(number, None, BUG)

    def _publish(self, update: Update) -> None:
        self._newest = update
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


_MISSING = frozenset({"UNKNOWN_TOPIC_OR_PARTITION", "GROUP_ID_NOT_FOUND", "INVALID_TOPIC_EXCEPTION"})


# A console without a login has one access, with the settings of its command. With a login each session has
# its own, as the user who logged in: the brokers' ACLs decide what it shows and does.


class CannotLogIn(Exception):
    """Users cannot log in with the console's settings of clients; the message says why."""


class ClusterAccess:
    """``client``: settings of clients. ``slots``: shared by all accesses of a console."""

    def __init__(self, runtime: Runtime, client: Mapping[str, str], slots: RecordSlots) -> None:
        """Raises ConfigError."""
        self.connection = ClusterConnection(runtime, client)
        self.reader = ClusterReader(self.connection)
        self.records = RecordReader(self.connection, slots)
        self.feeds = Feeds(runtime.clock)

    async def connect(self) -> None:
        """Connect to a broker, as the user of the settings. Raises KafkaError."""
        await self.connection.admin()

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
