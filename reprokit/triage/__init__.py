"""Where a failure comes from."""
