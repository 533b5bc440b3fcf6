"""Where the replicas of partitions are: looked at, elected among, moved, and slowed down while they move."""
