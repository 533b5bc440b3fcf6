"""The log cleaner of a broker: chooses the logs to compact, limits its speed, and handles failures."""
