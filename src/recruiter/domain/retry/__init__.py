"""What a failed attempt leads to: retry policies and the decision."""
