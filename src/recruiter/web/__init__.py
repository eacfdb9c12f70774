"""The web console and its JSON API."""
