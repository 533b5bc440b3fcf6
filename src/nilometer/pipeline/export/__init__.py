"""Exports topics as Parquet files: each run writes what the folder does not have yet.

What is read, and by which rules, is decided by ``source/log_folders``, as for the data source
``nilometer-log``.
"""
