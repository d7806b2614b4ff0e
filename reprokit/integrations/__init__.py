"""Thin adapters to the trainers and trackers that people already use; each imports its library only when used."""
