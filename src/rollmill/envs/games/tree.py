"""Small games of two players whose gains are each other's losses, as trees of all that can happen.

A tree is a few arrays over its nodes, parents before children. The environment walks along it (``envs.games.env``), and
``envs.games.exploit`` computes on it, exactly, how far a policy is from one that nobody can beat.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rollmill.core.fields import Array

CHANCE, END = -1, -2
"""Who moves at a node where neither player does."""


class Rules(Protocol):
    """A game. States are values of any kind that the game itself makes."""

    name: str
    actions: int
    """Choices are 0 .. ``actions - 1``, where they are allowed."""
    at_once: bool
    """The second player moves without having seen what the first one does: in an environment, in the same step."""

    def start(self) -> Any: ...

    def player(self, state: Any) -> int:
        """Return who moves: 0, 1, ``CHANCE`` or ``END``."""

    def moves(self, state: Any) -> Sequence[tuple[int, float, Any]]:
        """Return (choice, probability if it is chance that moves, state it leads to) of all that is allowed."""

    def payoff(self, state: Any) -> float:
        """Return what the first player has won at the end; the second one has lost it."""

    def view(self, state: Any, player: int) -> Sequence[float]:
        """Return all that a player knows, as numbers: two states look the same to whoever cannot tell them apart.

        It holds everything that the player has seen before (perfect recall), and which of the two players it is.
        """


@dataclass(frozen=True)
class GameTree:
    """All ``n`` nodes of a game; node 0 is its beginning."""

    rules: Rules
    player: Array
    """[n] int8: 0, 1, CHANCE or END"""
    parent: Array
    """[n] int32; -1 of node 0"""
    choice: Array
    """[n] int32: which choice of the parent leads here"""
    chance: Array
    """[n] float64: its probability where the parent is a chance node, else 1"""
    depth: Array
    """[n] int32"""
    child: Array
    """[n, actions] int32: -1 where there is none; chance nodes have no row of their own: see ``outcomes``"""
    outcomes: dict[int, tuple[Array, Array]]
    """Of chance nodes: (children, their cumulated probabilities)."""
    payoff: Array
    """[n] float64: of the first player; 0 but at the end"""
    info: Array
    """[n] int32: the information set of the player who moves; -1 elsewhere"""
    views: Array
    """[n, 2, size] float32: what each player knows"""
    set_player: Array
    """[sets] int8: whose information set it is"""
    set_view: Array
    """[sets, size] float32: what that player knows there"""
    set_mask: Array
    """[sets, actions] bool: what is allowed there"""

    @property
    def sets(self) -> int:
        """How many information sets there are: as many decisions as a policy is made of."""
        return len(self.set_player)

    def uniform(self) -> Array:
        """Return ``[sets, actions]``, the policy for which all allowed choices are equally likely."""
        table: Array = self.set_mask / self.set_mask.sum(axis=1, keepdims=True)
        return table


def grow(rules: Rules) -> GameTree:
    """Grow the whole tree of a game; raises ValueError if its rules contradict themselves."""
    nodes = [(rules.start(), -1, 0, 1.0, 0)]  # state, parent, choice, probability, depth
    children: list[list[tuple[int, int, float]]] = []
    for node, (state, _, _, _, depth) in enumerate(nodes):  # grows while it is read: breadth first
        children.append([])
        for choice, probability, after in rules.moves(state) if rules.player(state) != END else ():
            children[node].append((choice, len(nodes), probability))
            nodes.append((after, node, choice, probability, depth + 1))
    player = np.array([rules.player(state) for state, *_ in nodes], np.int8)
    views = np.array([[rules.view(state, k) for k in (0, 1)] for state, *_ in nodes], np.float32)
    child = np.full((len(nodes), rules.actions), -1, np.int32)
    outcomes = {}
    for node, own in enumerate(children):
        if player[node] == CHANCE:
            chances = np.array([probability for _, _, probability in own])
            if abs(chances.sum() - 1) > 1e-9:
                raise ValueError(f"{rules.name}: chances of a node sum to {chances.sum()}")
            outcomes[node] = np.array([k for _, k, _ in own]), np.cumsum(chances)
        else:
            for choice, k, _ in own:
                child[node, choice] = k
    depths = np.array([depth for *_, depth in nodes], np.int32)
    info, first = _information_sets(rules.name, player, views, child, depths)
    chance = np.array([p for _, _, _, p, _ in nodes])
    return GameTree(
        rules=rules,
        player=player,
        parent=np.array([parent for _, parent, *_ in nodes], np.int32),
        choice=np.array([choice for _, _, choice, *_ in nodes], np.int32),
        chance=chance,
        depth=depths,
        child=child,
        outcomes=outcomes,
        payoff=np.array([rules.payoff(s) if own == END else 0.0 for (s, *_), own in zip(nodes, player, strict=True)]),
        info=info,
        views=views,
        set_player=player[first],
        set_view=views[first, player[first]],
        set_mask=child[first] >= 0,
    )


def _information_sets(name: str, player: Array, views: Array, child: Array, depth: Array) -> tuple[Array, Array]:
    """Return (``[n]`` the set of each node or -1, ``[sets]`` the first node of each set)."""
    numbers: dict[Hashable, int] = {}
    first: list[int] = []
    info = np.full(len(player), -1, np.int32)
    for node in np.flatnonzero(player >= 0).tolist():
        key = (int(player[node]), views[node, player[node]].tobytes())
        if key not in numbers:
            numbers[key] = len(first)
            first.append(node)
        info[node] = numbers[key]
        begun = first[info[node]]
        if depth[node] != depth[begun] or ((child[node] >= 0) != (child[begun] >= 0)).any():
            raise ValueError(f"{name}: nodes {begun} and {node} look the same to player {player[node]} and are not")
    return info, np.array(first)
