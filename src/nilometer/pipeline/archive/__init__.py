"""Copies sealed segments into an archive, while brokers write the log or without any broker.

``archive_plan`` decides what to copy (pure), ``segment_copy`` reads and checks a segment, ``archive_target``
writes files, ``partition_archiver`` copies one partition, ``archiver`` all of some topics, ``archive_check``
reads an archive again. What an archive consists of is in ``source/log_folders/archive_manifest.py``, and so
is what reads it: the data source ``nilometer-log``, with its option ``archive``.
"""
