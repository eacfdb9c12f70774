"""Metrics for Prometheus. Needs the extra `metrics`.

`REGISTRY.register(RecruiterCollector(recruiter))` adds them to those that an application exposes already; `recruiter
metrics` and the web console's `/metrics` expose them by themselves.
"""

from recruiter.metrics.collector import RecruiterCollector

__all__ = ["RecruiterCollector"]
