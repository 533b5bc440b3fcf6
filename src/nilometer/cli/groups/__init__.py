"""Commands for consumer groups: members, lag, offsets."""
