"""Faults of the metadata: the store, the fold, the controller."""

from __future__ import annotations

from typing import Any

import msgspec
from planted_faults.planting import Patch, PlantedFault

from nilometer.broker.api import metadata
from nilometer.broker.replicas import leader_liveness
from nilometer.broker.replicas.leader_liveness import LeaderLiveness
from nilometer.cluster.controller import brokers, isr_changes
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.prepared_entry import Preparation
from nilometer.coordination.local.store import LocalStore
from nilometer.simulation.disk import VirtualDisk
from nilometer.simulation.plan import Kind

STOPPED_FOR_LONG = (Kind.PAUSE, Kind.SESSION, Kind.STORE_STALL)


def lose_a_signal(patch: Patch) -> None:
    wait = LocalStore.wait_changed
    heard: dict[LocalStore, int] = {}

    async def most(self: LocalStore, seen: int) -> int:
        heard[self] = heard.get(self, 0) + 1
        found = await wait(self, seen)
        return found if heard[self] % 10 else await wait(self, found)

    patch.setattr(LocalStore, "wait_changed", most)


def overwrite_entries(patch: Patch) -> None:
    link = VirtualDisk.link

    def over(self: VirtualDisk, source: str, target: str) -> None:
        if "/entries/" in target and self._disk.find(target) is not None:
            folder, name = self._disk.parent(target)
            folder.change({name: None})
        link(self, source, target)

    patch.setattr(VirtualDisk, "link", over)


def lose_settings(patch: Patch) -> None:
    change = ClusterImage._change_config

    def sometimes(self: ClusterImage, record: Any, delta: Any) -> None:
        if self.number % 4:
            change(self, record, delta)

    patch.setattr(ClusterImage, "_change_config", sometimes)


def keep_deleted_topics(patch: Patch) -> None:
    patch.setattr(ClusterImage, "_delete_topic", lambda self, record, delta: None)


def keep_the_fenced_in_sync(patch: Patch) -> None:
    patch.setattr(isr_changes, "_why_ineligible", lambda image, member: None)


def keep_the_leader_epoch(patch: Patch) -> None:
    change = Preparation.change

    def same_epoch(self: Preparation, record: Any) -> None:
        kept = msgspec.structs.replace(record, leader_epoch=None)
        change(self, kept if self.image.number % 3 == 0 else record)

    patch.setattr(Preparation, "change", same_epoch)


def trust_unclean_restarts(patch: Patch) -> None:
    patch.setattr(brokers, "_forfeit", lambda draft, known, registration: iter(()))


def never_find_a_leader_again(patch: Patch) -> None:
    careful = LeaderLiveness.on_connected

    def on_connected(self: LeaderLiveness, broker_id: Any, connection: Any) -> None:
        lost = self._lost.get(broker_id)
        careful(self, broker_id, connection)
        if lost is not None:
            self._lost[broker_id] = lost

    patch.setattr(LeaderLiveness, "on_connected", on_connected)
    patch.setattr(leader_liveness, "LOST_MAX_MS", 1 << 40)


def repeat_old_metadata(patch: Patch) -> None:
    patch.setattr(metadata, "_state", lambda parts: parts.leader_liveness.findings())


FAULTS = (
    PlantedFault(
        name="lose-a-signal",
        what="every tenth signal of the store is lost",
        plant=lose_a_signal,
        kinds=(Kind.CRASH,),
        seeds=20,
    ),
    PlantedFault(
        name="overwrite-entries",
        what="a number of the metadata log can be won twice",
        plant=overwrite_entries,
        kinds=STOPPED_FOR_LONG,
        seeds=20,
        churn=True,
    ),
    PlantedFault(
        name="lose-settings",
        what="some changes of settings are not applied",
        plant=lose_settings,
        kinds=(Kind.RESET,),
        seeds=5,
        churn=True,
    ),
    PlantedFault(
        name="keep-deleted-topics",
        what="deletions of topics are not applied",
        plant=keep_deleted_topics,
        kinds=(Kind.RESET,),
        seeds=5,
        churn=True,
    ),
    PlantedFault(
        name="keep-the-fenced-in-sync",
        what="the controller lets fenced brokers and past incarnations into the ISR (KIP-841, KIP-903)",
        plant=keep_the_fenced_in_sync,
        kinds=(Kind.PAUSE, Kind.SESSION),
        seeds=20,
    ),
    PlantedFault(
        name="keep-the-leader-epoch",
        what="some changes of leader do not begin a new epoch",
        plant=keep_the_leader_epoch,
        kinds=(Kind.CRASH,),
        seeds=10,
    ),
    PlantedFault(
        name="never-find-a-leader-again",
        what="a leader whose fetch connection was lost once is taken for dead until it starts again",
        plant=never_find_a_leader_again,
        kinds=(Kind.RESET, Kind.ISOLATE),
        seeds=10,
    ),
    PlantedFault(
        name="repeat-old-metadata",
        what="a kept Metadata response is sent again although the metadata has changed",
        plant=repeat_old_metadata,
        kinds=(Kind.CRASH,),
        seeds=10,
    ),
    PlantedFault(
        name="trust-unclean-restarts",
        what="a broker whose machine lost power keeps its place in the ISR, or as an eligible leader",
        plant=trust_unclean_restarts,
        kinds=(Kind.POWER, Kind.CRASH_ALL),
        seeds=20,
        one_machine=False,
        flushes=False,
        mean_gap_s=2.0,
    ),
)
