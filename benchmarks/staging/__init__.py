"""Staging against its limits: `python -m benchmarks.staging.graft`, `….convert`, `….rows`."""
