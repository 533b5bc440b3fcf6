"""What ``server.properties`` may say, and what this broker was told."""
