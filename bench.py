"""How fast is it? Measures what serves, judges it by its recipe, writes a report; deploys nothing.

pyinfra inventories/lab.py bench.py [-y] [--data profile=smoke|standard|full]
pyinfra @local bench.py -y --data url=http://192.0.2.1:8000 [--data model=NAME] [--data recipe=NAME]
pyinfra inventories/lab.py bench.py -y --data quality=gsm8k    tests in place of the profile's

An API key comes from a file (--data api_key_file=PATH) or from SPARKSTACK_API_KEY, never as an argument.
"""

from tasks import bench

bench.declare()
