"""The commands on quotas of clients."""
