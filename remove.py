"""All that deploy.py did is taken back; what was there before it is there again.

pyinfra inventories/lab.py remove.py [-y | --dry] [--data checkpoints=yes]

Downloads and checkpoints stay unless the last words ask for them too: they are hours of the network's time.
"""

from pyinfra import host

from tasks import access, alone, remove, report

asked = remove.load()
access.ensure(host)
alone.ensure(host)
report.begin(release="", recipe="none (remove)")
remove.deploy_remove(asked)
