"""The broker's side of consumer groups: one shell around each shard of the pure core in ``nilometer.groups``.

A request finds its shell by the partition of ``__consumer_offsets`` that keeps its group; the shell asks the
shard, appends what it decides, and gives the reply once that is committed.
"""
