"""Assignors, which assign partitions to the members of a group: the interface and the built-in ones. Pure."""
