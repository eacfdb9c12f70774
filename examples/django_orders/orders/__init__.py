"""Orders, and the mail about them."""
