"""Run a case N times, somewhere, and judge."""
