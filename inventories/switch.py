"""Four Sparks at one switch, each by the same cage; all ports of the switch in one bridge."""

sparks = (
    [
        ("spark-1", {"ssh_hostname": "192.0.2.11"}),
        ("spark-2", {"ssh_hostname": "192.0.2.12"}),
        ("spark-3", {"ssh_hostname": "192.0.2.13"}),
        ("spark-4", {"ssh_hostname": "192.0.2.14"}),
    ],
    {
        "ssh_user": "nvidia",
        # Two networks in all, one for each twin of the cage.
        "fabric": {"kind": "switch", "port": 0, "base": "192.168.96.0/19"},
    },
)
