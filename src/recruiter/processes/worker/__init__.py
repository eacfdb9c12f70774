"""A worker: the supervisor, its dispatcher, and the pool of child processes that run the jobs."""
