"""What people ask: find, search, analytics, explain, health, resources. Views only read."""
