# SPDX-License-Identifier: Apache-2.0
"""Dense networks that become mixtures, and mixtures that lose experts."""
import numbers
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from .moe import MoE, check_number, moe_layers

Network = TypeVar("Network", bound=nn.Module)


def activation_of(module: nn.Module) -> str:
    """Returns the name of an MLP's activation. Raises ValueError for an activation that experts do not have."""
    if isinstance(module, nn.GELU):
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    if isinstance(module, nn.ReLU):
        return "relu"
    raise ValueError(f"upcycle: experts have no activation {type(module).__name__}; only GELU and ReLU")


def experts_of(mlp: nn.Module, **options) -> MoE:
    """Returns a layer whose experts are copies of an MLP. Raises ValueError for another kind of MLP."""
    parts = dict(mlp.named_children())
    fc1, fc2 = parts.get("fc1"), parts.get("fc2")
    between = [part for name, part in parts.items() if name not in ("fc1", "act", "fc2")]
    plain = all(isinstance(part, nn.Identity) or (isinstance(part, nn.Dropout) and part.p == 0) for part in between)
    if not (isinstance(fc1, nn.Linear) and isinstance(fc2, nn.Linear) and "act" in parts and plain):
        raise ValueError(f"upcycle: a {type(mlp).__name__} is not fc2(act(fc1(x))) without norm and dropout")
    layer = MoE(fc1.in_features, fc1.out_features, gate="softmax_selected", activation=activation_of(parts["act"]),
                **options).to(fc1.weight)
    e = layer.experts
    with torch.no_grad():
        for weight, bias, linear in ((e.w1, e.b1, fc1), (e.w2, e.b2, fc2)):
            weight.copy_(linear.weight.t().expand_as(weight))
            bias.copy_(bias.new_zeros(()) if linear.bias is None else linear.bias)
    return layer.train(mlp.training)


def upcycle(model: Network, blocks: Iterable[int], experts: int = 8, k: int = 2, capacity_factor: float = 0.0,
            noise: float = 1.0) -> Network:
    """Replaces timm's `model.blocks[i].mlp` by an MoE layer, in place, and returns the model.

    Every expert is a copy of the MLP, the gates of a token sum to 1 and no token is dropped, so that the network
    computes what it did before; experts diverge in training on different tokens (sparse upcycling, arXiv
    2212.05055). Raises ValueError, before a block changes, for MLPs that experts cannot compute.
    """
    stack = getattr(model, "blocks", None)
    if not isinstance(stack, (nn.Sequential, nn.ModuleList)):
        raise ValueError(f"upcycle: {type(model).__name__} has no blocks[i].mlp as timm's ViTs have")
    if not isinstance(blocks, Iterable):
        raise TypeError(f"upcycle: blocks={blocks!r} must be a list of numbers, as [{len(stack) - 1}]")
    layers = {}
    for i in blocks:
        if not isinstance(i, numbers.Integral) or not -len(stack) <= i < len(stack):
            raise ValueError(f"upcycle: there is no block {i!r}; the last one is {len(stack) - 1}")
        mlp = getattr(stack[i], "mlp", None)
        if not isinstance(mlp, nn.Module):
            raise ValueError(f"upcycle: block {i} has no mlp")
        layers[i] = experts_of(mlp, experts=experts, k=k, capacity_factor=capacity_factor, noise=noise)
    for i, layer in layers.items():
        setattr(stack[i], "mlp", layer)
    return model


def least_kept(layer: MoE) -> int:
    return min(layer.k, len(layer.kept)) if layer.choice == "token_choice" else 1


def kept_of(layer: MoE, name: str, ids: Collection[int]) -> list[int]:
    """Returns the ids that a layer is to keep. Raises ValueError for unknown, repeated and too few ids."""
    known = isinstance(ids, Collection) and all(isinstance(i, numbers.Integral) and i in layer.kept for i in ids)
    if not known or not least_kept(layer) <= len(set(ids)) == len(ids):
        raise ValueError(f"prune: `keep` has {ids!r} for layer '{name}', which has the experts {layer.kept}; choose at "
                         f"least {least_kept(layer)} of them, each once")
    return [int(i) for i in ids]


def kept_by(layer: MoE, name: str, before: Mapping[str, Tensor], keep: float) -> list[int]:
    """Returns the ids of a layer's experts whose router rows grew most since `before`."""
    key = f"{name}.router.weight" if name else "router.weight"
    old = before.get(key)
    if old is None or old.shape != layer.router.weight.shape:
        raise ValueError(f"prune: `before` has no {key} {list(layer.router.weight.shape)}; give the network or the "
                         "state_dict() that fine-tuning began with")
    count = keep if isinstance(keep, int) else max(1, int(keep * layer.num_experts + 0.5))
    if not least_kept(layer) <= count <= len(layer.kept):
        raise ValueError(f"prune: keep={keep} keeps {count} experts of layer '{name}', which has {len(layer.kept)} and "
                         f"needs at least {least_kept(layer)}")
    change = layer.router.weight.detach().double().norm(dim=1).cpu() - old.detach().double().norm(dim=1).cpu()
    return sorted(sorted(layer.kept, key=lambda expert: (-change[expert].item(), expert))[:count])


def prune(model: nn.Module, before: nn.Module | Mapping[str, Tensor] | None = None,
          keep: float | Mapping[str, list[int]] = 0.25) -> dict[str, list[int]]:
    """Removes experts of every MoE layer, in place; a new optimizer is needed. Returns the ids that stay, by layer.

    Experts stay whose router row grew most in norm since `before`, the network (or its state_dict()) at the start of
    fine-tuning (pruning paper, arXiv 2405.16646, section 5). `keep` is a fraction of the experts before pruning, a
    number, or what an earlier call returned: `prune(fresh, keep=kept)` gives a new network the shape of saved weights.
    Raises TypeError or ValueError, before a layer changes, for another `keep`, unknown ids, and where a token is left
    fewer experts than it selects.
    """
    layers = moe_layers(model)
    if isinstance(keep, Mapping):
        if keep.keys() != layers.keys():
            raise ValueError(f"prune: `keep` names {list(keep)}, the network has {list(layers)}")
        kept = {name: kept_of(layers[name], name, ids) for name, ids in keep.items()}
    else:
        check_number("prune: keep", keep, 0)
        if before is None:
            raise ValueError("prune: give `before`, the network or the state_dict() that fine-tuning began with")
        state = before.state_dict() if isinstance(before, nn.Module) else before
        kept = {name: kept_by(layer, name, state, keep) for name, layer in layers.items()}
    for name, ids in kept.items():
        layers[name].keep_experts(ids)
    return kept
