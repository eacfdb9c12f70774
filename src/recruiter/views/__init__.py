"""What people ask: find, search, analytics, explain, health, resources, flows, metrics. Views only read."""
