"""Answers for people: find, search, analytics, explain, health, resources, flows, metrics. Views only read."""
