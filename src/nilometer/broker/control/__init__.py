"""The broker as a member of its cluster: the metadata log, the controller, and requests to it."""
