"""The pure core: from declarations and host facts to values.

Nothing here asks a host, the network or the clock (`cli` and `progress`, which talk to a person, excepted);
tasks do that and hand the answers in.
"""
