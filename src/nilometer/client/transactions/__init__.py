"""Transactions of a producer: the state machine (pure), its requests (pure), and the task that sends them.

``transaction_manager`` holds the state and decides which request is next; ``transaction_runner`` sends it.
The producer that applications use is in ``producer/transactional_producer``.
"""
