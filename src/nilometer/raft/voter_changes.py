"""Requests to add, remove or update a voter, and their results: as values and as Kafka's messages (KIP-853).

Error codes and texts are Kafka's where Kafka has one. Of what it reports as time-outs nothing was appended,
but for a change that is not committed in time: the message says so.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from nilometer.identifiers import NO_LEADER, NO_LEADER_EPOCH, BrokerId, LeaderEpoch
from nilometer.raft.control_records import (
    KRAFT_VERSION,
    Endpoint,
    VoterEntry,
    directory_text,
    directory_uuid,
)
from nilometer.raft.exchange import ChangeRefused
from nilometer.raft.messages import NodeAddress
from nilometer.raft.replica import RaftReplica
from nilometer.raft.voters import VoterKey
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message, milliseconds
from nilometer.wire.errors import NONE, ErrorCode
from nilometer.wire.messages import api

CHANGE_VERSIONS: Final = {
    ApiKey.ADD_RAFT_VOTER: (0, 1),
    ApiKey.REMOVE_RAFT_VOTER: (0, 0),
    ApiKey.UPDATE_RAFT_VOTER: (0, 0),
}
"""The versions of each message that are served; the newest one is sent."""
TIMEOUT_MS_MAX: Final = 60_000
ENDPOINTS_MAX: Final = 16
NAME_CHARACTERS_MAX: Final = 255
"""Of a host, and of the name of a listener."""
LABEL_CHARACTERS_MAX: Final = 63
"""Of a part of a host's name between dots (RFC 1035)."""


class AddVoter(NamedTuple):
    voter: VoterEntry
    timeout_ms: int
    waits: bool = True
    """Whether the response waits until the change is committed (KIP-1186)."""


class RemoveVoter(NamedTuple):
    voter: VoterKey


class UpdateVoter(NamedTuple):
    """Where a voter listens now, and which versions it knows."""

    voter: VoterEntry
    epoch: LeaderEpoch
    """The one in which the leader is asked."""


VoterChange: TypeAlias = AddVoter | RemoveVoter | UpdateVoter


class ChangeResult(NamedTuple):
    error: ErrorCode = NONE
    message: str | None = None


DONE: Final = ChangeResult()
NOT_LEADER: Final = ChangeResult(ErrorCode.not_leader_or_follower)
PENDING: Final = ChangeResult(
    ErrorCode.request_timed_out,
    "Request timed out waiting for leader to handle previous voter change request",
)


def why_invalid(change: VoterChange, listener: str | None) -> ChangeResult | None:
    """Return the refusal of a change that no quorum could make; None if it is one to decide.

    ``listener``: the name of the leader's listener of controllers, where a voter must listen, too; None if it
    is not known.
    """
    invalid = ErrorCode.invalid_request
    kind = {AddVoter: "Add", RemoveVoter: "Remove", UpdateVoter: "Update"}[type(change)]
    key = change.voter if isinstance(change, RemoveVoter) else change.voter.key
    if key.node_id < 0 or not key.directory_id:
        return ChangeResult(invalid, f"{kind} voter request didn't include a valid voter")
    if isinstance(change, RemoveVoter):
        return None
    entry = change.voter
    if len(entry.endpoints) > ENDPOINTS_MAX:
        return ChangeResult(invalid, f"{kind} voter request has more than {ENDPOINTS_MAX} endpoints")
    if not all(map(_can_be_looked_up, entry.endpoints)):
        return ChangeResult(invalid, f"{kind} voter request has an endpoint that is no name of a host")
    if not entry.endpoints or (listener and listener not in [one.listener for one in entry.endpoints]):
        given = ", ".join(f"{one.listener}={one.host}:{one.port}" for one in entry.endpoints)
        return ChangeResult(
            invalid,
            f"{kind} voter request didn't include the endpoint (Endpoints(endpoints={{{given}}})) for the "
            f"default listener {listener}",
        )
    lowest, highest = entry.versions
    if not 0 <= lowest <= KRAFT_VERSION <= highest:
        return ChangeResult(
            invalid,
            f"{kind} voter request didn't include kraft.version {KRAFT_VERSION}: {lowest} to {highest}",
        )
    return None


def _can_be_looked_up(endpoint: Endpoint) -> bool:
    listener, host = endpoint.listener, endpoint.host
    if max(len(listener), len(host)) > NAME_CHARACTERS_MAX:
        return False
    labels = host.removesuffix(".").split(".")
    return all(0 < len(label) <= LABEL_CHARACTERS_MAX for label in labels)


def at_listener(entry: VoterEntry, listener: str | None) -> VoterEntry:
    """Return the entry with the endpoint of ``listener`` first: that is where the others connect."""
    endpoints = sorted(entry.endpoints, key=lambda one: one.listener != listener)
    return VoterEntry(entry.key, tuple(endpoints), entry.versions)


def other_cluster(given: str | None, own: str | None) -> ChangeResult | None:
    """Return the refusal of a request for another cluster; None for this one, or where it is not known."""
    if None in (given, own) or given == own:
        return None
    return ChangeResult(
        ErrorCode.inconsistent_cluster_id, f'The given id "{given}" doesn\'t match the cluster id "{own}"'
    )


def result_of(refused: ChangeRefused, voter: VoterKey, core: RaftReplica) -> ChangeResult:
    """Return what Kafka's leader answers where ours has ``refused``."""
    timed_out, name = ErrorCode.request_timed_out, _name(voter)
    voters = "[" + ", ".join(map(_name, core.voters.latest.voters)) + "]"
    if refused is ChangeRefused.NOT_LEADER:
        return NOT_LEADER
    if refused is ChangeRefused.EPOCH_NOT_COMMITTED:
        return ChangeResult(
            timed_out,
            "Request timed out waiting for leader to establish HWM and fence previous voter changes",
        )
    if refused is ChangeRefused.CHANGE_NOT_COMMITTED:
        return ChangeResult(
            timed_out,
            f"Request timed out waiting for voters to commit the latest voter change at "
            f"{core.voters.latest_offset} with HWM {core.high_watermark}",
        )
    if refused is ChangeRefused.IS_VOTER:
        return ChangeResult(
            ErrorCode.duplicate_voter,
            f"The voter id for {name} is already part of the set of voters {voters}.",
        )
    if refused is ChangeRefused.NOT_CAUGHT_UP:
        return ChangeResult(timed_out, f"Aborted add voter operation for {name} since it is lagging behind")
    if refused is ChangeRefused.LAST_VOTER:
        return ChangeResult(
            ErrorCode.invalid_request,
            f"Cannot remove voter {name}: it is the last one, and a quorum needs one",
        )
    return ChangeResult(
        ErrorCode.voter_not_found, f"Cannot remove voter {name} from the set of voters {voters}"
    )


def _name(voter: VoterKey) -> str:
    return f"ReplicaKey(id={voter.node_id}, directoryId={voter.directory_id})"


# ── the messages ────────────────────────────────────────────────────────────────────────────────
def change_key(change: VoterChange) -> ApiKey:
    if isinstance(change, AddVoter):
        return ApiKey.ADD_RAFT_VOTER
    return ApiKey.REMOVE_RAFT_VOTER if isinstance(change, RemoveVoter) else ApiKey.UPDATE_RAFT_VOTER


def change_request(change: VoterChange, cluster_id: str | None) -> Message:
    """Return the request, in the newest version."""
    key = change_key(change)
    spoken = api(key, CHANGE_VERSIONS[key][1])
    voter = change.voter if isinstance(change, RemoveVoter) else change.voter.key
    named: dict[str, Any] = {
        "cluster_id": cluster_id,
        "voter_id": voter.node_id,
        "voter_directory_id": directory_uuid(voter.directory_id),
    }
    if isinstance(change, RemoveVoter):
        return spoken.request(**named)
    listeners = tuple(
        spoken.make_request("Listener", name=one.listener, host=one.host, port=one.port)
        for one in change.voter.endpoints
    )
    if isinstance(change, AddVoter):
        timeout = timedelta(milliseconds=change.timeout_ms)
        waits = change.waits
        return spoken.request(**named, listeners=listeners, timeout=timeout, ack_when_committed=waits)
    lowest, highest = change.voter.versions
    feature = spoken.make_request(
        "KRaftVersionFeature", min_supported_version=lowest, max_supported_version=highest
    )
    return spoken.request(
        **named, listeners=listeners, current_leader_epoch=change.epoch, k_raft_version_feature=feature
    )


def audited(change: VoterChange, result: ChangeResult) -> dict[str, object] | None:
    """Return what the audit log says of a change; None if it was not made. One that has timed out may be."""
    if result.error not in (NONE, ErrorCode.request_timed_out):
        return None
    found: dict[str, object] = {
        "voter": str(change.voter if isinstance(change, RemoveVoter) else change.voter.key)
    }
    return found if result.error is NONE else found | {"outcome": "timed out"}


def read_change_request(key: ApiKey, message: Any) -> VoterChange:
    voter = VoterKey(BrokerId(message.voter_id), directory_text(message.voter_directory_id))
    if key is ApiKey.REMOVE_RAFT_VOTER:
        return RemoveVoter(voter)
    endpoints = tuple(Endpoint(one.name, one.host, one.port) for one in message.listeners)
    if key is ApiKey.ADD_RAFT_VOTER:
        timeout_ms = min(max(milliseconds(message.timeout), 0), TIMEOUT_MS_MAX)
        return AddVoter(
            VoterEntry(voter, endpoints), timeout_ms, getattr(message, "ack_when_committed", True)
        )
    feature = message.k_raft_version_feature
    versions = feature.min_supported_version, feature.max_supported_version
    return UpdateVoter(VoterEntry(voter, endpoints, versions), LeaderEpoch(message.current_leader_epoch))


def change_response(
    key: ApiKey,
    version: int,
    result: ChangeResult,
    epoch: LeaderEpoch | None = None,
    leader: NodeAddress | None = None,
) -> Message:
    """``epoch``, ``leader``: as the node knows them that answers; only UpdateRaftVoter says so."""
    spoken = api(key, version)
    if key is not ApiKey.UPDATE_RAFT_VOTER:
        return spoken.response(
            throttle_time=timedelta(), error_code=result.error, error_message=result.message
        )
    node_id, host, port = leader or NodeAddress(BrokerId(NO_LEADER), "", 0)
    current = spoken.make(
        "CurrentLeader",
        leader_id=node_id,
        leader_epoch=NO_LEADER_EPOCH if epoch is None else epoch,
        host=host,
        port=port,
    )
    return spoken.response(throttle_time=timedelta(), error_code=result.error, current_leader=current)


def read_change_response(message: Any) -> ChangeResult:
    return ChangeResult(message.error_code, getattr(message, "error_message", None))
