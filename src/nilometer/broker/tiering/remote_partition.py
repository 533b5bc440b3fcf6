"""What does a broker do with the tier of a partition that it hosts, in its rounds as the leader or as a
follower?

:class:`RemotePartition` owns what this broker knows of the chain, and says which manifest readers may use;
:mod:`.partition_reads` reads by it.

What is decided is in :mod:`nilometer.tier.plan`; here it is carried out, in this order: a segment and its
index are in the store before a manifest names them; a manifest of this leader's epoch is written before
anything local is deleted because of it; the log start offset moves before the segments below leave the
manifest. So at any point the next leader finds the records in the tier or in its log.

A leader's first manifest repeats the last one under its own epoch. From then on no earlier leader can change
the chain, so that leader and followers delete only by manifests of the present epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Generator
from itertools import pairwise
from operator import attrgetter
from typing import TypeAlias

import msgspec
from msgspec import structs

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.tiering.parts import RemoteParts
from nilometer.broker.tiering.segment_upload import upload
from nilometer.identifiers import Offset
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.steps import with_pauses
from nilometer.storage.errors import CorruptRecordFound, OffsetInTier, OffsetOutOfRange
from nilometer.storage.tiering import SealedSegment, crc_at, is_unchanged, sealed_segments
from nilometer.tier import plan
from nilometer.tier.chain import Chain, Contested, Deposed, ManifestsGone
from nilometer.tier.format import (
    DamagedObject,
    Manifest,
    RemoteSegment,
    Sums,
    TopicFacts,
    manifest_name,
    partition_folder,
)
from nilometer.tier.lineage import BEHIND_MS_MAX, AsOf, LogLineage, WriterAhead
from nilometer.wire.errors import KafkaError
from nilometer.wire.own_apis import TierState

Decision: TypeAlias = Generator[int, None, Manifest | None]
"""Makes the next manifest of the last one, in steps; None if it stays the last."""
logger = logging.getLogger("nilometer.broker.tiering")

FOLLOWER_LOOK_ROUNDS = 2
"""Once in so many rounds a follower looks whether what its log may delete is still in the tier."""
LOOK_AGAIN_MS = 1_000
"""So long searches by time do not read the chain again for what it lacks: another broker has to copy it."""


class TierLost(Exception):
    """The store lacks records that were deleted locally because they were in it."""


class MetadataBehind(Exception):
    """The chain was written by brokers that knew more of the metadata log than this cluster has."""


class RemoteTraffic(msgspec.Struct):
    """Counts of one topic since this broker started."""

    copied_bytes: int = 0
    copied_segments: int = 0
    copy_errors: int = 0
    fetched_bytes: int = 0
    fetch_requests: int = 0
    fetch_errors: int = 0
    deleted_segments: int = 0
    delete_errors: int = 0


class RemotePartition:
    def __init__(
        self,
        partition: Partition,
        parts: RemoteParts,
        facts: Callable[[Partition], TopicFacts],
        traffic: RemoteTraffic,
    ) -> None:
        self.partition = partition
        self.traffic = traffic
        self._parts = parts
        self._facts = facts
        self.folder = partition_folder(parts.cluster_id, partition.key.topic_id, partition.key.partition)
        self._chain = Chain(parts.store, self.folder, parts.writer, parts.claim, parts.pause)
        self._using_chain = asyncio.Lock()
        self._readings_begun = self._last_reading = 0
        """How often the chain was read, and the number of the last time that succeeded: of several that wait
        to read it again one does."""
        self._led_epoch = -1
        self.had_led = partition.has_leader_role
        """Whether this broker has led the partition, with this replica or one before it: then it removes what
        is in the tier when the topic is deleted."""
        self._summed: Manifest | None = None
        """The last manifest of which :attr:`_sums` are: many segments are summed up in steps, in rounds."""
        self._sums = Sums(0, -1)
        self.newest_epoch = partition.leader_epoch
        """The newest leader epoch of the partition that is known here."""
        self._deposed_since_ms: int | None = None
        """Since when this broker has led, and may not write; None if it may."""
        self._lineage = LogLineage(parts.claim)
        self._writer = WriterAhead(parts.claim)
        self._orphans_since_ms: int | None = None
        """When an attempt may last have left objects that no manifest names; None if all were removed."""
        self._known_number = -1
        """The number of the last manifest that was looked at, whether it is late."""
        self._late: tuple[plan.LateManifest, ...] = ()
        """The late manifests of this process that appeared within the last grace period."""
        self._sealed_key: tuple[int, ...] = ()
        self._sealed: tuple[plan.LocalSegment, ...] = ()
        self._bound_by: tuple[Manifest | None, Offset] | None = None
        """The manifest, and the log start offset, for which :attr:`_bound` was found."""
        self._bound = 0
        self._readable_by: tuple[Manifest, int, Manifest] | None = None
        """A manifest, how many of its segments may be read, and a manifest with these."""
        self._looked: tuple[object, int] | None = None
        """:attr:`_bound_by` when the chain was last read in vain for what is lacking, and the time."""
        self._rounds_since_noted = 0
        """How many rounds as a follower have begun since this broker noted what its log may delete."""
        self.is_queued = False
        self.error: str | None = None
        """Why the last round did not end; None if it did."""
        self._failing_since_ms = 0
        self.lag = plan.NOTHING_MISSING
        """What was not in the tier after the last round that this broker has led."""

    @property
    def manifest(self) -> Manifest | None:
        """The last manifest as this broker knows it, which may be outdated; None if there is none."""
        return self._chain.last

    def on_role_changed(self) -> None:
        """Forget what is in the tier, which another epoch's leader may have cut; note who leads."""
        self.partition.log.note_tiered(0)
        self.had_led |= self.partition.has_leader_role
        self.newest_epoch = max(self.newest_epoch, self.partition.leader_epoch)

    @property
    def remote_bytes(self) -> int:
        """The bytes of log files in the tier, as of the last manifest that was summed up."""
        return self._sums.log_bytes

    def fail(self, reason: str) -> None:
        """Note why a round did not end."""
        if self.error is None:
            self._failing_since_ms = self._parts.runtime.clock.monotonic_ms()
        self.error = reason

    def state(self) -> TierState:
        """Describe the tier of a partition that is led here, for operators."""
        now_ms = self._parts.runtime.clock.monotonic_ms()
        state = TierState(
            end_offset=-1,
            error=self.error or "",
            failing_ms=0 if self.error is None else now_ms - self._failing_since_ms,
        )
        if not self._chain.is_read:
            return state
        manifest, newest = self._summed or self._last_or_first, self._sums.newest_ms
        state = structs.replace(
            state, end_offset=manifest.end_offset, size_bytes=self._sums.log_bytes, newest_ms=newest
        )
        if not self.partition.log.config.remote_storage_enable:
            return state  # nothing is to be copied
        unsafe = plan.not_tiered(manifest, self.view(), self.partition.replica.high_watermark)
        return structs.replace(
            state,
            lag_segments=unsafe.sealed,
            lag_bytes=unsafe.sealed_bytes,
            oldest_segment=unsafe.oldest,
            missing_records=unsafe.records,
            missing_bytes=unsafe.bytes,
            missing_ms=-1 if newest < 0 or not unsafe.records else max(0, self._now_ms - newest),
        )

    # -- rounds

    async def run_round(self) -> bool:
        """Do what is due, but copy only one segment, and remove only some objects; return whether there are
        more of them.

        Raises ObjectStoreError, DamagedObject, TierLost, MetadataBehind, Deposed; those of the log.
        """
        if self.partition.is_led_here:
            try:
                return await self._lead(self.partition.leader_epoch)
            except (Deposed, TierLost, MetadataBehind):
                self.partition.log.note_tiered(0)  # what was noted before may be named no more
                raise
        self.lag = plan.NOTHING_MISSING
        self._rounds_since_noted += 1
        if self._awaits_tier:
            await self._look()
        return False

    @property
    def _awaits_tier(self) -> bool:
        """Whether a local segment could be deleted once it is known to be in the tier; or has been known for
        so long that it may be there no more."""
        log = self.partition.log
        following = log.segments.higher(log.segments.first.base_offset)
        if following is None:
            return False
        is_old = self._rounds_since_noted >= FOLLOWER_LOOK_ROUNDS
        return is_old or following.base_offset > log.tiered_offset

    async def _look(self) -> None:
        await self._read_chain()
        await self._note_tiered()
        self._check_lineage()

    async def _lead(self, epoch: int) -> bool:
        if epoch != self._led_epoch:
            self._led_epoch, self._orphans_since_ms = epoch, self._monotonic_ms
            self._deposed_since_ms = None
        elif self._has_ended:
            return False
        manifest = await self._read_chain()
        self._check_may_lead(epoch)
        self._check_lineage()
        if manifest is not None and self._is_behind(manifest):
            return False
        view = self.view()
        if await self._lacks_records():
            raise TierLost(
                f"the tier lacks records of {self.partition} between offsets {view.log_start_offset} and "
                f"{view.local_start_offset}, which were in it. Is nilometer.tier.uri right? To go on without "
                f"them, delete the records below {view.local_start_offset}"
            )
        if await self._write(epoch, self._claimed):
            self._orphans_since_ms = self._monotonic_ms  # until now an earlier leader could begin to copy
            async with self._using_chain:
                await self._compare()  # what is left of a lower claim was not compared with the log before
            self._check_lineage()
        await self._note_tiered()
        if self.partition.log.config.remote_storage_enable:
            await self._each(epoch, self._copy_next, self._remove_dropped, self._expire, self._tidy)
        else:
            await self._each(epoch, self._give_up, self._remove_dropped, self._tidy)
        is_more_due = self._wanted is not None or bool(await self._due_removals())
        return self._leads(epoch) and is_more_due

    async def _each(self, epoch: int, *steps: Callable[[int], Awaitable[None]]) -> None:
        """Take all steps, also if one fails: a store that is full takes no more until some is removed. Raises
        the first error of them; at once Deposed, and ManifestsGone."""
        errors = list[Exception]()
        for step in steps:
            try:
                await step(epoch)
            except ManifestsGone:
                raise
            except (ObjectStoreError, DamagedObject, KafkaError, OSError) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def _give_up(self, epoch: int) -> None:
        """Name no segment any more: the topic is tiered no more."""
        self._advance_log_start(self.partition.log.local_start_offset)
        await self._write(epoch, self._emptied)

    async def _tidy(self, epoch: int) -> None:
        async with self._using_chain:
            await self._chain.prune()
        await self._sweep(epoch)

    def _check_may_lead(self, epoch: int) -> None:
        """Raises Deposed; Contested if this broker does not learn who has deposed it."""
        try:
            self._chain.check_may_write(epoch)
        except Contested:
            raise
        except Deposed as reason:
            if self._deposed_since_ms is None:
                self._deposed_since_ms = self._monotonic_ms
            if self._leads(epoch) and self._monotonic_ms - self._deposed_since_ms >= BEHIND_MS_MAX:
                raise Contested(
                    f"{reason}. By its metadata this one leads: a second cluster with this id writes to this "
                    "store, or the metadata were restored from an older backup. If no broker of the other "
                    f"cluster runs, set nilometer.tier.claim={self._parts.claim + 1} on all brokers to go on"
                ) from None
            raise
        self._deposed_since_ms = None

    def _is_behind(self, manifest: Manifest) -> bool:
        """Return whether this broker's metadata are older than those of the manifest's writer.

        For a moment they may be, or if they were restored from an older backup. Raises MetadataBehind.
        """
        known, wanted = self._parts.metadata_entry(), manifest.topic.metadata_entry
        ahead_ms = self._writer.ahead_ms(manifest, known, self._monotonic_ms)
        if ahead_ms is not None and ahead_ms >= BEHIND_MS_MAX:
            raise MetadataBehind(
                f"the tier of {self.partition} was written by brokers that knew metadata entry {wanted}, and "
                f"this cluster's last one is {known}. Were its metadata restored from an older backup? If no "
                f"broker of the former cluster runs, set nilometer.tier.claim={manifest.claim + 1} on all "
                "brokers to go on; until then nothing is copied, and nothing removed"
            )
        return ahead_ms is not None

    def _goes_on_from(self, manifest: Manifest) -> bool:
        """Whether the manifest is one of this leader, or of one before it in this cluster: of no archive."""
        rank = self._parts.claim, self.partition.leader_epoch
        is_before = manifest.rank < rank or (manifest.rank == rank and manifest.writer == self._parts.writer)
        is_own = self._lineage.foreign is None and not manifest.is_archive
        return is_before and is_own and not self._writer.is_ahead(manifest, self._parts.metadata_entry())

    def _is_current(self, manifest: Manifest, leader_epoch: int) -> bool:
        """Whether the leader of this epoch wrote it, and nothing of it is about to be given up: the topic was
        not tiered again since."""
        since = self._parts.tiered_since(self.partition.key.topic_id)
        return manifest.rank == (self._parts.claim, leader_epoch) and manifest.topic.metadata_entry >= since

    def _claimed(self, manifest: Manifest) -> Decision:
        """Return the manifest with which this leader begins, and begins again if the topic is tiered again;
        None if it has begun, or has nothing to copy.

        An object without any manifest thus belongs to a topic that was deleted, or to a chain that was lost.
        """
        cut = self._lineage.divergent(manifest, self.view(), self._as_of)
        if cut:
            logger.warning(
                "The tier of %s has records from offset %d to %d that %s",
                self.partition,
                cut[0].base_offset,
                cut[-1].last_offset,
                "a cluster with a lower claim has copied: this log's, which ends before offset "
                f"{self.partition.log.log_end_offset}, take their place, and they are removed"
                if manifest.claim < self._parts.claim
                else "are not those of its leader: they are removed. An unclean election has lost them",
            )
            return (yield from manifest.dropping(cut, self._now_ms))
        if self._is_current(manifest, self._led_epoch):
            return None
        begins = manifest.leader_epoch >= 0 or self._next_to_copy(manifest) is not None
        return manifest if begins else None

    @property
    def _has_ended(self) -> bool:
        """Whether the topic is tiered no more, and nothing of it is left in the store but the last manifests,
        which void what a former leader still creates."""
        if self.partition.log.config.remote_storage_enable or self._orphans_since_ms is not None:
            return False
        last = self._chain.last
        is_empty = last is None or (self._chain.is_pruned and not (last.segments or last.dropped))
        return self._chain.is_read and is_empty

    def _emptied(self, manifest: Manifest) -> Decision:
        """Return the next manifest of a topic that is tiered no more; None if it has no segment, or the topic
        is tiered again."""
        if not manifest.segments:
            return None
        emptied = yield from manifest.dropping(manifest.segments, self._now_ms)
        return None if self.partition.log.config.remote_storage_enable else emptied

    @property
    def _wanted(self) -> SealedSegment | None:
        """The segment to copy next; None if none is to be copied now."""
        config = self.partition.log.config
        if not (config.remote_storage_enable and config.is_copied_to_tier):
            return None
        return self._next_to_copy(self._last_or_first)

    async def _copy_next(self, epoch: int) -> None:
        self._measure_lag()
        if self._leads(epoch) and (sealed := self._wanted) is not None:
            await self._copy(epoch, sealed)
            self._measure_lag()

    def _next_to_copy(self, manifest: Manifest) -> SealedSegment | None:
        log, view = self.partition.log, self.view()
        found = plan.next_to_copy(manifest, view)
        if found is None:
            return None
        return next(
            one
            for one in sealed_segments(log, found.base_offset, view.last_stable_offset)
            if one.base_offset == found.base_offset
        )

    async def _copy(self, epoch: int, sealed: SealedSegment) -> None:
        log = self.partition.log
        before, self._orphans_since_ms = self._orphans_since_ms, self._monotonic_ms
        try:
            entry = await self._upload(sealed)
        except (OSError, KafkaError, DamagedObject):
            if is_unchanged(log, sealed):
                raise
            return  # it was deleted, or the log truncated, while it was read

        def named(manifest: Manifest) -> Decision:
            wanted = self._next_to_copy(manifest)
            is_wanted = wanted is not None and wanted.base_offset == entry.base_offset
            if not is_wanted or not is_unchanged(log, sealed):
                return None
            return (yield from manifest.adding(entry, self._now_ms))

        try:
            is_named = await self._write(epoch, named)
        except Deposed:
            await self._discard(entry)
            raise
        if not is_named:
            await self._discard(entry)
            return
        self._orphans_since_ms = before
        self.traffic.copied_bytes += entry.log_bytes + entry.index_bytes
        self.traffic.copied_segments += 1
        await self._note_tiered()

    async def _upload(self, sealed: SealedSegment) -> RemoteSegment:
        return await upload(self._parts, self.partition.log, sealed, self.folder)

    async def _discard(self, entry: RemoteSegment) -> None:
        """Remove what was uploaded, unless the chain names it after all."""
        last = await self._read_chain()
        if self._chain.is_settled and not (last is not None and last.mentions(entry)):
            for name in (entry.log_name, entry.index_name):
                await self._parts.store.remove(self.folder + name)

    async def _expire(self, epoch: int) -> None:
        config = self.partition.log.config
        retention = plan.Retention(-1, -1)  # with an empty cleanup.policy all is kept
        if config.is_deleted_by_retention:
            retention = plan.Retention(config.retention_ms, config.retention_bytes)

        def gone(manifest: Manifest) -> Generator[int, None, tuple[RemoteSegment, ...]]:
            return plan.expiring(manifest, self.view(), retention, self._now_ms)

        def remaining(manifest: Manifest) -> Decision:
            # Time may have passed, or the high watermark have kept the log start from moving so far: what is
            # not below that must stay, since readers are told that it is there.
            start = self.partition.log.log_start_offset
            found = yield from gone(manifest)
            expired = found[: bisect_right(found, start, key=attrgetter("end_offset"))]
            return (yield from manifest.dropping(expired, self._now_ms)) if expired else None

        async with self._using_chain:  # no reader reads the chain on between
            if (manifest := await self._checked(epoch)) is None:
                return
            found = await with_pauses(gone(manifest), self._parts.pause)
            if not self._leads(epoch):
                return
            self._advance_log_start(plan.next_log_start(found, self.view()))
        await self._write(epoch, remaining)

    async def _due_removals(self) -> tuple[str, ...]:
        """Return the names of some objects whose grace period is over."""
        if (last := self._chain.last) is None:
            return ()
        due = plan.due_removals(last, self._now_ms, self._parts.grace_ms, self._late)
        return await with_pauses(due, self._parts.pause)

    async def _remove_dropped(self, epoch: int) -> None:
        """Remove some of the objects whose grace period is over, as long as this broker leads."""
        removed, error = list[str](), None
        await self._write(epoch, lambda last: plan.redating(last, self._now_ms, self._parts.grace_ms))
        try:
            async with self._using_chain:
                await self._checked(epoch)
                due = await self._due_removals()
            for name in due:
                if not self._leads(epoch):
                    break
                await self._parts.store.remove(self.folder + name)
                self.traffic.deleted_segments += name.endswith(".log")
                removed.append(name)
        except ObjectStoreError as found:
            self.traffic.delete_errors += 1
            error = found
        if removed:  # a store that fails now and then does not have all of them removed again
            await self._write(epoch, lambda manifest: plan.removing(manifest, removed))
        if error is not None:
            raise error

    async def _sweep(self, epoch: int) -> None:
        """Remove the objects that failed attempts left, once no write of them can still be on its way.

        Not before this leader has written: then no object of an earlier leader can still become part of the
        chain. And what is listed is judged by a manifest that is read afterwards: a later leader copies only
        after it has written, so what it has copied is never taken for a failed attempt.
        """
        since_ms = self._orphans_since_ms
        if since_ms is None or self._monotonic_ms < since_ms + self._parts.grace_ms:
            return
        names = await self._parts.store.names(self.folder)
        manifest = await self._read_chain()
        if manifest is None and self._chain.is_settled:
            self._orphans_since_ms = None  # what is there is of a topic that was deleted
        if manifest is None or not self._is_current(manifest, epoch) or not self._chain.is_settled:
            return
        if manifest.writer != self._parts.writer:
            return  # another cluster copies under this epoch
        manifest = structs.replace(manifest, oldest=self._chain.oldest)
        listed = (name.removeprefix(self.folder) for name in names)
        for own in await with_pauses(plan.orphans(manifest, listed), self._parts.pause):
            logger.info("%s of %s belongs to no segment: it is removed", own, self.partition)
            await self._parts.store.remove(self.folder + own)
        self._orphans_since_ms = None

    async def delete(self) -> None:
        """Remove all, since the topic was deleted. Raises ObjectStoreError, DamagedObject, Contested.

        No round may have looked since another cluster has written there, so what is there is compared first.
        """
        async with self._using_chain:
            with contextlib.suppress(ManifestsGone):  # they are being removed: that goes on
                await self._chain.read()
                with contextlib.suppress(OSError, KafkaError):  # the log may be removed already
                    await self._compare()
            self._check_lineage()
            await self._chain.remove_all(self._may_end)

    def _may_end(self, last: Manifest) -> bool:
        """Whether this process removes all behind ``last``: if that is of the newest leader epoch, its writer
        does. Raises Contested if it is of a later one, which no leader of this cluster has had."""
        newest = self._parts.claim, self.newest_epoch
        if last.rank > newest:
            raise Contested(
                f"{self.folder}{manifest_name(last.number)} has epoch {last.leader_epoch}, and the last "
                f"leader that is known here had {self.newest_epoch}. Does a second cluster with this id "
                "write to this store?"
            )
        return last.rank < newest or last.writer == self._parts.writer

    # -- what the rounds share

    @property
    def _now_ms(self) -> int:
        return self._parts.runtime.clock.wall_ms()

    @property
    def _monotonic_ms(self) -> int:
        return self._parts.runtime.clock.monotonic_ms()

    def view(self) -> plan.LogView:
        log = self.partition.log
        return plan.LogView(
            log.log_start_offset,
            log.local_start_offset,
            log.log_end_offset,
            log.last_stable_offset(self.partition.replica.high_watermark),
            log.epochs.entries,
            self._sealed_segments(),
            log.size,
        )

    def _sealed_segments(self) -> tuple[plan.LocalSegment, ...]:
        """Return the sealed segments; described again only if there are others."""
        log = self.partition.log
        segments = log.segments
        key = len(segments), segments.first.base_offset, segments.active.base_offset, log.truncations
        if key != self._sealed_key:
            self._sealed_key = key
            self._sealed = tuple(
                plan.LocalSegment(one.base_offset, following.base_offset, one.size)
                for one, following in pairwise(segments)
            )
        return self._sealed

    async def _find_bound(self) -> Offset:
        """Return the offset below which the last manifest has, as far as it is of this log, all that is.

        What is walked over in steps does not depend on the log's end, which moves on meanwhile.
        """
        while True:
            last, start = self._chain.last, self.partition.log.log_start_offset
            if self._bound_by is not None and self._bound_by[0] is last and self._bound_by[1] == start:
                return max(start, min(self._bound, self._own_end(last)))
            bound = await with_pauses(plan.bounding(last, self.view()), self._parts.pause)
            self._bound_by, self._bound = (last, start), bound

    def _own_end(self, manifest: Manifest | None) -> Offset:
        """Return the offset behind the last segment that is of this log; 0 if there is none."""
        segments = () if manifest is None else self._visible(manifest).segments
        return segments[-1].end_offset if segments else 0

    async def _lacks_records(self) -> bool:
        """Whether the last manifest, as far as it is of this log, lacks records that are not here."""
        return await self._find_bound() < self.partition.log.local_start_offset

    @property
    def _has_just_looked(self) -> bool:
        """Whether the chain was read for records that this manifest lacks, and did not go on."""
        return (
            self._looked is not None
            and self._looked[0] is self._bound_by
            and self._monotonic_ms < self._looked[1] + LOOK_AGAIN_MS
        )

    @property
    def _last_or_first(self) -> Manifest:
        last = self._chain.last
        if last is not None:
            return last
        return plan.first_manifest(self._facts(self.partition), self.partition.log.log_start_offset)

    def _leads(self, epoch: int) -> bool:
        return self.partition.is_led_here and self.partition.leader_epoch == epoch

    async def _read_chain(self) -> Manifest | None:
        async with self._using_chain:
            try:
                await self._read_again()
            except DamagedObject:  # what the chain names is unknown now
                self.partition.log.note_tiered(0)
                raise
        async with self._using_chain:  # readers go on meanwhile
            await self._compare()
            self._inherit_log_start()
            await self._sum_up()
            return self._chain.last

    async def _sum_up(self) -> None:
        if (last := self._chain.last) is not None and last is not self._summed:
            sums = await with_pauses(last.summing(), self._parts.pause)
            self._summed, self._sums = last, sums

    async def _read_again(self) -> None:
        """Read the chain, and compare with the log what readers need, who have the rest in the log."""
        self._readings_begun += 1
        await self._chain.read()
        await self._compare(until=self.log_from)
        self._inherit_log_start()
        self._last_reading = self._readings_begun

    @property
    def log_from(self) -> Offset:
        """The first offset that the log itself has."""
        return max(self.partition.log.log_start_offset, self.partition.log.local_start_offset)

    @property
    def _as_of(self) -> AsOf:
        return AsOf(self.partition.leader_epoch, self.partition.log.truncations)

    async def _compare(self, until: Offset | None = None) -> None:
        """Compare what the last manifest names with the log: all, or by the last batches only the segments
        that begin below ``until``."""
        while True:
            await self._compare_epochs()
            if (last := self._chain.last) is None:
                return
            as_of = self._as_of
            segment = self._lineage.to_prove(last, self.view(), as_of)
            first = self._lineage.proven_count(last, self.log_from, as_of)
            if segment is None or (until is not None and last.segments[first].base_offset >= until):
                return
            try:
                crc = await self._crc_in_log(segment)
            except CorruptRecordFound:
                crc = None  # what is damaged here tells nothing about the tier
            except (OffsetInTier, OffsetOutOfRange):
                if as_of == self._as_of and segment.last_offset >= self.log_from:
                    raise
                continue  # it was deleted or truncated here meanwhile
            if as_of == self._as_of:
                self._lineage.prove(segment, crc)

    async def _compare_epochs(self) -> None:
        """Compare what the last manifest names by its epochs, in steps, so that what asks for all of it next
        does not hold the event loop: for a new leader epoch, or a new writer, nothing is compared yet."""
        while (last := self._chain.last) is not None and self._lineage.has_more(last, self._as_of):
            await self._parts.pause()
            if last is self._chain.last and not self._lineage.compare_some(last, self.view(), self._as_of):
                return

    async def _crc_in_log(self, segment: RemoteSegment) -> int | None:
        """Return the CRC of the log's batch where the last one of ``segment`` is; None if nothing is to be
        compared with it."""
        if segment.last_crc is None:
            await self._parts.pause()
            return None
        log, offset = self.partition.log, segment.last_offset
        return await self._parts.runtime.disk.offload(lambda: crc_at(log, offset))

    def _check_lineage(self) -> None:
        """Raises Contested if the last manifest is of another cluster, by what it names."""
        if (foreign := self._lineage.foreign) is None:
            return
        start, local = self.partition.log.log_start_offset, self.partition.log.local_start_offset
        # A higher claim copies again what is on the disks: what this segment has before that, it keeps.
        after = f", once the records below {local} are deleted" if foreign.base_offset < local > start else ""
        raise Contested(
            f"{self.folder}{foreign.log_name} has other records than this broker, under the same leader "
            "epochs: a second cluster with this id and these metadata writes to this store. End one of them; "
            f"the other one goes on with nilometer.tier.claim={self._parts.claim + 1}{after}. Until then "
            "nothing is copied, and nothing removed"
        )

    async def _find_log_start(self) -> None:
        """Begin where an earlier leader has said, before the first round does: compare all for it."""
        if self.partition.is_led_here:
            await self._compare()
            self._inherit_log_start()

    def _inherit_log_start(self) -> None:
        """Begin where an earlier leader has said, of which this log may not know yet; not before all that the
        last manifest names is compared with the log."""
        last = self._chain.last
        if last is None or not self.partition.is_led_here:
            return
        view, epoch = self.view(), self.partition.leader_epoch
        is_compared = self._lineage.to_prove(last, view, self._as_of) is None
        if is_compared and self._goes_on_from(last):
            self._advance_log_start(plan.inherited_log_start(last, view, epoch, self._lineage.same_until))

    def _advance_log_start(self, offset: int) -> None:
        """Raise the log start offset: an earlier leader, or this one, has given up the records below."""
        log, high_watermark = self.partition.log, self.partition.replica.high_watermark
        if log.advance_log_start_offset(min(offset, high_watermark), high_watermark):
            self.partition.notify_log_start()
            logger.info("%s now begins at offset %d", self.partition, log.log_start_offset)

    async def _write(self, epoch: int, decide: Callable[[Manifest], Decision]) -> bool:
        """Write what ``decide`` makes of the last manifest; return whether it made one. Raises Deposed.

        A reader may have read the chain on since the round did, so what is there is compared first.
        """
        async with self._using_chain:
            while True:
                await self._checked(epoch)
                self._inherit_log_start()
                following = await with_pauses(decide(self._last_or_first), self._parts.pause)
                if following is None:
                    return False
                if not self._leads(epoch):
                    raise Deposed(f"{self.partition} has another leader now")
                following = structs.replace(
                    following,
                    written_ms=self._now_ms,
                    log_start_offset=self.partition.log.log_start_offset,
                    topic=self._facts(self.partition),
                    is_deleted=False,  # the last one is, where a cluster with a lower claim has ended it
                )
                try:
                    if await self._chain.append(epoch, following):
                        self._note_late()
                        await self._compare_epochs()
                        await self._sum_up()
                        return True
                except ObjectStoreError:
                    self._orphans_since_ms = self._monotonic_ms  # its manifest may be created later
                    raise

    async def _checked(self, epoch: int) -> Manifest | None:
        """Return the last manifest that is known, which the leader of ``epoch`` may go by. Raises Deposed."""
        await self._compare()
        self._chain.check_may_write(epoch)
        self._check_lineage()
        self._note_late()
        return self._chain.last

    def _note_late(self) -> None:
        """Note it if the last manifest is one of this process, and has just appeared long after it was made.

        So late manifests of former leaders are not noted: these could write only until this leader did.
        """
        last = self._chain.last
        if last is None or last.number == self._known_number:
            return
        self._known_number, now_ms, grace_ms = last.number, self._now_ms, self._parts.grace_ms
        late = plan.late_manifest(last.written_ms, now_ms, grace_ms)
        if late is not None and last.writer == self._parts.writer:
            recent = (one for one in self._late if now_ms - one.appeared_ms < grace_ms)
            self._late = (*recent, late)

    async def _note_tiered(self) -> None:
        """Let the log delete what the last manifest has, if that is of the present epoch; else nothing."""
        async with self._using_chain:  # no reader reads the chain on between
            await self._compare()
            bound, last = await self._find_bound(), self._chain.last
            if not self.partition.log.config.remote_storage_enable:
                return
            self._rounds_since_noted = 0
            if last is None or not self._is_current(last, self.partition.leader_epoch):
                bound = 0
            else:
                compared = self._lineage.proven_count(last, self.log_from, self._as_of)
                if compared < len(last.segments):  # of what was appended meanwhile, or truncated
                    bound = min(bound, last.segments[compared].base_offset)
            self.partition.log.note_tiered(bound)

    def _measure_lag(self) -> None:
        self.lag = plan.not_tiered(self._last_or_first, self.view(), self.partition.replica.high_watermark)

    # -- what readers may use

    def _visible(self, manifest: Manifest) -> Manifest:
        """Return the manifest without what is not of this log."""
        return self._lineage.own(manifest, self.partition.log.log_end_offset, self._as_of, self.view)

    async def readable(self, *, is_again: bool) -> Manifest:
        """Return the last manifest as far as readers may use it: up to the first segment that ends in the
        log, too, and has still to be compared with it.

        ``is_again``: the chain is read again for it. Raises ObjectStoreError, DamagedObject.
        """
        if is_again or not self._chain.is_read:
            begun = self._readings_begun
            async with self._using_chain:
                if not self._chain.is_read or (is_again and self._last_reading <= begun):
                    await self._read_again()
        await self._compare_epochs()
        self._chain.check_may_read()
        return self._readable

    @property
    def _readable(self) -> Manifest:
        visible = self._visible(self._last_or_first)
        count = self._lineage.proven_count(visible, self.log_from, self._as_of)
        if count == len(visible.segments):
            return visible
        if self._readable_by is None or self._readable_by[0] is not visible or self._readable_by[1] != count:
            kept = structs.replace(visible, segments=visible.segments[:count])
            self._readable_by = visible, count, kept
        return self._readable_by[2]

    async def has_what_was_deleted_here(self) -> bool:
        """Whether the last manifest has all records that are not here; the chain is read again for what it
        lacks, if that was not just done in vain. Raises as :meth:`readable`."""
        await self._compare_epochs()
        if await self._lacks_records():  # another one has copied them since the chain was read here
            async with self._using_chain:
                if await self._lacks_records() and not self._has_just_looked:  # for another search
                    await self._read_again()
                    if await self._lacks_records():
                        await self._find_log_start()
                    is_in_vain = await self._lacks_records()
                    self._looked = (self._bound_by, self._monotonic_ms) if is_in_vain else None
            self._chain.check_may_read()
        return not await self._lacks_records()

    async def look_for_log_start(self) -> None:
        """Begin where an earlier leader has said, for a reader that comes before the first round."""
        async with self._using_chain:
            await self._find_log_start()

    async def check_own(self) -> None:
        """Read the chain and compare it with the log, for a replica that is to begin behind what it names.

        Raises Deposed, ObjectStoreError, DamagedObject.
        """
        epoch = self.partition.leader_epoch
        await self._read_chain()
        async with self._using_chain:
            await self._checked(epoch)

    async def manifest_of_present_leader(self) -> Manifest:
        """Return the last manifest if the present leader has written it. Raises ObjectStoreError if it has
        not, and as :meth:`readable`."""
        last = await self._read_chain()
        if last is None or not self._is_current(last, self.partition.leader_epoch):
            raise ObjectStoreError(f"{self.folder}: the present leader has not written to the tier yet")
        return last
