"""Our second run against Ansible's, with nothing to change: `python -m benchmarks.rerun`."""
