"""How does it serve now? Nothing is touched, no recipe is read. `sparkstack status` runs this and shows it.

pyinfra inventories/lab.py status.py -y
"""

from tasks import status

status.show()
