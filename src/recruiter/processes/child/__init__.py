"""A child process: the code that runs in it, and the memory and pipes that it shares with its supervisor."""
