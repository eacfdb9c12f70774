"""The application of this project."""
