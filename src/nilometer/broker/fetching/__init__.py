"""The read side of a fetch: sessions, byte limits, and the notification of waiting fetches."""
