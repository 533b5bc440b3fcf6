"""What a log knows of its producers: their last sequence numbers, their open transactions."""
