"""VERBS of a job's life: enqueue repeat lead assign adopt execute settle rescue release cancel recover remove clean.

Each runs once and returns a result. Steps do not import each other; a process puts them in order.
"""
