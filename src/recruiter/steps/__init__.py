"""VERBS: enqueue, lead, assign, adopt, execute, settle, report, rescue, cancel, clean.

Each runs once and returns a result.
"""
