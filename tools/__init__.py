"""What changes the project's own source."""
