"""Is everything as declared? The checks of preflight, and what a deployment would change; changes nothing.

pyinfra inventories/lab.py doctor.py [-y | --dry] [--data only=docker,serve]
"""

from pyinfra import host

from tasks import declaration, doctor

doctor.examine(declaration.load(whole=False), declaration.stages(host.data.get("only")))
