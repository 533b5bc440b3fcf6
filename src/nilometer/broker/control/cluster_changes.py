"""Counts what entries of the metadata log changed: elections, and the ISRs of partitions led here.

Elections are counted by the broker that is the controller, ISR changes by the leader of the partition after
the change. So sums over all brokers count each once. What a broker reads of the time before its registration
is not counted.
"""

from __future__ import annotations

from collections.abc import Callable

from nilometer.broker.control.controller import Controller
from nilometer.broker.control.membership import OwnSession
from nilometer.cluster.delta import ImageDelta, PartitionTransition
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import BrokerId
from nilometer.metrics import Distribution


class ClusterChanges:
    def __init__(
        self, broker_id: int, session: OwnSession, controller: Controller, now_us: Callable[[], int]
    ) -> None:
        self._broker_id = BrokerId(broker_id)
        self._session = session
        self._controller = controller
        self._now_us = now_us
        self._unclean_before = self._last_known_before = 0
        self.elections = 0
        """Elections of a member of the ISR, decided by this broker."""
        self.unclean_elections = 0
        """Elections of a replica that may lack committed records, decided by this broker."""
        self.last_known_elections = 0
        """Elections of the last known leader (KIP-966), decided by this broker."""
        self.election_times = Distribution()
        """From the beginning of a decision of this broker that elected leaders until it was folded."""
        self.isr_shrinks = 0
        self.isr_expands = 0

    def on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        elected = 0
        for transition in delta.partitions.values():
            elected += self._count(transition)
        unclean, last_known = self._other_elections(image)
        if self._controller.is_active:
            self.unclean_elections += unclean
            self.last_known_elections += last_known
            self.elections += max(0, elected - unclean - last_known)
            if elected:
                now_us = self._now_us()
                self.election_times.observe(now_us - self._controller.decision_began_us, now_us)

    def on_reload(self, image: ClusterImage) -> None:
        """Skip what a snapshot has summed up: its single changes are not known."""
        self._other_elections(image)

    def _count(self, transition: PartitionTransition) -> bool:
        """Count a change of the ISR; return whether another replica was elected leader."""
        before, after = transition
        if before is None or after is None:
            return False
        if after.leader == self._broker_id and self._session.is_registered:
            self.isr_shrinks += any(member not in after.isr for member in before.isr)
            self.isr_expands += any(member not in before.isr for member in after.isr)
        return after.has_leader and after.leader != before.leader

    def _other_elections(self, image: ClusterImage) -> tuple[int, int]:
        """Return how many unclean and last-known elections the image has since the last call."""
        unclean = image.unclean_elections - self._unclean_before
        last_known = image.last_known_elections - self._last_known_before
        self._unclean_before, self._last_known_before = image.unclean_elections, image.last_known_elections
        return unclean, last_known
