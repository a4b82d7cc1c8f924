"""Properties are tried on the same examples every time: a run that fails, fails for everybody."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "sparkstack",
    max_examples=60,
    deadline=None,  # a busy machine is no fault of the code
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("sparkstack")
