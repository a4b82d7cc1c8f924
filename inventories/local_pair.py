"""A Spark that provisions itself and, over SSH, the one at the other end of its QSFP cable.

Run this on the first of the two; it is the head. Its user needs a key that the neighbour accepts.
"""

sparks = (
    [
        ("@local", {"address": "192.0.2.11"}),
        ("spark-2", {"ssh_hostname": "192.0.2.12", "ssh_user": "nvidia"}),
    ],
    {"fabric": {"kind": "pair", "port": 0, "base": "192.168.96.0/19"}},
)
