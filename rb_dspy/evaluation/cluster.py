"""Workers on a Ray cluster: an actor on each node, with threads (``rb-dspy work URL --ray auto``, extra ``ray``)."""

from __future__ import annotations

from typing import Any

from rb_dspy.errors import InfrastructureError, MissingDependency
from rb_dspy.evaluation import queue
from rb_dspy.text import summary_line


class _Worker:
    """One process of a node. It dies with its node; other nodes do its streams."""

    def work(self, url: str, jobs: int) -> int:
        return len(queue.work(url, jobs=jobs))


def work(url: str, address: str = "auto", *, jobs: int = 24) -> None:
    """Do all queued evaluations of a database on every node of a cluster, also on nodes that join later.

    Args:
        url: The database, which every node can reach; each node has rb_dspy and the code that the jobs name.
        address: Of the cluster; "auto": the one that this machine is a node of.
        jobs: Streams in parallel on each node.

    Raises:
        MissingDependency: The extra ``ray`` is not installed.
        InfrastructureError: The workers of all nodes failed.
    """
    try:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    except ImportError:
        raise MissingDependency("Ray is not installed: run `pip install 'rb-dspy[ray]'`") from None
    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    actor = ray.remote(max_restarts=0, num_cpus=0)(_Worker)
    running: dict[Any, tuple[str, Any]] = {}
    failed: dict[str, str] = {}
    try:
        while any(report is None for _, _, report in queue.queued(url)):
            busy = {node for node, _ in running.values()} | failed.keys()
            for node in (each["NodeID"] for each in ray.nodes() if each["Alive"] and each["NodeID"] not in busy):
                there = actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
                running[there.work.remote(url, jobs)] = node, there  # an actor ends with its last reference
            if not running:
                raise InfrastructureError(f"the workers of all nodes failed; the last one: {list(failed.values())[-1]}")
            for each in ray.wait(list(running), timeout=5)[0]:
                node, _ = running.pop(each)
                try:
                    ray.get(each)
                except Exception as exc:  # noqa: BLE001 (a node that is gone, or a job that fails there)
                    failed[node] = summary_line(exc)
    finally:
        ray.shutdown()
