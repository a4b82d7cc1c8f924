"""What would a deployment do? Each stage keeps, changes or makes anew; nothing is touched.

pyinfra inventories/lab.py plan.py -y [--data recipe=NAME] [--data only=docker,serve]
"""

from pyinfra import host

from tasks import access, ahead, declaration, plan

here = declaration.load()
access.ensure(host)
stages = declaration.stages(host.data.get("only"))
ahead.plan(here, stages)
plan.only(here, stages)
