"""Share groups at the leaders of partitions: the share partitions led here, and what persists their state."""
