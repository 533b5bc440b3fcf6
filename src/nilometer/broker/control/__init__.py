"""The broker as a member of its cluster: the metadata log, the controller's office, and asking it."""
