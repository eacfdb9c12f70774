"""One file per collection, its indexes with its queries."""
