"""What is handed over: the bundle and the texts in it, rendered from templates."""
