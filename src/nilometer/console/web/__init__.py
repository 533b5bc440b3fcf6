"""Routes, templates and server-sent events; who may send requests."""
