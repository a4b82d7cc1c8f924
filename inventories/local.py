"""A Spark that provisions itself: run this on the Spark, from a checkout there.

pyinfra inventories/local.py deploy.py
"""

sparks = [
    # "@local" is this machine, without SSH. `address` is the one by which others reach it; it is needed
    # where the endpoint shall listen on it ("serve_bind": "management").
    ("@local", {"address": "192.0.2.11"}),
]
