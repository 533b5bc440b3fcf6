"""The transaction coordinator's state machine: one shard for each partition of ``__transaction_state``. Pure.

``state`` has the states and which may follow which, ``transaction`` one transactional id and its transitions,
``records`` and ``record_format`` what is kept of it. Decisions are in ``producers`` (InitProducerId),
``partitions`` (AddPartitionsToTxn), ``ends`` (EndTxn, fencing, completion) and ``views`` (what is there);
``shard`` is what the shell talks to.
"""
