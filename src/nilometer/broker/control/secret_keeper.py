"""The cluster's secret, as this broker knows it: created if there is none yet, and read again periodically.

A rotation is noticed within seconds, and at once if another broker names a secret that this one does not
know.
"""

from __future__ import annotations

import logging

from nilometer.cluster.cluster_secret import (
    KEY_BYTES,
    ClusterSecret,
    ClusterSecrets,
    UnreadableSecret,
    decode_secrets,
    encode_secrets,
)
from nilometer.coordination.store import (
    CoordinationError,
    CoordinationStore,
    OutcomeUnknown,
    StoreDamaged,
    StoredSecret,
)
from nilometer.runtime import Entropy, Runtime

logger = logging.getLogger("nilometer.broker.control")

REFRESH_INTERVAL_MS = 10_000
READ_AGAIN_AFTER_MS = 1_000
"""The least time between two reads of the store, however often clients name unknown secrets."""


class SecretKeeper:
    def __init__(self, store: CoordinationStore, runtime: Runtime) -> None:
        self._store = store
        self._clock = runtime.clock
        self._entropy = runtime.entropy
        self._secrets: ClusterSecrets | None = None
        self._last_read_ms = 0
        self._last_error = ""

    @property
    def secrets(self) -> ClusterSecrets:
        assert self._secrets is not None, "known once open"
        return self._secrets

    async def open(self) -> None:
        """Read the secrets, or create them if there are none. Raises CoordinationError."""
        self._secrets = await find_or_make_secrets(self._store, self._entropy)

    async def refresh(self) -> None:
        """Read the secrets again, unless they were read within ``READ_AGAIN_AFTER_MS``. Errors are logged."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._last_read_ms < READ_AGAIN_AFTER_MS:
            return
        self._last_read_ms = now_ms
        try:
            stored = await self._store.read_secret()
            self._take(None if stored is None else _decoded(stored))
        except CoordinationError as error:
            self._warn(str(error))

    async def numbered(self, number: int) -> ClusterSecret | None:
        """Return the accepted secret with this number, which another broker named; None if there is none."""
        if number > self.secrets.current.number:
            await self.refresh()
        return self.secrets.numbered(number)

    def _take(self, found: ClusterSecrets | None) -> None:
        known = self.secrets
        if found is None or found.current.number < known.current.number:
            self._warn(
                "the coordination store has no current secret; the last one that was read remains in use"
            )
            return
        self._last_error = ""
        if found != known:
            logger.info("The cluster's secret was rotated: number %d is current", found.current.number)
            self._secrets = found

    def _warn(self, error: str) -> None:
        if error != self._last_error:
            self._last_error = error
            logger.warning("The cluster's secret could not be refreshed: %s", error)


async def find_or_make_secrets(store: CoordinationStore, entropy: Entropy) -> ClusterSecrets:
    """Return the secrets in the store; create them if there are none. Raises CoordinationError."""
    while True:
        stored = await store.read_secret()
        if stored is not None:
            return _decoded(stored)
        await _put(store, 0, ClusterSecrets.first(entropy.bytes(KEY_BYTES)))


async def rotate_secrets(store: CoordinationStore, entropy: Entropy) -> ClusterSecrets:
    """Create a new current secret, and return all secrets; the previous one stays accepted.

    Raises CoordinationError.
    """
    while True:
        before = await find_or_make_secrets(store, entropy)
        after = before.rotated(entropy.bytes(KEY_BYTES))
        if await _put(store, after.current.number, after):
            return after


async def _put(store: CoordinationStore, number: int, secrets: ClusterSecrets) -> bool:
    try:
        return await store.put_secret(number, encode_secrets(secrets))
    except OutcomeUnknown:
        stored = await store.read_secret()
        return stored is not None and stored.number == number and _decoded(stored) == secrets


def _decoded(stored: StoredSecret) -> ClusterSecrets:
    try:
        secrets = decode_secrets(stored.data)
    except UnreadableSecret as error:
        raise StoreDamaged(str(error)) from error
    if secrets.current.number != stored.number:
        raise StoreDamaged(
            f"the cluster's secret is stored as number {stored.number}, but its content has another number"
        )
    return secrets
