"""One file per collection, its indexes beside its queries."""
