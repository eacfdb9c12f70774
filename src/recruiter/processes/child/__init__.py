"""A child process: what runs in it, and what it shares with its supervisor."""
