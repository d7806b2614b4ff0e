"""Evaluate one case: restore the state, run the step, say what happened."""
