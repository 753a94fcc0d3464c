"""Run directories: claimed, written atomically, resumed, read."""
