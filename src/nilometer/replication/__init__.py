"""The replicated partition: leader and follower roles, ISR, high watermark, truncation. No I/O, no clock.

The *shell* is the code that uses a role (the broker's partition, the model check, the scenarios). It owns the
log, the clock and the connections. It calls a role's methods with events and gets *effects*: values that
describe actions, which the shell executes in order. A role reads the log through a read-only view.

How a shell uses it::

    replica = Replica(log_view, broker_id=1, broker_epoch=7, checkpointed_high_watermark=42,
                      min_insync_replicas=2)
    effects = replica.on_metadata(registration, eligible_brokers, now_ms)   # gives it a role

    match replica.role:
        case LeaderRole() as leader:
            leader.admit_acks_all()                      # before an append: none or NOT_ENOUGH_REPLICAS
            effects = leader.on_appended(log_end_offset, now_ms)
            leader.acks_all_outcome(log_end_offset)      # PENDING: not committed yet
            leader.hold_produce(ticket, log_end_offset)  # a ReleaseProduce effect will name the ticket
            result, effects = leader.on_follower_fetch(fetch, now_ms)
            effects = leader.on_tick(now_ms)             # while leader.needs_tick
        case FollowerRole() as follower:
            fetch = follower.next_fetch()
            effects = replica.on_fetch_response(fetch, response)
        case NoRole():
            ...                                          # NOT_LEADER_OR_FOLLOWER

A partition with one replica needs no tickets: its high watermark is its log end offset when ``on_appended``
returns. :class:`LeaderRole` can also be used without :class:`Replica`.

Read next: :mod:`~nilometer.replication.leader` and :mod:`~nilometer.replication.follower` for the rules,
:mod:`~nilometer.replication.isr` for the requests to the controller, :mod:`~nilometer.replication.epochs` for
fencing and truncation points, :mod:`~nilometer.replication.shell_interface` for the effects and the other
values that pass between a role and its shell.
"""
