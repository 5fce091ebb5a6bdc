"""Plays the part of a Unity player: a gRPC client that dials in, as the C# side of ML-Agents does.

Run in ML-Agents' own venv, started by it like a player: ``unity_player.x86_64 -batchmode --mlagents-port 5005 ...``.

Every agent counts down from 3 + its number. Its reward for a step is its first choice plus its first number; what it
sees is (steps left, agent). Agent 0 is stopped by a step limit, the others are done by themselves. Whoever is done
begins anew at once under a new id, as in Unity.

Words of its own: ``--agents N``, ``--record FILE`` (its command line and the first message), ``--fault hang|crash``.
"""

import json
import os
import sys
import time

import grpc
from mlagents_envs.communicator_objects.brain_parameters_pb2 import BrainParametersProto
from mlagents_envs.communicator_objects.unity_message_pb2 import UnityMessageProto
from mlagents_envs.communicator_objects.unity_output_pb2 import UnityOutputProto
from mlagents_envs.communicator_objects.unity_to_external_pb2_grpc import UnityToExternalProtoStub

BEHAVIOR = "Countdown?team=0"
RESET = 1


def word(name: str, otherwise: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else otherwise


class Scene:
    def __init__(self, agents: int) -> None:
        self.agents = agents
        self.next_id = 0

    def begin(self, agent: int) -> dict:
        self.next_id += 1
        return {"agent": agent, "id": self.next_id, "left": 3 + agent}

    def reset(self) -> UnityOutputProto:
        self.running = [self.begin(agent) for agent in range(self.agents)]
        output = UnityOutputProto()
        output.rl_initialization_output.brain_parameters.append(brain())
        for state in self.running:
            self.show(output, state, reward=0.0)
        return output

    def step(self, actions: list) -> UnityOutputProto:
        output = UnityOutputProto()
        for place, action in enumerate(actions):
            state = self.running[place]
            state["left"] -= 1
            reward = float(action.discrete_actions[0]) + action.continuous_actions[0]
            if state["left"]:
                self.show(output, state, reward)
            else:
                self.show(output, state, reward, done=True)
                self.running[place] = self.begin(state["agent"])
                self.show(output, self.running[place], 0.0)
        return output

    def show(self, output: UnityOutputProto, state: dict, reward: float, done: bool = False) -> None:
        info = output.rl_output.agentInfos[BEHAVIOR].value.add()
        info.id, info.reward, info.done = state["id"], reward, done
        info.max_step_reached = done and state["agent"] == 0
        if not done:
            info.action_mask.extend([False, False, True, False, False])  # True: forbidden
        vector = info.observations.add()
        vector.shape.extend([2])
        vector.name = "numbers"
        vector.float_data.data.extend([state["left"], state["agent"]])
        image = info.observations.add()
        image.shape.extend([3, 2, 2])
        image.name = "camera"
        image.float_data.data.extend([state["left"] / 10] * 12)


def brain() -> BrainParametersProto:
    found = BrainParametersProto(brain_name=BEHAVIOR, is_training=True)
    found.action_spec.num_continuous_actions = 2
    found.action_spec.num_discrete_actions = 2
    found.action_spec.discrete_branch_sizes.extend([3, 2])
    return found


def main() -> None:
    fault = word("--fault")
    scene = Scene(int(word("--agents", "1")))
    channel = grpc.insecure_channel(f"localhost:{word('--mlagents-port')}")
    exchange = UnityToExternalProtoStub(channel).Exchange

    def say(output: UnityOutputProto) -> UnityMessageProto:
        message = UnityMessageProto(unity_output=output)
        message.header.status = 200
        return exchange(message, wait_for_ready=True)

    hello = UnityOutputProto()
    hello.rl_initialization_output.name = "player"
    hello.rl_initialization_output.communication_version = "1.5.0"
    hello.rl_initialization_output.package_version = "3.0.0"
    for capability in hello.rl_initialization_output.capabilities.DESCRIPTOR.fields:
        setattr(hello.rl_initialization_output.capabilities, capability.name, True)
    hello.rl_initialization_output.brain_parameters.append(brain())
    first = say(hello).unity_input.rl_initialization_input
    if word("--record"):
        with open(f"{word('--record')}-{os.getpid()}.json", "w") as file:
            json.dump({"argv": sys.argv[1:], "seed": first.seed, "version": first.package_version}, file)
    answer = say(UnityOutputProto())
    steps = 0
    while answer.header.status == 200:
        command = answer.unity_input.rl_input
        if command.command == RESET:
            answer = say(scene.reset())
            continue
        steps += 1
        if steps == 3 and fault == "hang":
            time.sleep(600)
        if steps == 3 and fault == "crash":
            os._exit(7)
        answer = say(scene.step(list(command.agent_actions[BEHAVIOR].value)))


if __name__ == "__main__":
    main()
