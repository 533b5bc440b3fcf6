"""The quotas of clients on this broker: how much they have used, and how long they have to wait."""
