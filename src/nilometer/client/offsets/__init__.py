"""A consumer's positions, ``auto.offset.reset``, and requests for offsets and leader epochs."""
