"""A Django project whose orders are handled in the background."""
