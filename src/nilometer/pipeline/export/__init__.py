"""Exports topics as Parquet files: each run writes what the folder does not have yet.

``slice_files`` writes a slice of a log to a file, in Spark's Python workers and without rows in between;
``exported_folder`` keeps which files belong to the export and how far it has come; ``topic_export`` plans a
run and commits it. What is read, and by which rules, is decided by ``source/log_folders``, as for the data
source ``nilometer-log``.
"""
