"""Faults of what brokers believe of each other: clients that act as brokers are to be refused."""

from __future__ import annotations

from planted_faults.planting import Patch, PlantedFault

from nilometer.broker.api import between_brokers
from nilometer.broker.api.access import Rights
from nilometer.broker.control import broker_peers
from nilometer.cluster import cluster_secret
from nilometer.cluster.cluster_secret import ClusterSecret, ProofExchange, Side
from nilometer.simulation.plan import Kind


def believe_clients(patch: Patch) -> None:
    patch.setattr(Rights, "why_not_broker", lambda self, request, broker_id: None)


def accept_any_proof(patch: Patch) -> None:
    patch.setattr(between_brokers, "is_proof", lambda secret, side, exchange, proof: True)


def forget_the_direction(patch: Patch) -> None:
    proof = cluster_secret.broker_proof

    def of_both_sides(secret: ClusterSecret, side: Side, exchange: ProofExchange) -> bytes:
        return proof(secret, Side.ACCEPTOR, exchange)

    for module in (cluster_secret, between_brokers, broker_peers):
        patch.setattr(module, "broker_proof", of_both_sides)


FAULTS = (
    PlantedFault(
        name="believe-clients",
        what="what only brokers ask is served to every client",
        plant=believe_clients,
        kinds=(Kind.RESET,),
        seeds=5,
        rogue=True,
    ),
    PlantedFault(
        name="accept-any-proof",
        what="the proof of a connecting broker is not looked at",
        plant=accept_any_proof,
        kinds=(Kind.RESET,),
        seeds=5,
        rogue=True,
    ),
    PlantedFault(
        name="forget-the-direction",
        what="a broker's own proof can be sent back to it",
        plant=forget_the_direction,
        kinds=(Kind.RESET,),
        seeds=5,
        rogue=True,
    ),
)
