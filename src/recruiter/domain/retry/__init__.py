"""What happens after a failed attempt: retry policies and the decision."""
