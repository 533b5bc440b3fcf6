"""Reading for a fetch: sessions, byte limits, and the notification of waiting fetches."""
