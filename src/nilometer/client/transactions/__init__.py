"""Transactions of a producer: the state machine (pure), its requests (pure), and the shell that sends them.

``transaction_manager`` decides what may be done and what is to be asked next; ``transaction_runner`` asks it.
The producer that users see is ``producer/transactional_producer``.
"""
