"""Timestamps that ListOffsets takes for places in the log rather than for times."""

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
"""Stand for the end of the log, its start, and the record with the highest timestamp (KIP-734)."""
