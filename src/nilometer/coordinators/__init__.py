"""The common base of group and transaction coordinators: effects, turns, timers, record encoding.

A coordinator keeps its state in an internal topic: groups in ``__consumer_offsets``, transactions in
``__transaction_state``. Each partition of that topic has a *shard*, a pure state machine. Its *shell*, in the
broker, passes requests to it and carries out the effects that it returns. A *turn* is one call of a shard.
"""
