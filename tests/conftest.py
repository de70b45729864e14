import os

os.environ["HF_HUB_OFFLINE"] = "1"  # a name on the hub is refused at once; read when its client is imported

from hypothesis import HealthCheck, settings

from hinet.compiled import compile_from_now_on

settings.register_profile("hinet", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hinet")

compile_from_now_on()  # so that no answer depends on the time that tests before it took
