"""Admin clients: describe and change topics, configurations, log directories and consumer groups."""
