"""Mutants: small omissions in the source, each of which a named check must catch."""
