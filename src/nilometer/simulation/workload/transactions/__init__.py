"""Programs that write in transactions, commit, abort, die, return, and go on as zombies."""
