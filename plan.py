"""What would a deployment do? Each stage keeps, changes or makes anew; nothing is touched.

pyinfra inventories/lab.py plan.py -y [--data recipe=NAME] [--data only=docker,serve]
"""

from pyinfra import host

from tasks import access, plan, site

here = site.load()
access.ensure(host)
plan.only(here, site.stages(host.data.get("only")))
