"""PURE: what a job, a worker, an assignment, a retry decision are. No pymongo, no clock, no logging."""
