"""RLlib's APPO on CartPole, on a Ray cluster of this machine's loopback: the cluster, or a training on it.

    python rllib_appo.py cluster --nodes 3              a head and so many nodes; prints where, and their processes
    python rllib_appo.py train 127.0.0.1:1234 --runners 3

``cluster`` lives until its stdin is closed; a line ``add`` there adds a node, as a supervisor would replace one that
has died. ``train`` prints a JSON line after every iteration, until it is ended. Both need the same RAY_AUTH_TOKEN_PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from typing import Any

LOOPBACK = "127.0.0.1"
os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray from replacing 127.0.0.1 by an address that others can reach
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": "120000",
}
HEALTH = {
    "health_check_initial_delay_ms": 2000,
    "health_check_period_ms": 2000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}
"""Those of ``rollmill cluster up``: by itself Ray notices a dead machine after more than a minute."""
STORE_BYTES = 100_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["cluster", "train"])
    parser.add_argument("address", nargs="?", default="")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--runners", type=int, default=3)
    parser.add_argument("--envs", type=int, default=16, help="of each runner")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    return cluster(options.nodes) if options.role == "cluster" else train(options)


# -- the cluster -------------------------------------------------------------------------------


def cluster(nodes: int) -> int:
    from ray.cluster_utils import Cluster

    place = {"node_ip_address": LOOPBACK, "object_store_memory": STORE_BYTES}
    head = {**place, "num_cpus": 1, "include_dashboard": False, "_system_config": HEALTH}
    made = Cluster(initialize_head=True, head_node_args=head)
    others = [made.add_node(**place, num_cpus=1) for _ in range(nodes)]
    reaping = threading.Thread(target=reap, args=(made,), daemon=True)
    reaping.start()
    raylets = [process_of(node, "raylet").pid for node in others]
    gcs = process_of(made.head_node, "gcs_server").pid
    print(json.dumps({"address": made.address, "raylets": raylets, "gcs": gcs}), flush=True)
    for line in sys.stdin:
        if line.strip() == "add":
            made.add_node(**place, num_cpus=1)
    made.shutdown()
    return 0


def process_of(node: Any, kind: str) -> Any:
    return node.all_processes[kind][0].process


def reap(made: Any) -> None:
    """Take note of processes that were killed: Ray believes that a zombie is alive."""
    while True:
        for node in made.list_all_nodes():
            for started in node.all_processes.values():
                for one in started:
                    one.process.poll()
        time.sleep(0.1)


# -- a training --------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> int:
    import logging

    import ray
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(options.address, _node_ip_address=LOOPBACK, logging_level=logging.ERROR, log_to_driver=False)
    config = (
        APPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=options.runners, num_envs_per_env_runner=options.envs, num_cpus_per_env_runner=1)
        .learners(num_learners=0)  # in this process, as ours is
        .training(train_batch_size_per_learner=1000, lr=0.00075, vf_loss_coeff=0.05, entropy_coeff=0.01, num_epochs=2)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], vf_share_layers=True))
        .fault_tolerance(restart_failed_env_runners=True)
        .reporting(min_time_s_per_iteration=1, metrics_num_episodes_for_smoothing=100)
        .debugging(seed=options.seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    while True:
        tell(algorithm.train())


def tell(result: dict[str, Any]) -> None:
    runners = result.get("env_runners", {})
    print(
        json.dumps(
            {
                "time": time.time(),
                "steps": float(runners.get("num_env_steps_sampled_lifetime", 0)),
                "learnt": float(
                    result.get("learners", {}).get("default_policy", {}).get("num_module_steps_trained_lifetime", 0)
                ),
                "return": float(runners.get("episode_return_mean", float("nan"))),
                "runners": int(result.get("fault_tolerance", {}).get("num_healthy_workers", -1)),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
