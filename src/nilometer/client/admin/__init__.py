"""Topics, settings and groups, looked at and changed from outside."""
