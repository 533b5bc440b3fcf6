"""Special timestamps of ListOffsets requests, which mean places in the log rather than times."""

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
"""The three mean the log's end, its start, and the record with the highest timestamp (KIP-734)."""
