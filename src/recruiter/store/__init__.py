"""MONGO: one file per collection, its indexes with its queries. The only place that imports pymongo."""
