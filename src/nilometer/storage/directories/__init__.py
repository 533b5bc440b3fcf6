"""Log directories: their logs, their owner, clean shutdowns, checkpoints and failures."""
