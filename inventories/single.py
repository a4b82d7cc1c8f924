"""One Spark. Copy this file, put your own address in, and deploy:

pyinfra inventories/mine.py deploy.py

What else your site wants different from group_data/all.py goes into the second part, or into a file
group_data/<name of your inventory>.py.
"""

sparks = (
    [
        # The name is yours to choose; pyinfra shows it in front of every line.
        ("spark-1", {"ssh_hostname": "192.0.2.11"}),
    ],
    {
        # A user with sudo. Where sudo asks for a password: SPARKSTACK_SUDO_PASSWORD, or the terminal.
        "ssh_user": "nvidia",
        # Who may ask the endpoint? "127.0.0.1": the Spark itself; "management": its network.
        "serve_bind": "127.0.0.1",
    },
)
