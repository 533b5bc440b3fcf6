"""The consumer group protocol (KIP-848): the coordinator assigns, members reconcile.

Pure. A :class:`~nilometer.groups.consumer.group.ConsumerGroup` is the fold of its records; everything else
here decides which records come next.

Where to read what:

- ``group``: the state and its one mutator; ``member``: one member of it;
- ``heartbeat``: what a member's heartbeat does; ``departures``: leaving and fencing;
- ``rebalance``: group epochs and target assignments; ``reconciliation``: how one member gets from what it
  owns to what it should own;
- ``assignment``, ``uniform``, ``uniform_mixed``, ``range_assignor``: the assignors;
- ``topic_regex``: subscriptions by regular expression;
- ``classic_members``, ``migration``: members of the classic protocol inside such a group, and whole groups
  that change their protocol;
- ``coordinator``: the door, with timers.
"""
