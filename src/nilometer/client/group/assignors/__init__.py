"""Who of a group gets which partitions: what an assignor is, and those that come with the client. Pure."""
