"""The lab's site values: virtual Sparks on Debian, no GPU. What changes with each start of the lab
(addresses, digests) comes from `.lab/state.json` through inventories/lab.py."""

recipe = "lab-tiny"
accelerator = "cpu"
accepted_systems = ["debian:12"]
serve_bind = "management"
