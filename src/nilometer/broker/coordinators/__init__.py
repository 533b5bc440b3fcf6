"""What the coordinators of groups, transactions and share partitions have in common: a shell around a shard
for each partition led.

A *shard* is the pure state machine of one partition of the coordinator's internal topic. Its *shell* does the
I/O: it passes requests to the shard, appends the records that the shard decides on, and delivers the result
once they are committed. The key of a request (group id, transactional id) selects the partition and so the
shell. ``kind`` has the differences between group and transaction coordinators.
"""
