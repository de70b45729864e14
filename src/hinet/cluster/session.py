"""A connection to Ray: processes on this machine, or those of a running cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hinet.errors import HiNetError
from hinet.extras import require
from hinet.parameters import Rules, validate_fields, whole

LOCAL = "local"
AUTO = "auto"  # the cluster that already runs on this machine
SECONDS_TO_CONNECT = 5.0
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
_LOOPBACK = {  # opens no port to other machines
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
}
_RULES: Rules = {"workers": whole(1), "threads": whole(1)}


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster and the number of workers.

    Attributes
    ----------
    address : str
        ``local`` starts Ray on this machine, reachable only from it, and ends it afterwards; ``HOST:PORT`` is a running
        cluster that this machine is a node of; ``auto`` is the cluster that runs here.
    workers : int
        Number of worker processes.
    threads : int
        Threads per worker.
    """

    address: str = LOCAL
    workers: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        validate_fields(self, _RULES)

    @property
    def is_local(self) -> bool:
        """Whether Ray is started on this machine."""
        return self.address == LOCAL


@contextmanager
def connected(cluster: Cluster) -> Iterator[None]:
    """Connect to a cluster, or start one here; an existing connection of the process is used.

    Raises
    ------
    HiNetError
        If Ray is not installed, the address cannot be reached, or the cluster has fewer processors than workers need.
    """
    check_cluster(cluster)
    with _environment({**_QUIET, **(_LOOPBACK if cluster.is_local else {})}):
        import ray

        is_new = not ray.is_initialized()
        if is_new:
            _connect(cluster)
        try:
            if not is_new or not cluster.is_local:
                where = f"the cluster at {cluster.address}" if is_new else "the cluster"
                _check_processors(cluster, int(ray.cluster_resources().get("CPU", 0)), where)
            with _quiet():
                yield
        finally:
            if is_new:
                ray.shutdown()


def check_cluster(cluster: Cluster) -> None:
    """Raise HiNetError if a cluster cannot be used, without starting or joining it."""
    require("ray", "`cluster`")
    if cluster.is_local:
        _check_processors(cluster, os.cpu_count() or 1, "this machine")
    else:
        _check_address(cluster.address)


def _connect(cluster: Cluster) -> None:
    import ray
    import ray.data  # both set up logging when they are imported
    import ray.train

    local: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if cluster.is_local else {}
    processors = cluster.workers * cluster.threads if cluster.is_local else None
    try:
        with _quiet(), _without_stderr(), _own_signals():
            ray.init(cluster.address, num_cpus=processors, logging_level=logging.ERROR, log_to_driver=False, **local)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise HiNetError(
            f"no connection to Ray at {cluster.address}: {reason}; start it there with: ray start --head"
        ) from None


@contextmanager
def _environment(usual: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that are not set yet, for Ray and its workers, and unset them afterwards."""
    unset = {name: value for name, value in usual.items() if name not in os.environ}
    os.environ.update(unset)
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep messages and warnings of Ray in its log files; errors are raised anyway."""
    loggers = [logging.getLogger(name) for name in ("ray", "ray.data", "ray.train", "ray._private")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"ray\.")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Silence standard error: native code of Ray writes to it, past all loggers."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the handler of SIGTERM: that of Ray would print a traceback and leave unfinished files."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _check_processors(cluster: Cluster, available: int, where: str) -> None:
    needed = cluster.workers * cluster.threads
    if needed > available:
        each = "" if cluster.threads == 1 else f" of {cluster.threads} threads"
        raise HiNetError(
            f"{cluster.workers:,} workers{each} need {needed:,} processors, and {where} has {available:,}; lower "
            "`workers`"
        )


def _check_address(address: str) -> None:
    """Raise HiNetError if nothing listens at an address; Ray itself would wait for minutes."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise HiNetError(f"`cluster` is {LOCAL!r}, {AUTO!r} or the HOST:PORT of a cluster; got {address!r}")
    try:
        socket.create_connection((host, int(port)), SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise HiNetError(
            f"no cluster answers at {address} ({error}); start one with: ray start --head, or give {LOCAL!r}"
        ) from None
