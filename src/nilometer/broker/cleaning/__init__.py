"""The log cleaner of a broker: which log is compacted when, how fast, and what stops it."""
