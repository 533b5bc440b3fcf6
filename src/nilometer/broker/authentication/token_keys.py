"""The public keys by which a listener verifies tokens: read from a file, or fetched from the issuer.

A login never waits for a fetch: it is judged by the keys that are known. A token that is signed by an unknown
key is refused, as in Kafka, and has the keys fetched at once, at most every ``UNKNOWN_KEY_INTERVAL_MS``, so
that tokens made up by a client cost the issuer nothing. The client's next attempt succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from nilometer.broker.settings.oauth import OAuthSettings
from nilometer.http.client import HttpFailed, request
from nilometer.http.url import HttpUrl
from nilometer.runtime import Disk, Runtime
from nilometer.security.oauthbearer import BearerToken, UnknownKey, check_claims
from nilometer.security.signing_keys import NO_KEYS, InvalidKeys, SigningKeys, parse_keys

logger = logging.getLogger("nilometer.broker")

UNKNOWN_KEY_INTERVAL_MS = 10_000


class TokenKeys(Protocol):
    def current(self) -> SigningKeys:
        """Return the newest keys that are known, which may be none."""
        ...

    def note_unknown_key(self) -> None:
        """A token was signed by a key that :meth:`current` does not have."""
        ...


class TokenKeyFile:
    """Keys in a file that is read again when it has changed. If it cannot be read, the previous ones stay."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._keys = NO_KEYS
        self._mark: tuple[int, int] | None = None
        self._is_failing = False

    def current(self) -> SigningKeys:
        try:
            mark = self._disk.modified_ms(self._path), self._disk.file_size(self._path)
            if mark != self._mark:
                self._keys = parse_keys(self._disk.read_file(self._path))
                self._mark = mark
                self._is_failing = False
                _log_keys(self._keys, self._path)
        except (OSError, InvalidKeys) as error:
            if not self._is_failing:
                _log_failure(self._path, error, self._keys)
            self._is_failing = True
        return self._keys

    def note_unknown_key(self) -> None:
        """The file was looked at for this token."""


class FetchedTokenKeys:
    """Keys from a URL, fetched by :meth:`run`. Invariant: at most one fetch is under way."""

    def __init__(self, runtime: Runtime, url: HttpUrl, settings: OAuthSettings) -> None:
        self._runtime = runtime
        self._url = url
        self._settings = settings
        self._keys = NO_KEYS
        self._failures = 0
        self._wanted = asyncio.Event()
        self._next_unknown_ms = 0

    def current(self) -> SigningKeys:
        return self._keys

    def note_unknown_key(self) -> None:
        now_ms = self._runtime.clock.monotonic_ms()
        if now_ms >= self._next_unknown_ms:
            self._next_unknown_ms = now_ms + UNKNOWN_KEY_INTERVAL_MS
            self._wanted.set()

    async def run(self) -> None:
        """Fetch the keys when they are due, and when a token had an unknown one."""
        while True:
            await self._wait()
            await self.fetch()

    async def fetch(self) -> None:
        """Fetch the keys once; if that fails, the previous ones stay, and the log says why."""
        self._wanted.clear()
        settings = self._settings
        try:
            text = await request(self._runtime.network, self._url, tls=settings.tls)
            self._keys = parse_keys(text)
        except (HttpFailed, InvalidKeys) as error:
            if not self._failures:
                _log_failure(settings.where, error, self._keys)
            self._failures += 1
        else:
            self._failures = 0
            _log_keys(self._keys, settings.where)

    async def _wait(self) -> None:
        if self._failures:  # unknown keys do not shorten the pause
            await asyncio.sleep(retry_pause_ms(self._settings, self._failures) / 1000)
            return
        try:
            async with asyncio.timeout(self._settings.refresh_ms / 1000):
                await self._wanted.wait()
        except TimeoutError:
            pass  # the keys are due


def retry_pause_ms(settings: OAuthSettings, failures: int) -> int:
    """Return the pause after that many failed attempts in a row."""
    doubled = settings.retry_backoff_ms << min(failures - 1, 30)
    return min(doubled, max(settings.retry_backoff_ms, settings.retry_backoff_max_ms))


class TokenValidator:
    def __init__(self, runtime: Runtime, settings: OAuthSettings) -> None:
        self._rules = settings.rules
        self._wall_ms: Callable[[], int] = runtime.clock.wall_ms
        url = settings.keys_url
        self.fetched = None if url is None else FetchedTokenKeys(runtime, url, settings)
        """The keys, if they are fetched: :meth:`FetchedTokenKeys.run` must run."""
        self._keys: TokenKeys = self.fetched or TokenKeyFile(runtime.disk, settings.keys_file)

    def validate(self, token: str) -> BearerToken:
        """Raises InvalidToken."""
        try:
            claims = self._keys.current().verified_claims(token)
        except UnknownKey:
            self._keys.note_unknown_key()
            raise
        return check_claims(claims, self._rules, self._wall_ms())


def _log_keys(keys: SigningKeys, where: str) -> None:
    left_out = f", {keys.left_out} left out" if keys.left_out else ""
    logger.info("Keys for tokens read from %s: %d%s", where, len(keys), left_out)


def _log_failure(where: str, error: Exception, keys: SigningKeys) -> None:
    state = "the previous keys stay in use" if len(keys) else "no token is accepted until they can be read"
    logger.error("The keys for tokens cannot be read from %s: %s; %s", where, error, state)
