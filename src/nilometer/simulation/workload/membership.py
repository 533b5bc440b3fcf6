"""An operator who changes the cluster's members: a new broker joins and gets its share of replicas; another
one is emptied, shut down cleanly and unregistered. Meanwhile clients and faults continue.

The operator's work at the machines (starting and stopping a broker, checking whether it is empty) is done by
the simulation; requests to the cluster are sent by a separate client process each time.

Invariant: a broker is removed permanently only after the metadata has it fenced and then without any replica:
from then on no replica is placed on it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from nilometer.client.admin.admin import Admin
from nilometer.client.admin.reassignments import alter_reassignments
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import BrokerId
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.world import Host
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError

LOOK_S = 0.5
ASK_AGAIN_S = 3.0
ADMIN_LIMIT_S = 30.0
SHARE = 0.6
"""The probability that a partition gets a replica on the new broker."""


class MembershipPlan(msgspec.Struct, frozen=True, kw_only=True):
    joins_at_s: float
    leaves_at_s: float | None
    """When a broker is removed; None: never. Not before the new broker serves."""
    newcomer_leaves: bool = False
    """Whether the broker to remove is the new one; if not, another one is chosen at random."""


class Membership:
    """The operator, who follows a :class:`MembershipPlan`: adds one broker, and later removes one if the plan
    has a time for it."""

    def __init__(self, cluster: Cluster, clients: Host, plan: MembershipPlan) -> None:
        self._cluster = cluster
        self._clients = clients
        self._plan = plan
        self._chance = random.Random(f"{cluster.world.seed}/membership")
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.error_counts: Counter[str] = Counter()
        self.joined: int | None = None
        self.left: int | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._play())

    def stop(self) -> None:
        """Start no further step; a step in progress is completed."""
        self._stopping = True

    @property
    def is_busy(self) -> bool:
        """Whether a step is in progress. Raises the error of a failed step."""
        if self._task is not None and self._task.done():
            self._task.result()
        return self._task is not None and not self._task.done()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # ---- steps

    async def _play(self) -> None:
        if not await self._sleep_until(self._plan.joins_at_s):
            return
        newcomer = await self._cluster.add(max(self._cluster.known) + 1)
        self.joined = newcomer.id
        while not newcomer.is_serving:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await self._give_share(newcomer)
        if self._plan.leaves_at_s is None or not await self._sleep_until(self._plan.leaves_at_s):
            return
        staying = [node for node in self._cluster.nodes.values() if node is not newcomer]
        leaver = newcomer if self._plan.newcomer_leaves else self._chance.choice(staying)
        await self._take_out(leaver)
        self.left = leaver.id

    async def _sleep_until(self, at_s: float) -> bool:
        """Wait until ``at_s``; return False if :meth:`stop` was called before."""
        while self._cluster.world.loop.time() < at_s and not self._stopping:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        return not self._stopping

    async def _give_share(self, newcomer: BrokerNode) -> None:
        image = self._cluster.newest_image
        targets: dict[TopicPartition, Sequence[int]] = {}
        for name, state in _partitions(image, None) if image is not None else ():
            if self._chance.random() < SHARE and newcomer.id not in state:
                kept = self._chance.sample(state, len(state) - 1)
                targets[name] = [newcomer.id, *kept] if self._chance.random() < 0.5 else [*kept, newcomer.id]
        await self._reassign(targets)

    async def _take_out(self, leaver: BrokerNode) -> None:
        leaver.leaving = True
        self._note(f"{leaver.name} is to go")
        while True:
            await self._empty(leaver)
            await self._until(self._has_all_voters)
            leaver.retired = True
            while leaver.is_running:
                leaver.stop()
                await asyncio.sleep(LOOK_S)
            await self._until(lambda: self._is_fenced(leaver))
            if not self._replicas_on(leaver):
                break
            leaver.retired = False  # a replica was placed on it at the last moment
            leaver.start()
            await self._until(lambda: leaver.is_serving)
        await self._unregister(leaver)
        self._cluster.remove(leaver)
        self._note(f"{leaver.name} is removed")

    def _has_all_voters(self) -> bool:
        """Whether a voter of the quorum may be down until its broker has been taken out."""
        quorum = self._cluster.quorum
        return quorum is None or not quorum.is_replacing

    async def _empty(self, leaver: BrokerNode) -> None:
        asked_at_s = -ASK_AGAIN_S
        while self._cluster.newest_image is None or self._replicas_on(leaver):
            now_s = self._cluster.world.loop.time()
            if now_s - asked_at_s >= ASK_AGAIN_S:
                await self._reassign(self._moves_away_from(leaver))
                asked_at_s = now_s
            await asyncio.sleep(LOOK_S)

    def _moves_away_from(self, leaver: BrokerNode) -> dict[TopicPartition, Sequence[int]]:
        image = self._cluster.newest_image
        targets: dict[TopicPartition, Sequence[int]] = {}
        for name, replicas in _partitions(image, leaver.id) if image is not None else ():
            others = [broker for broker in self._cluster.open_to_replicas if broker not in replicas]
            instead = self._chance.choice(others) if others else None
            moved = [instead if broker == leaver.id else broker for broker in replicas]
            targets[name] = [broker for broker in moved if broker is not None]
        return targets

    async def _unregister(self, leaver: BrokerNode) -> None:
        async def ask(admin: Admin) -> None:
            response = await admin.client.send_to_controller(
                ApiKey.UNREGISTER_BROKER, lambda api: api.request(broker_id=leaver.id)
            )
            if response.error_code not in (ErrorCode.none, ErrorCode.broker_id_not_registered):
                raise KafkaError(response.error_code, response.error_message or "")

        while (image := self._cluster.newest_image) is None or image.broker(BrokerId(leaver.id)) is not None:
            await self._ask(ask)
            await asyncio.sleep(LOOK_S)

    # ---- requests to the cluster, and its state

    async def _reassign(self, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
        async def ask(admin: Admin) -> None:
            outcomes = await alter_reassignments(admin, targets)
            for error in outcomes.values():
                if error is not None:
                    self.error_counts[error.code.name] += 1

        if targets:
            await self._ask(ask)

    async def _ask(self, work: Callable[[Admin], object]) -> None:
        settings = {
            "bootstrap.servers": self._cluster.bootstrap_servers,
            "client.id": "operator",
            "request.timeout.ms": 5_000,
            "default.api.timeout.ms": 10_000,
        }

        async def main(runtime: Runtime) -> None:
            try:
                async with asyncio.timeout(ADMIN_LIMIT_S), Admin(runtime, settings) as admin:
                    await work(admin)  # type: ignore[misc]
            except (KafkaError, TimeoutError) as error:
                self.error_counts[error.code.name if isinstance(error, KafkaError) else "timeout"] += 1

        process = self._clients.start("operator", main)
        error = await process.exited
        if error is not None:
            raise error

    def _is_fenced(self, node: BrokerNode) -> bool:
        image = self._cluster.newest_image
        if image is None:
            return False
        known = image.broker(BrokerId(node.id))
        return known is None or known.fenced

    def _replicas_on(self, node: BrokerNode) -> bool:
        image = self._cluster.newest_image
        return image is not None and bool(image.partitions_on(BrokerId(node.id)))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    def _note(self, what: str) -> None:
        self._cluster.world.trace.note("operator", what)


def _partitions(image: ClusterImage, on: int | None) -> list[tuple[TopicPartition, list[int]]]:
    """Return the partitions (``on``: only those on this broker), each with its target replicas."""
    found: list[tuple[TopicPartition, list[int]]] = []
    for key, state in image.partitions() if on is None else image.partitions_on(BrokerId(on)):
        topic = image.topic_by_id(key.topic_id)
        if topic is not None:
            replicas = [int(broker) for broker in state.replicas if broker not in state.removing]
            found.append((TopicPartition(topic.name, key.partition), replicas))
    return found
