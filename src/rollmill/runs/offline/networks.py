"""How the network of an offline algorithm is fitted."""

from __future__ import annotations

import torch

from rollmill.core.seeds import Seeds
from rollmill.offline.actor_critic import ValuePolicy
from rollmill.offline.data import Selection, WindowLoader, fit_normaliser
from rollmill.offline.fit import PolicyFitter
from rollmill.offline.model import Scales
from rollmill.offline.value_fit import TransitionLoader, ValueFitter
from rollmill.runs.offline_settings import OfflineConfig
from rollmill.runs.policies.offline import build_network
from rollmill.store.reader import Store


def build_fitter(
    config: OfflineConfig, store: Store, selection: Selection, scales: Scales, seeds: Seeds, device: torch.device
) -> PolicyFitter | ValueFitter:
    """A new network on ``device``, with moments of the data, and the fit that is to come."""
    spec, fit = store.schema.env, config.fit
    torch.manual_seed(seeds.branch("weights").integer())
    network = build_network(config, spec, scales)
    fit_normaliser(network.normaliser, store, selection.training, seeds.branch("moments").integer())
    network.to(device)
    order, seed = seeds.branch("data").integer(), seeds.branch("fit").integer()
    if isinstance(network, ValuePolicy):
        return ValueFitter(network, TransitionLoader(store, selection, spec, fit.batch_size, order), fit, seed)
    loader = WindowLoader(store, selection, spec, config.data, config.model, fit.batch_size, order, device)
    return PolicyFitter(network, loader, fit, seed)
