"""Changes of the metadata while no broker runs: a cluster's first users, or a lost administrator's password.

A tool makes the decision that a controller would make, as a controller without a broker: its entry starts a
term of its own, so that one of an earlier controller that still arrives is ignored. The next broker becomes
controller as always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nilometer.cluster.controller.controllership import controllership_entry
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.controller.features import check_format
from nilometer.cluster.entries import Entry, sign
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import NO_LEADER, Incarnation
from nilometer.runtime import Entropy

R = TypeVar("R")
OFFLINE = Incarnation("offline")


def offline_entry(
    image: ClusterImage, cluster_id: str, chance: Entropy, decide: Callable[[ClusterImage], Decision[R]]
) -> tuple[Entry, R]:
    """Return the entry of an offline change, and the reply of its decision.

    In an empty log the entry creates the cluster, with ``cluster_id`` and the features of this version.
    Raises Refusal if the log may have to be read by a version that does not know the records.
    """
    first = controllership_entry(image, NO_LEADER, OFFLINE, chance, cluster_id)
    decision = decide(image)
    records = [*first.records, *(record for unit in decision.units for record in unit)]
    entry = sign(records, first.controllership)
    if image.cluster_id is not None:
        check_format(image, entry.version)
    return entry, decision.reply
