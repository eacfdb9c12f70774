"""Flows: jobs that wait for others."""
