"""Segment files and their indexes: what is read and written at a byte, and the descriptors that takes."""
