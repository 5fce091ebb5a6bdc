"""Doom matches: several players on one map, agents and the engine's bots, as one environment with a lane per agent.

Every agent has an engine of its own, and the engines play one network game: ``party``. Where they meet: ``network``.
The bots live in the first agent's engine: a match of one agent against bots is one process, and waits for nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import Array, EnvSpec, Obs
from rollmill.core.machine import cores_of_run
from rollmill.core.protocols import StepReturn
from rollmill.core.text import nearest
from rollmill.envs.make import EnvInstance
from rollmill.envs.reward_terms import RewardTerms
from rollmill.envs.vizdoom.bots import check_skill, choose_bots, write_bots
from rollmill.envs.vizdoom.engine import NEW, Place
from rollmill.envs.vizdoom.env import EPISODES_PER_ENGINE
from rollmill.envs.vizdoom.game import (
    Clock,
    View,
    check_least,
    import_extras,
    new_game,
    screen_fields,
    set_controls,
    show,
)
from rollmill.envs.vizdoom.maps import check_map, find_wad
from rollmill.envs.vizdoom.network import Network, check_kind, choose_network
from rollmill.envs.vizdoom.party import OF_HOST, Party
from rollmill.envs.vizdoom.score import TERMS, Score

if TYPE_CHECKING:
    from vizdoom import DoomGame

TICS_PER_SECOND = 35
MATCH_TICS = 4 * 60 * TICS_PER_SECOND
MOST_PLAYERS = 16
"""The engine's limit, bots included."""
BUTTONS = (
    *("MOVE_FORWARD", "MOVE_BACKWARD", "MOVE_LEFT", "MOVE_RIGHT"),
    *(f"SELECT_WEAPON{n}" for n in range(1, 8)),
    *("ATTACK", "SPEED", "TURN_LEFT_RIGHT_DELTA"),
)
BOT_SKILL = "bot_skill"
"""The variable (``env.variables``) that bots are as good as, and the argument for when there is none."""
RULES = (
    "-deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +sv_nocrouch 1 "
    "+sv_nojump 1 +sv_nofreelook 1 +sv_noexit 1 +viz_connect_timeout 60"
)
BOTS_FILE = "bots.cfg"
CORES = ("worker", "run")


class DoomMatch:
    """One match; agents are lanes, in the order of their engines.

    Observations are those of ``DoomEnv``, each agent its own. The dead lie where they fell and come back by
    themselves; their rows count. A match ends for all at once, by its time, which truncates it.

    A match of one agent (with bots or alone) gets a fresh engine, so a seed and the actions fix it. Engines that play
    each other keep no seed: their network is a matter of time, and they begin one match after another (``repeatable``).

    Args:
        wad: Name of one of ViZDoom's files of maps, or a path.
        map: Which of its maps.
        agents: How many; each is a lane.
        bots: Players of the engine's own.
        bot_skill: 0 to 100; ``env.variables.bot_skill`` comes before it.
        rewards: Weights of reward terms, see ``score``.
        frame_skip: Tics per step, with the same buttons.
        timeout: Tics of a match; 35 are a second.
        respawn_delay: Seconds before the dead come back.
        network: ``namespace`` (a network of the match's own), ``shared`` (the machine's, on a free port), or ``auto``:
            the first where it is allowed.
        cores: ``worker``: engines keep to the core of their worker, if it has one; ``run``: any core of the run.
        deadline: Seconds that the engines may take for a call; then the match is given up.
        width: Of the images the agents see.
        height: Of the images the agents see.
        render_width: Of the screen; 0 for 160 x 120, or 256 x 144 with ``wide_aspect_ratio``.
        render_height: Of the screen.
        wide_aspect_ratio: Render 16:9, which shows more to the left and to the right.
        buttons: Names of ``vizdoom.Button``; empty for walking, strafing, weapons 1 to 7, attack, running and turning.
        actions: How buttons become actions, see ``actions``.
        delta_steps: Values of a delta button in a choice.
        delta_max: Largest value of a delta button, per tic.
        game_variables: Names of ``vizdoom.GameVariable`` the agents see, as they are.
        buffers: Of ``depth``, ``labels``, ``automap``.
        fps: Tics per second: 35 to watch in real time, 0 for as fast as it goes.
        visible: Show the first agent's window.
        instance: Which of the run's environments this is.
        variables: ``bot_skill`` and ``reward_...`` are read.
    """

    def __init__(
        self,
        *,
        wad: str = "cig.wad",
        map: str = "map01",
        agents: int = 2,
        bots: int = 0,
        bot_skill: float = 50.0,
        rewards: Mapping[str, float] | None = None,
        frame_skip: int = 4,
        timeout: int = MATCH_TICS,
        respawn_delay: int = 0,
        network: str = "auto",
        cores: str = "worker",
        deadline: float = 5.0,
        width: int = 128,
        height: int = 72,
        render_width: int = 0,
        render_height: int = 0,
        wide_aspect_ratio: bool = False,
        buttons: Sequence[str] = (),
        actions: str | Sequence[Sequence[str]] = "groups",
        delta_steps: int = 21,
        delta_max: float = 12.5,
        game_variables: Sequence[str] = (),
        buffers: Sequence[str] = (),
        fps: float = 0.0,
        visible: bool = False,
        instance: EnvInstance | None = None,
        variables: Mapping[str, float] | None = None,
    ) -> None:
        vizdoom, _ = import_extras()
        check_least(1, agents=agents, frame_skip=frame_skip, timeout=timeout, width=width, height=height)
        check_least(0, bots=bots, respawn_delay=respawn_delay, fps=fps)
        _check_players(agents, bots, bot_skill)
        _check_engines(network, cores, deadline)
        screen = render_width, render_height, wide_aspect_ratio
        scenario = _find_map(vizdoom, wad, map, agents + bots)
        self._games: list[DoomGame] = []
        for player in range(agents):
            self._games.append(game := _game_on(vizdoom, scenario, map))
            show(vizdoom, game, screen, buffers, game_variables, visible and player == 0)
            controls = set_controls(vizdoom, game, buttons or BUTTONS, actions, delta_steps, delta_max)
        fields = screen_fields((height, width), buffers, len(game_variables))
        self.spec = EnvSpec("doom_match", fields, controls.spec, agents, frame_skip)
        self.choice_names, self._presses = controls.names, controls.presses
        self.repeatable = agents == 1
        """A seed and the actions fix an episode."""
        self._pressed: list[list[float]] = [[] for _ in self._games]
        self._views = [View((width, height), buffers, bool(game_variables)) for _ in self._games]
        self._frame_skip, self._timeout, self._tics_left = frame_skip, timeout, 0
        self._bots, self._bot_skill = bots, bot_skill
        self._respawn_delay, self._deadline, self._network_kind = respawn_delay, float(deadline), network
        self._cores = tuple(cores_of_run()) if cores == "run" else ()
        self._instance, self._variables = instance or EnvInstance(), variables or {}
        self._terms = RewardTerms(TERMS, rewards, lanes=agents, variables=self._variables)
        self._score = Score(vizdoom, self._games, bots)
        self._party: Party | None = None
        self._matches = 0
        self._clock = Clock(fps)

    @property
    def engine_pids(self) -> tuple[int, ...]:
        """Process ids of the engines, the first agent's first; none before the first ``reset`` and after ``close``."""
        return self._party.pids if self._party else ()

    # -- the calls of an Env ---------------------------------------------------------------------------

    def reset(self, seed: int, obs: Obs) -> None:
        if self.repeatable or self._matches >= EPISODES_PER_ENGINE:
            self.close()
        if self._party is None:
            self._start(seed)
        assert self._party is not None, "it was started just now"
        self._matches += 1
        self._tics_left = 0  # until the match stands
        for game in self._games:
            game.set_seed(seed)
        self._party.each(lambda player: self._games[player].new_episode())
        self._invite_bots(np.random.default_rng(seed))
        self._party.each(lambda player: self._views[player].write(self._games[player].get_state(), obs, player))
        self._terms.reset()
        self._score.begin()
        self._tics_left = self._timeout
        self._clock.begin()

    def step(self, action: Array, obs: Obs) -> StepReturn:
        if self._tics_left <= 0:
            raise EnvError("step() without a running match: call reset() first")
        assert self._party is not None, "a match is running"
        tics = min(self._frame_skip, self._tics_left)
        for player in range(len(self._games)):
            self._pressed[player] = self._presses(action[player : player + 1])
        for tic in range(tics):
            self._clock.wait()
            self._tic(self._party, obs if tic == tics - 1 else None, first=tic == 0)
        self._tics_left -= tics
        reward = self._terms.step(**self._score.step())
        over = self._tics_left == 0
        info = {"episode_stats": {**self._score.statistics(), **self._terms.sums()}} if over else {}
        return reward, np.zeros(len(reward), bool), np.full(len(reward), over), info

    def render(self) -> Array | None:
        """Return the agents' last screens side by side, or None before the first ``reset``."""
        screens = [view.screen for view in self._views]
        return None if screens[0] is None else np.concatenate([s for s in screens if s is not None], axis=1)

    def close(self) -> None:
        self._tics_left = self._matches = 0
        if self._party is not None:
            self._party.close()
            self._party = None

    # -- one tic -----------------------------------------------------------------------------------------

    def _tic(self, party: Party, obs: Obs | None, first: bool) -> None:
        """Let all players go on by one tic. Not by several at once: an engine that is ahead waits for packets that the
        others will not send before they are called, and all of them wait for ever.

        ``obs``: where to write what they see then.
        """

        def advance(player: int) -> None:
            game = self._games[player]
            if first:
                game.set_action(self._pressed[player])
            game.advance_action(1, obs is not None)
            if obs is not None:
                self._see(player, obs)

        party.each(advance)

    def _see(self, player: int, obs: Obs) -> None:
        state = self._games[player].get_state()
        if state is None:
            raise EnvError("the map has ended by itself")
        self._views[player].write(state, obs, player)

    # -- beginnings --------------------------------------------------------------------------------------

    def _start(self, seed: int) -> None:
        network = choose_network(self._network_kind, self._instance) if len(self._games) > 1 else None
        party = Party(self._games, self._deadline)
        write_bots(party.folder / BOTS_FILE)
        for player, game in enumerate(self._games):
            game.set_seed(seed)  # what all engines count their dice from
            game.clear_game_args()
            game.add_game_args(self._arguments(player, network, party.folder / BOTS_FILE))
        try:
            party.start([self._place(player, network) for player in range(len(self._games))])
        except BaseException:
            party.close()
            raise
        self._party = party

    def _arguments(self, player: int, network: Network | None, bots: Path) -> str:
        about = f"+name Agent{player} +colorset {player % 8}"
        port = network.port if network else 0
        if player:
            return f"-join 127.0.0.1:{port} +viz_connect_timeout 60 {about}"
        meet = f"-host {len(self._games)} -port {port}" if network else "-host 1"
        return f"{meet} {RULES} +viz_respawn_delay {self._respawn_delay} +viz_bots_path {bots} {about}"

    def _place(self, player: int, network: Network | None) -> Place:
        if network is None or not network.own:
            return Place(cores=self._cores)
        return Place(NEW if player == 0 else OF_HOST, self._cores)

    def _invite_bots(self, rng: np.random.Generator) -> None:
        if not self._bots:
            return
        host = self._games[0]
        host.send_game_command("removebots")
        skill = float(np.clip(self._variables.get(BOT_SKILL, self._bot_skill), 0.0, 100.0))
        for name in choose_bots(self._bots, skill, rng):
            host.send_game_command(f"addbot {name}")


def _check_players(agents: int, bots: int, bot_skill: float) -> None:
    check_skill(bot_skill)
    if agents + bots > MOST_PLAYERS:
        raise ConfigError(f"agents={agents} and bots={bots} are {agents + bots} players; Doom has {MOST_PLAYERS}")


def _check_engines(network: str, cores: str, deadline: float) -> None:
    check_kind(network)
    if cores not in CORES:
        raise ConfigError(f"cores={cores!r} {nearest(cores, CORES)} (one of {', '.join(CORES)})")
    if deadline <= 0:
        raise ConfigError(f"deadline must be positive, got {deadline:g}")


def _find_map(vizdoom: Any, wad: str, map_name: str, players: int) -> Path:
    """Return the file with the map, which has room for so many."""
    scenario = find_wad(wad, Path(vizdoom.scenarios_path))
    check_map(scenario, map_name, players)
    return scenario


def _game_on(vizdoom: Any, scenario: Path, map_name: str) -> DoomGame:
    """Return a game on this map, which no limit of time ends."""
    game: DoomGame = new_game(vizdoom)
    game.set_doom_scenario_path(str(scenario))
    game.set_doom_map(map_name)
    game.set_episode_timeout(0)
    return game
