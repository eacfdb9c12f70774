"""Pure values and decisions about jobs, workers, assignments and retries. No pymongo, no clock, no logging."""
