"""Whole clusters in a virtual world, the model check, and the stories of replication."""
