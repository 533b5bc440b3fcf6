"""Share groups: their APIs, the share partitions led here, and the coordinator that persists their state."""
