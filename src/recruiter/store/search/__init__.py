"""Searching jobs: waiting, running and ended, each along an index."""
