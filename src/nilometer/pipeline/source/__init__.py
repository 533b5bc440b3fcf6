"""The data sources for Spark, over brokers (``cluster``) and over segment files (``log_folders``).

What both share stands here: ``source_options`` (the options), ``positions`` (offsets of a topic's partitions
and the ranges between them) and ``pushed_filters`` (the filters of a query as bounds for reading).
"""
