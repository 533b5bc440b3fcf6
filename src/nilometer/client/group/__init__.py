"""Consumer group membership: assignment, heartbeats, rebalances, committed offsets.

``assignors``, ``member`` and ``group_exchange`` do no I/O. ``coordinator`` finds the group's coordinator and
sends requests to it. ``classic_member`` and ``consumer_member`` implement the two group protocols,
``committer`` commits and fetches offsets, and ``membership`` is the interface for the consumer.
"""
