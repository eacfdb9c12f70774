"""LOOPS: when to run which step. One loop for all."""
