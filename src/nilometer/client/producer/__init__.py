"""The producer: records gathered, numbered, shipped, acknowledged."""
