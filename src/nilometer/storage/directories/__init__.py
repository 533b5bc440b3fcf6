"""Log directories: which logs lie in them, whose they are, how they were left, and how they fail."""
