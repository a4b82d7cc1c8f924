"""One module a concern; each asks for facts, calls the core (`sparkstack`), yields operations.

Every operation is declared on every host, also what only the head or only a worker does: pyinfra orders
operations by each host's own list, and only operations that all hosts share keep the hosts in step.
"""
