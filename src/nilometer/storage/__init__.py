"""One replica's log on disk, in Apache Kafka's own formats; and all the logs of a broker.

Start at :class:`Log` (one partition's log) and :class:`LogManager` (the log directories). Typical use::

    options = ManagerOptions(node_id=1, directories=[...], entropy=entropy, config_for=...)
    manager = await disk.offload(lambda: LogManager.open(disk, options, wall_ms=now))   # recovers if need be
    log = manager.create(TopicPartition("clicks", 0), config, topic_id=..., wall_ms=...)
    info = log.append_as_leader(records, leader_epoch=3, wall_ms=now)      # -> AppendInfo
    part = log.read(info.first_offset, 1 << 20, high_watermark, only_cached=True)
    if part is None:                                                       # not in the page cache
        part = await disk.offload(lambda: log.read(info.first_offset, 1 << 20, high_watermark))
    plan = log.flush_plan()                                                # group commit
    await disk.offload(plan.run)                                           # OSError: log.fence(error)
    log.mark_flushed(plan, wall_ms=now)                                    # log.flushed_offset has moved

Errors that a client receives are ``KafkaError``s with an error code. After its first failed write a log
raises ``LogFenced``; bytes damaged on disk raise ``CorruptRecordFound`` with file and position.

Layers, each importing only earlier ones: ``segments`` (files and indexes) → ``producers`` →
``leader_epoch_cache``, ``log_state`` → operations (``appending``, ``reading``, ``time_search``,
``truncation``, ``retention``, ``flushing``, ``recovery``) → ``log`` → ``directories``.

Importing this package imports none of its modules: tools need names of files, not logs.
"""
