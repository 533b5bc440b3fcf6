"""A small HTTP/1.1 server for GET requests: metrics and health."""
