"""Reading for a fetch: sessions, byte limits, and what is told to those who wait."""
