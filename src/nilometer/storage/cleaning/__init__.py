"""Compaction: the newest record of every key stays, older ones go. Pure: what stalls is run on any thread."""
