"""VERBS: enqueue, lead, assign, adopt, execute, settle, rescue, cancel, clean. Each runs once and returns a result."""
