"""Consumer groups: their members, their lag, their offsets."""
