"""Six environments times ten seeds, as one experiment::

    rollmill launch plan examples/grid_envs.py
    rollmill launch run examples/grid_envs.py local.parallel=2
    rollmill report runs/grid_envs

Any other place works as well: ``backend=slurm slurm.partition=cpu slurm.time=02:00:00``.
"""

from rollmill.launch.experiment import Experiment
from rollmill.launch.params import ParamGrid

EXPERIMENT = Experiment(
    "grid_envs",
    params=ParamGrid({"env": ["toy_target", "toy_memory", "toy_masked", "toy_image", "toy_reach", "toy_agents"]}),
    seeds=10,
    settings={"stop.frames": 200_000, "model.memory": "gru"},
)
