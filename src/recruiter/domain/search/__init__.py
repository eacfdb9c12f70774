"""Which jobs a search means: filter words, conditions, pages."""
