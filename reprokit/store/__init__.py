"""Incidents kept where other machines reach them: each file once, under its hash."""
