"""Two Sparks with one QSFP cable between the same cage of both."""

sparks = (
    [
        # The first one is the head: it downloads, builds, and answers requests.
        ("spark-1", {"ssh_hostname": "192.0.2.11"}),
        ("spark-2", {"ssh_hostname": "192.0.2.12"}),
    ],
    {
        "ssh_user": "nvidia",
        # port 0 is the cage beside the RJ45 socket. Both Sparks get addresses on both twins of the cage, in
        # two networks cut from `base`, which nothing else may use.
        "fabric": {"kind": "pair", "port": 0, "base": "192.168.96.0/19"},
    },
)
