"""The consumer: keeps positions, fetches records within fetch sessions, and returns them by poll."""
