"""Options of commands that can compute on a cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from hinet.cli.options import option, shared_options
from hinet.errors import HiNetError

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet.cluster import Cluster

_CLUSTER = "Compute on Ray: 'local' starts it here, HOST:PORT is a running cluster; needs the extra 'cluster'."
_WORKERS = "Processes of --cluster (default: one per core of this machine; on others it must be given)."


class Split(StrEnum):
    """How workers share training; a test keeps them equal to the library's."""

    auto = "auto"
    jobs = "jobs"
    rows = "rows"


@dataclass(frozen=True)
class ClusterOptions:
    """Where to compute, if not in this process."""

    cluster: Annotated[str | None, option(_CLUSTER)] = None
    workers: Annotated[int | None, option(_WORKERS, least=1)] = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.cluster is None:
            raise HiNetError("--workers are those of a cluster; add --cluster local, or leave it out")

    def chosen(self, threads: int | None) -> Cluster | None:
        """Return the cluster, if one is wanted, whose workers have so many threads each, by default one."""
        if self.cluster is None:
            return None
        from hinet.cluster import Cluster

        each = threads or 1
        if self.workers is None and self.cluster != "local":
            raise HiNetError(f"--cluster {self.cluster} needs --workers, the number of processes to use there")
        return Cluster(self.cluster, self.workers or max(1, (os.cpu_count() or 1) // each), each)


cluster_options = shared_options(ClusterOptions, "place", "Cluster")
