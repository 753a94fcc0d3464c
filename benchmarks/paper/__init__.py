"""The paper's experiments: run directories in, its figures and tables out. `python -m benchmarks.paper help`."""
