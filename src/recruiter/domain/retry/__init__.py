"""Retry policies, and the decision after a failed attempt."""
