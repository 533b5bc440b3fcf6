"""Segment files and their indexes: reads and writes at byte positions, and the open files for them."""
