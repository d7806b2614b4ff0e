"""Where a case is evaluated: one seam, several engines."""
