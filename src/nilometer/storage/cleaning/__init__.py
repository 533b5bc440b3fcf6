"""Compaction: keep the newest record of every key, remove older ones. No event loop, no clock: the slow steps
may run on any thread."""
