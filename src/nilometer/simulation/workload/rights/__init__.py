"""Users with passwords on a listener of their own, and an administrator who gives and takes their rights."""
