"""The chain of manifests of one partition: which one is the last, and who may write the next.

The object store alone orders the writers. A writer that has read the chain to its end creates the next
number; of several that try, the store lets one succeed, and the others read what it wrote. A leader goes on
from there only if no later leader has written (:class:`Deposed`). So a leader that was replaced cannot change
the chain once its successor has written its first manifest. A manifest with a lower leader epoch than one
before it is void.

A second cluster with the same id and metadata has leaders of its own, maybe with the same epochs. So an epoch
counts below a *claim*, a number that operators raise when a cluster goes on in place of another one. Of two
that write under one epoch of one claim each stops when it finds a manifest of the other (:class:`Contested`),
and one with a later epoch when it finds other records than its own (see :mod:`nilometer.tier.lineage`).

Old manifests are removed in ascending order. So the end of the chain is where ``number`` exists and
``number + 1`` does not, in this order of looking: first the next one is absent, then the present one is still
there. That the next one is absent proves nothing by itself to a process that was stopped for long: both may
have been removed. The same holds for a manifest that was created, so its writer looks again afterwards.
``head``, which is overwritten, and listings are only where the search for the end begins.

A request that comes late may create a number again that was removed. So the present one is still there if it
begins as it did: no two attempts begin alike. And where ``head`` says that the chain goes on, the number
before is there, too, because it is removed first.

The chain of an archive has no leaders: :meth:`Chain.append_at_rest` writes it, and brokers do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from msgspec import structs

from nilometer.runtime.object_store import ObjectNotFound, ObjectStore, ObjectStoreError
from nilometer.steps import Pause, next_iteration, with_pauses
from nilometer.tier.format import (
    HEAD,
    DamagedObject,
    Manifest,
    decoding_manifest,
    encoding_manifest,
    manifest_name,
    manifest_number,
    manifest_start,
)

MANIFESTS_KEPT = 8
"""How many manifests stay before the last one: a process that knows one of them reads on from there."""
_ATTEMPTS_MAX = 8
"""How often the search for the end begins again because what it had found was removed."""
_DIGITS_MAX = 20
"""Those of a manifest's number in its name."""


class Deposed(Exception):
    """A leader with a higher epoch has written to the chain, or the topic was deleted."""


class Contested(Deposed):
    """Another cluster writes to the chain, with a higher claim, or the same one and the same epoch; or it is
    an archive's."""


class ManifestsGone(DamagedObject):
    """There is a head, or was one, but no manifest: they are being removed, or were, or were lost."""


class Chain:
    """The chain in one partition's folder, as one process knows it. For one task at a time.

    ``writer``: a random id of the process, which the manifests written through it have. ``claim``: that of
    its cluster. ``pause``: before each step of reading and writing a manifest of many segments.
    """

    def __init__(
        self, store: ObjectStore, folder: str, writer: str, claim: int = 0, pause: Pause = next_iteration
    ) -> None:
        self._store = store
        self._folder = folder
        self._writer = writer
        self._claim = claim
        self._pause = pause
        self._last: Manifest | None = None
        self._end: int = -1
        """The highest number that exists, be it void."""
        self._removed_below = 0
        """This process has removed every manifest with a lower number."""
        self._attempted_ms = -1
        """What the last manifest says of when it was written that this process has tried to write."""
        self.is_read = False
        """Whether the end has been found: whether :attr:`last` is None because the chain was empty."""
        self.is_pruned = True
        """False if :meth:`prune` has still to remove what the last manifest of this process lets go."""
        self._uncertain: int | None = None
        """The number of a manifest of which it is unknown whether it was, or will be, created."""

    @property
    def last(self) -> Manifest | None:
        """The last valid manifest, as of the last call that read or wrote; None if there was none."""
        return self._last

    @property
    def oldest(self) -> int:
        """Every manifest with a lower number was removed; one that is there was created again, late. The last
        manifest says so only of those that were removed before it was written."""
        return max(self._removed_below, 0 if self._last is None else self._last.oldest)

    @property
    def is_settled(self) -> bool:
        """False after a write of which it is unknown whether it took, or will take, effect."""
        return self._uncertain is None

    async def read(self) -> Manifest | None:
        """Read the chain to its end; return the last manifest. Raises ObjectStoreError, DamagedObject."""
        for _ in range(_ATTEMPTS_MAX):
            start = self._last if self._last is not None else await self._find_start()
            last = start
            end: int = -1 if start is None else start.number
            while (found := await self._get(end + 1)) is not None:
                end += 1
                if last is None or found.rank >= last.rank:
                    last = found
            if await self._still_begins_with(start):
                self._last, self._end, self.is_read = last, end, True
                if self._uncertain is not None and end >= self._uncertain:
                    self._uncertain = None  # its number is taken
                return last
            self._last = None
        raise ObjectStoreError(f"{self._folder}: manifests are removed faster than they can be read")

    async def append(self, leader_epoch: int, following: Manifest) -> bool:
        """Write ``following``, which was made from :attr:`last`, as the next manifest.

        Return False if another one has appeared there: then :attr:`last` is that one, and the caller decides
        again. Raises ManifestsGone if there are segments and no manifest, although that comes before them;
        Deposed, ObjectStoreError, DamagedObject.
        """
        self.check_may_write(leader_epoch)
        has_begun = self._last is None and await self._has_segments()
        if has_begun and await self.read() is None:
            raise ManifestsGone(
                f"{self._folder} has segments, and all manifests that named them are lost. Put them back, or "
                "remove the segments to go on without: until then nothing is copied, and nothing removed"
            )
        is_written = not has_begun and await self._append((self._claim, leader_epoch), following)
        if not is_written:
            self.check_may_write(leader_epoch)
        return is_written

    async def append_at_rest(self, leader_epoch: int, following: Manifest) -> bool:
        """Write ``following`` as the next manifest while the partition has no leader: under the rank of the
        last one, or ``leader_epoch`` if there is none. Return False if another one has appeared there.

        Raises Deposed if brokers write to the chain, ObjectStoreError, DamagedObject.
        """
        rank = (self._claim, leader_epoch) if self._last is None else self._last.rank
        return await self._append(rank, following)

    async def _append(self, rank: tuple[int, int], following: Manifest) -> bool:
        last = self._last
        known_ms = last.written_ms if last is not None and last.writer == self._writer else -1
        following = structs.replace(
            following,
            number=self._end + 1,
            oldest=max(following.oldest, self.oldest),
            claim=rank[0],
            leader_epoch=rank[1],
            writer=self._writer,
            written_ms=max(following.written_ms, self._attempted_ms + 1, known_ms + 1),
        )
        self._attempted_ms = following.written_ms
        if not await self._create(following):
            await self.read()
            return False
        if not await self._still_begins_with(last):
            self._last = None
            raise Deposed(f"{self._folder}: other brokers wrote to it while this one was stopped")
        self._last, self._end, self._uncertain = following, following.number, None
        self.is_pruned = False
        await self.prune()
        return True

    async def _has_segments(self) -> bool:
        return any(name.endswith(".log") for name in await self._store.names(self._folder))

    async def remove_all(self, may_end: Callable[[Manifest], bool]) -> None:
        """Remove everything in the folder, since its topic was deleted: for several processes at once, and
        again after an error.

        ``may_end``: whether the chain may end behind this manifest, the last one; if not, all stays. It may
        raise Contested. Raises Contested, ObjectStoreError, DamagedObject.
        """
        try:
            last = await self.read()
            while last is not None and not last.is_deleted:
                self._check_claim(last)
                if not may_end(last):
                    return
                ended, number = structs.replace(last, segments=(), dropped=(), is_deleted=True), self._end + 1
                try:
                    await self._append(last.rank, ended)
                except Deposed:  # the chain goes on elsewhere, and its writers do not know of this manifest
                    await self._store.remove(self._folder + manifest_name(number))
                    await self.read()
                last = self._last
        except ManifestsGone:
            pass  # another process removes them, too
        names, head = await self._store.names(self._folder), self._folder + HEAD  # manifests in order
        with contextlib.suppress(ManifestsGone):
            # A higher claim may have gone on behind the end: what it has written later is not listed yet.
            if (last := await self.read()) is not None:
                self._check_claim(last)
        for name in names:
            if name != head:
                await self._store.remove(name)
        await self._store.remove(head)

    def check_may_write(self, leader_epoch: int) -> None:
        """Raises Deposed if a manifest is there that a leader of ``leader_epoch`` may not follow."""
        last, rank = self._last, (self._claim, leader_epoch)
        if last is None:
            return
        self._check_claim(last)
        has_ended = last.is_deleted and last.claim == self._claim  # a higher claim begins behind the end
        if last.rank > rank or has_ended:
            reason = "is that of a deleted topic" if has_ended else f"has epoch {last.leader_epoch}"
            raise Deposed(
                f"{self._folder}: {manifest_name(last.number)} {reason}; this leader {leader_epoch}"
            )
        if last.rank == rank and last.writer != self._writer:
            raise Contested(
                f"{self._folder}: {manifest_name(last.number)} was written by another process under this "
                f"leader's epoch, {leader_epoch}: a second cluster with this id and these metadata writes to "
                "this store. End one of them; the other one goes on with a higher nilometer.tier.claim"
            )

    def check_may_read(self) -> None:
        """Raises ObjectStoreError if the last manifest may name other records than those of this cluster: of
        an archive, which may have some that were deleted, or of a cluster with a higher claim, which may have
        others at the same offsets, under the same leader epochs."""
        if (last := self._last) is None:
            return
        if last.is_archive:
            raise ObjectStoreError(f"{self._folder} is in an archive, which brokers do not read")
        if last.claim > self._claim:
            raise ObjectStoreError(
                f"{self._folder} was taken over by a cluster whose nilometer.tier.claim is {last.claim}, and "
                f"that of this one is {self._claim}: what is there may not be of this one's log"
            )

    def _check_claim(self, last: Manifest) -> None:
        if last.is_archive:
            raise Contested(
                f"{self._folder} is in an archive: brokers copy and remove nothing there. Give them another "
                "nilometer.tier.uri"
            )
        if last.claim > self._claim:
            raise Contested(
                f"{self._folder} was taken over by a cluster whose nilometer.tier.claim is {last.claim}, and "
                f"that of this one is {self._claim}: this one copies and removes nothing there"
            )

    async def _create(self, manifest: Manifest) -> bool:
        name = self._folder + manifest_name(manifest.number)
        data = await with_pauses(encoding_manifest(manifest), self._pause)
        try:
            return await self._store.create(name, data)
        except ObjectStoreError as error:
            self._uncertain = manifest.number
            try:
                return await self._store.get(name) == data  # the answer may have been lost, not the write
            except ObjectNotFound:
                raise error from None

    async def prune(self) -> None:
        """Let ``head`` name the last manifest, if this process wrote it, and remove old ones. What fails is
        done with the next call, or by who writes the next manifest."""
        last = self._last
        if self.is_pruned or last is None or last.writer != self._writer:
            return
        try:
            await self._store.put(self._folder + HEAD, b"%d" % last.number)
            for number in range(last.oldest, last.number - MANIFESTS_KEPT):
                await self._store.remove(self._folder + manifest_name(number))
                self._removed_below = number + 1
        except ObjectStoreError:
            return
        self.is_pruned = True

    async def _find_start(self) -> Manifest | None:
        """Return a manifest to begin with, the nearer to the end the better; None if there is none."""
        try:
            head = await self._store.get(self._folder + HEAD)
        except ObjectNotFound:
            if self._end >= 0:  # to begin again would bring back a topic whose deletion is not known here yet
                raise ManifestsGone(f"{self._folder} had manifests, and all of them were removed") from None
            # The store may have lost it, or not have it back yet: it is removed after all manifests. A chain
            # that is empty is listed once, since from then on another process writes it from its first one.
            return None if self.is_read else await self._first_listed()
        is_number = head.isdigit() and len(head) <= _DIGITS_MAX
        found = await self._get(int(head)) if is_number else None
        if found is not None and (not found.number or await self._begins_with(found.number - 1, b"")):
            return found
        if (found := await self._first_listed()) is None:  # a delayed write may have set the head back
            raise ManifestsGone(f"{self._folder} has a head, but no manifest")
        return found

    async def _first_listed(self) -> Manifest | None:
        """Return the first of the last manifests, by a listing; None if there is none."""
        prefix = self._folder + manifest_name(0)[:-_DIGITS_MAX]
        for _ in range(_ATTEMPTS_MAX):
            names = await self._store.names(prefix)
            found_numbers = (manifest_number(name.removeprefix(self._folder)) for name in names)
            numbers = {one for one in found_numbers if one is not None}
            if not numbers:
                return None
            first = max(numbers)
            while first - 1 in numbers:  # the highest may be void
                first -= 1
            if (found := await self._get(first)) is not None:
                return found
        raise ObjectStoreError(f"{self._folder}: manifests are removed faster than they can be read")

    async def _still_begins_with(self, start: Manifest | None) -> bool:
        """Return whether ``start``, from which the search began, was not removed meanwhile."""
        if start is not None:
            return await self._begins_with(start.number, manifest_start(start))
        try:
            await self._store.get(self._folder + HEAD, 0, 1)
        except ObjectNotFound:
            return True
        return False

    async def _begins_with(self, number: int, start: bytes) -> bool:
        """Return whether there is a manifest of ``number``, and ``start`` are its first bytes."""
        try:
            found = await self._store.get(self._folder + manifest_name(number), 0, max(len(start), 1))
        except ObjectNotFound:
            return False
        return found.startswith(start)

    async def _get(self, number: int) -> Manifest | None:
        """Return the manifest of ``number``; one with many segments is read in steps."""
        try:
            data = await self._store.get(self._folder + manifest_name(number))
        except ObjectNotFound:
            return None
        return await with_pauses(decoding_manifest(data, number), self._pause)
