"""Copies sealed segments into an archive, while brokers write the log or without any broker.

``archive_plan`` decides what to copy (pure), ``archiver`` checks and copies it, ``archive_target`` writes
files, ``archive_check`` reads an archive again. What an archive consists of is in
``source/log_folders/archive_manifest.py``, and so
is what reads it: the data source ``nilometer-log``, with its option ``archive``. ``restore`` puts archived
topics back, ``tier_restore`` tiered ones, both into ``replica_folders``.
"""
