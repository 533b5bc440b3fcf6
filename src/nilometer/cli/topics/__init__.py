"""Commands that create, list, describe, alter and delete topics."""
