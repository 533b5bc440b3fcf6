"""Groups: their members, the partitions assigned to the members, and the groups' committed offsets.

Pure state machines, one :class:`~nilometer.groups.shard.GroupShard` per partition of ``__consumer_offsets``.
Requests and the time go in, records to append and results come out (``effects``). Hard state is computed from
the records alone; timers and waiting requests are soft state, which is not loaded.
"""
