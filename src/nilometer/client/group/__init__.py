"""Consumer group membership: assignment, heartbeats, rebalances, committed offsets.

``assignors``, ``liveness``, ``subscription`` and ``group_exchange`` are pure (no I/O). ``coordinator`` finds
the group's coordinator and sends requests to it. ``classic_member`` (with ``classic_requests``) and
``consumer_member`` implement the two group protocols, ``heartbeats`` sends the heartbeats of both, and
``membership`` is the interface for the consumer.
"""
