"""The smallest case that still fails for the same reason."""
