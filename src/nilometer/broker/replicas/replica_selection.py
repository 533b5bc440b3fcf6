"""Which replica a consumer should read from (KIP-392): one in its own rack, if that is in sync.

Pure. Enabled by ``replica.selector.class``; a consumer sets its rack with ``client.rack``. A follower serves
records only up to the high watermark that it knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.replication import LeaderRole


def preferred_read_replica(
    leader: LeaderRole, client_rack: str, fetch_offset: int, racks: Mapping[int, str | None]
) -> int | None:
    """Return the in-sync replica in ``client_rack`` that has ``fetch_offset`` and the highest log end offset.

    None: the consumer should stay with the leader. ``racks``: the racks of live brokers, by broker id.
    """
    if not client_rack or racks.get(leader.broker_id) == client_rack:
        return None
    candidates = [
        (remote.log_end_offset, -remote.broker_id)
        for remote in leader.remote_replicas
        if remote.broker_id in leader.isr
        and racks.get(remote.broker_id) == client_rack
        and remote.log_start_offset <= fetch_offset <= remote.log_end_offset
    ]
    return -max(candidates)[1] if candidates else None
