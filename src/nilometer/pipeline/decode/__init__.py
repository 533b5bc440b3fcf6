"""Decodes record batches into numpy tables and Arrow columns, for the sources and the audit.

``batch_table`` has the headers of many batches as a table, ``column_decoder`` makes the Arrow columns of
their records, ``arrow_columns`` defines those columns. ``batch_kernels`` and ``decode_kernels`` are machine
code; they import numba, so they are imported only when the first batch is read. Never depends on Spark.
"""
