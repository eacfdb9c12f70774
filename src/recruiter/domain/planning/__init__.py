"""Which worker gets which job: assignment, limits, resources, and why a job waits."""
