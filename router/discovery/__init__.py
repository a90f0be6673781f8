"""Where a variant's replicas are: listed in the settings, or found as the ready endpoints of a Kubernetes Service."""

from router.discovery.cluster import Cluster
from router.discovery.kubernetes import KubernetesReplicas
from router.discovery.static import Discovery, StaticReplicas

__all__ = ["Cluster", "Discovery", "KubernetesReplicas", "StaticReplicas"]
