"""What the shards of all coordinators stand on: effects, turns, timers, the partition of a key, record bytes.

A coordinator keeps its state in an internal topic: groups in ``__consumer_offsets``, transactions in
``__transaction_state``. One partition of that topic is one shard, a pure state machine. Knows nothing of
groups, of transactions, or of the shell that runs a shard.
"""
