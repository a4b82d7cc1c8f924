"""Four Sparks in a ring: a cable from port 0 of each to port 1 of the next, the last one's to the first.

The order of the hosts is the order of the cables.
"""

sparks = (
    [
        ("spark-1", {"ssh_hostname": "192.0.2.11"}),
        ("spark-2", {"ssh_hostname": "192.0.2.12"}),
        ("spark-3", {"ssh_hostname": "192.0.2.13"}),
        ("spark-4", {"ssh_hostname": "192.0.2.14"}),
    ],
    {
        "ssh_user": "nvidia",
        # Two networks a cable. No network of a ring holds all Sparks, so the ranks find one another by
        # `management_interface` and the addresses above.
        "fabric": {"kind": "ring", "base": "10.20.0.0/16"},
        "management_interface": "enP7s7",
    },
)
