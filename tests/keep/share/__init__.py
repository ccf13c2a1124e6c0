"""Real code that starts without tracing in a second process where nothing has changed."""
