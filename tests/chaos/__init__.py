"""The chaos run: real processes and a real replica set, broken on purpose; and a checker that believes only ledgers."""
