"""Many rows and long training over the processes of a Ray cluster; optional: nothing else imports Ray."""

from hinet.cluster.session import Cluster

__all__ = ["Cluster"]
