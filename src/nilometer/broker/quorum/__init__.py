"""A broker's node of a metadata quorum: its listeners, its connections to the others, and how it begins."""
