"""Topics: created, listed, described, altered, deleted."""
