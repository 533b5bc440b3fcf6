"""The transaction coordinator's state machine: one shard for each partition of ``__transaction_state``. Pure.

``state`` has the states and the possible transitions, ``transaction`` the value of one transactional id,
``records`` and ``record_format`` its record. Decisions are in ``producers`` (InitProducerId), ``partitions``
(AddPartitionsToTxn), ``ends`` (EndTxn, fencing, completion) and ``views`` (describing and listing). ``shard``
is the entry point: the broker's shell passes requests to it and carries out its effects.
"""
