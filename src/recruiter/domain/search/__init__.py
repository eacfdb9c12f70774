"""Searches for jobs: filters, their conditions, and the pages that answer them."""
