"""Places in a partition: a consumer's positions, where to begin without one, asking brokers for offsets."""
