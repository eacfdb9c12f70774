"""Repeatable jobs: schedules, and which occurrences are due."""
