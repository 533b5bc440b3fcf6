"""A virtual object store: objects in memory, with latency, errors, lost answers and periods without answer.

It keeps the promises of :mod:`nilometer.runtime.object_store` and no others: a write whose answer is an error
may have happened, may happen later, or never. Each process has its own :class:`VirtualObjectStore` on the
:class:`Bucket` of its cluster.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from nilometer.runtime import Clock
from nilometer.runtime.object_store import ObjectNotFound, ObjectStoreError

T = TypeVar("T")


@dataclass
class StoreFaults:
    """How the store misbehaves from now on. Rates are between 0 and 1."""

    latency_ms: float = 0
    """The longest time before, and after, the effect of a request."""
    refused: float = 0
    """How often a request fails without effect."""
    unanswered: float = 0
    """How often a request fails after its effect."""
    late_ms: float = 0
    """If set, a request that fails without effect may have its effect up to so much later."""
    is_reachable: bool = True
    away_s: float = 0
    """For how long it cannot be reached, once in each ``cycle_s``."""
    cycle_s: float = 1

    def is_away(self, now_s: float) -> bool:
        return not self.is_reachable or now_s % self.cycle_s < self.away_s


@dataclass
class Bucket:
    """What the store has. ``on_change`` is called after each change with the name, and the clock of the
    machine that has asked for it, for checks."""

    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    faults: StoreFaults = field(default_factory=StoreFaults)
    on_change: Callable[[str, Clock | None], None] | None = None
    written: int = 0
    read_parts: int = 0
    """How many segments were written, and how many parts of them were read."""

    def write(self, name: str, data: bytes, clock: Clock | None = None) -> None:
        self.objects[name] = data
        self.written += name.endswith(".log")
        self._changed(name, clock)

    def create(self, name: str, data: bytes, clock: Clock | None = None) -> bool:
        if name in self.objects:
            return False
        self.write(name, data, clock)
        return True

    def read(self, name: str) -> bytes:
        self.read_parts += name.endswith(".log")
        try:
            return self.objects[name]
        except KeyError:
            raise ObjectNotFound(name) from None

    def remove(self, name: str, clock: Clock | None = None) -> None:
        if self.objects.pop(name, None) is not None:
            self._changed(name, clock)

    def _changed(self, name: str, clock: Clock | None) -> None:
        if self.on_change is not None:
            self.on_change(name, clock)


class VirtualObjectStore:
    def __init__(self, bucket: Bucket, chance: random.Random, clock: Clock | None = None) -> None:
        """``clock``: that of the process's machine."""
        self._bucket = bucket
        self._chance = chance
        self._clock = clock

    async def create(self, name: str, data: bytes) -> bool:
        return await self._request(name, lambda: self._bucket.create(name, data, self._clock))

    async def put(self, name: str, data: bytes) -> None:
        await self._request(name, lambda: self._bucket.write(name, data, self._clock))

    async def upload(self, name: str, parts: AsyncIterator[bytes]) -> None:
        content = list[bytes]()
        async for part in parts:
            await self._request(name, lambda: None)
            content.append(part)
        await self._request(name, lambda: self._bucket.write(name, b"".join(content), self._clock))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        end = None if length is None else start + length
        return await self._request(name, lambda: self._bucket.read(name)[start:end], is_read=True)

    async def remove(self, name: str) -> None:
        await self._request(name, lambda: self._bucket.remove(name, self._clock))

    async def names(self, prefix: str) -> list[str]:
        def work() -> list[str]:
            return sorted(name for name in self._bucket.objects if name.startswith(prefix))

        return await self._request(prefix, work, is_read=True)

    async def folders(self, folder: str) -> list[str]:
        def work() -> list[str]:
            below = [name[len(folder) :] for name in self._bucket.objects if name.startswith(folder)]
            return sorted({f"{folder}{name.partition('/')[0]}/" for name in below if "/" in name})

        return await self._request(folder, work, is_read=True)

    async def _request(self, name: str, effect: Callable[[], T], *, is_read: bool = False) -> T:
        faults, chance = self._bucket.faults, self._chance
        await asyncio.sleep(chance.uniform(0, faults.latency_ms) / 1000)
        if faults.is_away(asyncio.get_running_loop().time()) or chance.random() < faults.refused:
            if faults.late_ms and not is_read:
                delay_s = chance.uniform(0, faults.late_ms) / 1000
                # Whatever becomes of the process that asked: the store has its request.
                loop, nowhere = asyncio.get_running_loop(), contextvars.Context()
                loop.call_later(delay_s, effect, context=nowhere)
            raise ObjectStoreError(f"no answer about {name}")
        result = effect()
        await asyncio.sleep(chance.uniform(0, faults.latency_ms) / 1000)
        if chance.random() < faults.unanswered:
            raise ObjectStoreError(f"no answer about {name}")
        return result
