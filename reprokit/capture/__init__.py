"""Snapshot of everything a replay needs, at the failing step."""
