"""Which releases do the hosts keep? Nothing is touched, no recipe is read.

pyinfra inventories/lab.py releases.py -y
"""

from tasks import rollback

rollback.list_releases()
