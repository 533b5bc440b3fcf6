"""Being a member of a consumer group: assignment, liveness, rebalances, committed offsets.

``assignors`` are pure, and so are ``liveness``, ``subscription`` and ``group_exchange``. ``coordinator``
finds and asks the broker that keeps the group. ``classic_member`` (with ``classic_requests``) and
``consumer_member`` are the two protocols, ``heartbeats`` beat for either, and ``membership`` is what the
consumer sees of them.
"""
