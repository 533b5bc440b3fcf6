"""The consumer: positions, fetch sessions, records."""
