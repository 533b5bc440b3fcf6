"""A quorum of voters that agrees on a log: Kafka's Raft (KIP-595, 630, 853, 996). No sockets, clocks, chance.

It is the replication of partitions once more (:mod:`nilometer.replication`): a log, an epoch, a high
watermark, truncation where epochs diverge. Two things differ. There is no controller that names the leader
and the ISR: the voters elect it, and a majority of them counts. And there are no degrees of durability: a
replica acknowledges only what it has flushed.

The core is :mod:`~nilometer.raft.replica`, with no I/O at all: events in, effects out. How it is used::

    replica = RaftReplica(log_view, key, voters, stored_election, now)
    effects = replica.on_time(now)                              # whenever replica.deadline_ms(now) has come
    response, effects = replica.on_vote_request(request, now)   # also on_begin_epoch, on_end_epoch, on_fetch
    effects = replica.on_vote_response(voter, request, response, now)
    fetch = replica.next_fetch()                                # as a follower, one after another
    effects = replica.on_fetch_response(fetch, response, now)
    effects = replica.on_flushed(log_end_offset, now)           # after each flush of the log

:mod:`~nilometer.raft.durable` is that with a folder: it executes the effects that write, and is what a broker
opens. Read next: :mod:`~nilometer.raft.leading` for what is committed, :mod:`~nilometer.raft.voters` for who
votes, :mod:`~nilometer.raft.snapshots` for logs that begin later, :mod:`~nilometer.raft.exchange` for
requests and effects; of what is on disk :mod:`~nilometer.raft.recovery`, ``control_records``,
``quorum_state`` and ``snapshot_files``; and :mod:`~nilometer.raft.messages` for the wire.
"""
