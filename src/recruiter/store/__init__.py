"""MONGO: one file per collection, its indexes beside its queries. The only place that imports pymongo."""
