"""Records: written, read, taken in from files, and looked at in segment files."""
