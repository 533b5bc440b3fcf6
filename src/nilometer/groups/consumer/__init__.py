"""The consumer group protocol (KIP-848): the coordinator assigns, members reconcile.

Pure. The state of a :class:`~nilometer.groups.consumer.group.ConsumerGroup` is computed from its records;
the other modules decide which records to write.

The modules:

- ``group``: the state and its one mutator; ``member``: one member of it;
- ``heartbeat``: a member's heartbeat; ``departures``: leaving and fencing;
- ``rebalance``: group epochs and target assignments; ``reconciliation``: how one member gets from its current
  to its target assignment;
- ``assignment``, ``uniform``, ``uniform_mixed``, ``range_assignor``: the assignors;
- ``topic_regex``: subscriptions by regular expression;
- ``classic_members``, ``migration``: members of the classic protocol inside such a group, and whole groups
  that change their protocol;
- ``coordinator``: the entry point for requests, records and timers.
"""
