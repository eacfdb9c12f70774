"""Migration: the documents of other schedulers, read as jobs and schedulers of ours. Nothing is stored here."""
