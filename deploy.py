"""Fresh Sparks become a serving cluster that has proved its speed; run again unchanged, nothing is touched.

pyinfra inventories/lab.py deploy.py [-y | --dry] [--data only=docker,serve]
pyinfra inventories/lab.py deploy.py -y --data rollback=yes    the release before serves again
pyinfra inventories/lab.py deploy.py --data benchmark=standard   measured at length; also: full, off
"""

from pyinfra import host

from tasks import (
    access,
    ahead,
    alone,
    benchmark,
    checkpoint,
    conda,
    declaration,
    docker,
    fabric,
    image,
    link_gate,
    link_nccl,
    plan,
    preflight,
    report,
    rollback,
    serve,
)
from tasks import host as host_task

if rollback.asked(host):
    access.ensure(host)
    alone.ensure(host)
    report.begin(release="", recipe="none (rollback)", kind="rollback")
    rollback.deploy_rollback()
else:
    stages = declaration.stages(host.data.get("only"))
    here = declaration.load()
    access.ensure(host)
    alone.ensure(host)
    ahead.plan(here, stages)
    report.begin(release=here.release_id, recipe=here.recipe.name, deployed=report.made_of(here.about))

    if "preflight" in stages:
        preflight.deploy_preflight(here)
    if "host" in stages:
        host_task.deploy_host(here)
    if "docker" in stages:
        docker.deploy_docker(here)
    if "conda" in stages:
        conda.deploy_conda(here)
    if "fabric" in stages:
        fabric.deploy_fabric(here)
    if "link" in stages:
        link_gate.deploy_link(here)
    if "image" in stages:
        image.deploy_image(here)
    if "nccl" in stages:
        link_nccl.deploy_nccl(here)
    if "checkpoint" in stages:
        checkpoint.deploy_checkpoint(here)
    if "serve" in stages:
        serve.deploy_serve(here)
    if "benchmark" in stages:
        benchmark.deploy_benchmark(here)
    plan.look(here, stages)
