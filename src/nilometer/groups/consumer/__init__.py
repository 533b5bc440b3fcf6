"""The consumer group protocol (KIP-848): the coordinator assigns, members reconcile.

Pure. The state of a :class:`~nilometer.groups.consumer.group.ConsumerGroup` is computed from its records;
the other modules decide which records to write.

The modules:

- ``group``: the state and its one mutator, and a member of it; ``context``: what the others share in a shard;
- ``heartbeat``: a member's heartbeat, and how it gets from its current to its target assignment;
  ``departures``: leaving and fencing, and groups that change their protocol;
- ``rebalance``: group epochs and target assignments; ``assignors``: who gets what;
- ``classic_members``: members of the classic protocol inside such a group;
- ``consumer_groups``: the entry point for requests, records and timers.
"""
