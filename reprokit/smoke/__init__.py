"""Gates before the expensive run: is the plumbing right? They say nothing about accuracy."""
