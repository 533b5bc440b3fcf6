"""Consumer groups: who owns which partition, and how far each group has read.

Pure state machines, one :class:`~nilometer.groups.shard.GroupShard` per partition of ``__consumer_offsets``.
Requests and the time go in, records to append and replies come out (``effects``). Hard state is the fold of
the records; timers and waiting requests are soft state: each load starts without them.
"""
