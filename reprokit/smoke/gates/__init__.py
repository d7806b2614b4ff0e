"""One gate a file; each asks one kind of question of a harness."""
