"""One member of a classic group: identity, protocols, assignment, and the request that waits for its reply.

Invariant: a member waits for a join or for a sync, never for both.
"""

from __future__ import annotations

import msgspec

from nilometer.coordinators.effects import Token
from nilometer.groups.records import MemberMetadata
from nilometer.groups.requests import JoinGroup, JoinGroupMember, JoinGroupProtocol

NO_ASSIGNMENT = b""


class ClassicMember(msgspec.Struct):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    """The protocols that the member supports, in its order of preference."""
    assignment: bytes = NO_ASSIGNMENT
    is_new: bool = False
    """Whether the member's first rebalance is not complete: it may not know its id to send heartbeats."""
    awaiting_join: Token | None = None
    awaiting_sync: Token | None = None

    @classmethod
    def joining(cls, request: JoinGroup, member_id: str) -> ClassicMember:
        return cls(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocol_type,
            request.protocols,
            is_new=True,
        )

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_excused(self) -> bool:
        """Whether the member waits for a reply, so that it need not send heartbeats."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(protocol.name for protocol in self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if it does not support the protocol."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def vote(self, candidates: frozenset[str]) -> str | None:
        """Return the candidate that the member prefers; None if it supports none of them."""
        return next((protocol.name for protocol in self.protocols if protocol.name in candidates), None)

    def to_record(self, protocol_name: str | None) -> MemberMetadata:
        return MemberMetadata(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol_name),
            self.assignment,
        )

    @classmethod
    def from_record(cls, record: MemberMetadata, protocol_type: str, protocol: str | None) -> ClassicMember:
        return cls(
            record.member_id,
            record.group_instance_id,
            record.client_id,
            record.client_host,
            record.session_timeout if record.rebalance_timeout == -1 else record.rebalance_timeout,
            record.session_timeout,
            protocol_type,
            () if protocol is None else (JoinGroupProtocol(protocol, record.subscription),),
            record.assignment,
        )

    def to_reply(self, protocol_name: str | None) -> JoinGroupMember:
        return JoinGroupMember(self.member_id, self.group_instance_id, self.metadata(protocol_name))
