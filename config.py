"""pyinfra's own settings for every run from this checkout."""

import os

from pyinfra import config

# A cluster with a rank missing cannot serve: the first failing host stops the run for all.
config.FAIL_PERCENT = 0

# Long work has bars of its own; pyinfra's spinner would write over them.
os.environ.setdefault("PYINFRA_PROGRESS", "off")
