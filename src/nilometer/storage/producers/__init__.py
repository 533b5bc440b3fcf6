"""The producer state of a log: last sequence numbers, open transactions."""
