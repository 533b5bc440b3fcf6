"""The store in a metadata quorum: commands in a replicated log, and the state that they make."""
