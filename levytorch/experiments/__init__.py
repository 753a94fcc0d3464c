"""The paper's experiments: run directories in, its figures and tables out. `python -m levytorch.experiments help`."""
