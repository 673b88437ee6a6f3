# SPDX-License-Identifier: Apache-2.0
"""A mixture-of-experts layer as a module, and what its router decided."""
import contextlib
import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Names in the order of the operators' integers.
GATES = {
    "token_choice": ("softmax_selected", "softmax_all"),
    "expert_choice": ("softmax_selected", "softmax_tokens", "softmax_experts"),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
}


def index_of(what: str, name: str, names: Sequence[str]) -> int:
    """Returns the index of a name. Raises ValueError for an unknown name."""
    if name not in names:
        raise ValueError(f"MoE: {what}={name!r} is unknown; choose one of {', '.join(names)}")
    return list(names).index(name)


def check_number(what: str, value: float, least: float, kind: type = numbers.Real) -> None:
    """Raises TypeError for another kind of value, ValueError for a number below `least`, an infinite one and NaN."""
    fits = isinstance(value, kind)
    if not fits or not least <= value < math.inf:
        name = "whole" if kind is numbers.Integral else "finite"
        raise (ValueError if fits else TypeError)(f"{what}={value!r} must be a {name} number of at least {least}")


@dataclasses.dataclass(repr=False)
class Routing:
    """How a layer routed T tokens to K of E experts in its last forward pass."""
    logits: Tensor  # [T, E] without noise; differentiable within `with routing(model)`
    noisy_logits: Tensor  # [T, E] that decided
    offsets: Tensor  # [K + 1], the first row of each expert that is there
    unused: Tensor  # bool: choices [T, k] of experts that are there without room; tokens [T] that no expert chose

    @property
    def load(self) -> Tensor:
        """Number of rows of each kept expert, [K]."""
        return self.offsets.diff()

    @property
    def drops(self) -> Tensor:
        """Fraction of the tokens' choices that were dropped; where experts choose, of tokens that no expert chose."""
        return self.unused.float().mean()

    @property
    def entropy(self) -> Tensor:
        """Mean over tokens of the entropy of softmax(logits), in nats; at most ln E."""
        p = self.logits.detach().float().softmax(-1)
        return -torch.xlogy(p, p).sum(-1).mean()

    def detached(self) -> "Routing":
        """Returns this routing without gradients."""
        return dataclasses.replace(self, logits=self.logits.detach(), noisy_logits=self.noisy_logits.detach())


class Experts(nn.Module):
    """The weights of K MLPs, stacked: act(x w1 + b1) w2 + b2."""

    def __init__(self, experts: int, width: int, hidden: int):
        super().__init__()
        bound = math.sqrt(6 / (width + hidden))
        self.w1 = nn.Parameter(torch.empty(experts, width, hidden).uniform_(-bound, bound))
        self.b1 = nn.Parameter(torch.empty(experts, hidden).normal_(std=1e-6))
        self.w2 = nn.Parameter(torch.empty(experts, hidden, width).uniform_(-bound, bound))
        self.b2 = nn.Parameter(torch.empty(experts, width).normal_(std=1e-6))


class MoE(nn.Module):
    """A layer [..., width] -> [..., width] of which a token uses `k` experts (V-MoE, arXiv 2106.05974).

    With "token_choice" a token takes its k best experts; an expert computes at most capacity_factor * k / experts of
    a call's tokens, rounded up to a multiple of 4, and drops others (0: no limit). With "expert_choice" an expert takes
    as many of the best tokens of each image (all dimensions but the first and the last). `gate` is "softmax_all" (the
    default), "softmax_selected" or, where experts choose, "softmax_selected" (the default), "softmax_tokens",
    "softmax_experts". In training the router's logits get normal noise of standard deviation noise / experts.
    Parameters are named as in moesaic's checkpoints. Raises TypeError or ValueError for arguments that do not fit.
    """

    def __init__(self, width: int, hidden: int, experts: int, k: int = 2, router: str = "token_choice",
                 capacity_factor: float = 1.25, *, gate: str | None = None, activation: str = "gelu",
                 noise: float = 1.0):
        super().__init__()
        index_of("router", router, tuple(GATES))
        self.choice = router
        gates = GATES[router]
        self.gate = index_of("gate", gate or ("softmax_all" if router == "token_choice" else gates[0]), gates)
        index_of("activation", activation, tuple(ACTIVATIONS))
        self.activation = activation
        for what, count in (("width", width), ("hidden", hidden), ("experts", experts), ("k", k)):
            check_number(f"MoE: {what}", count, 1, numbers.Integral)
        check_number("MoE: capacity_factor", capacity_factor, 0)
        check_number("MoE: noise", noise, 0)
        if k > experts:
            raise ValueError(f"MoE: k={k} must be between 1 and the {experts} experts")
        if capacity_factor == 0 and router == "expert_choice":
            raise ValueError(f"MoE: capacity_factor={capacity_factor} gives an expert no token; choose 1.0")
        self.width, self.k, self.capacity_factor, self.noise = width, k, capacity_factor, noise
        self.kept = list(range(experts))  # ids of the experts that are there, see prune()
        self.router = nn.Linear(width, experts, bias=False)
        deviation = 1 / (math.sqrt(width) * 0.8796256610342398)  # 1 / sqrt(width) once it is cut
        nn.init.trunc_normal_(self.router.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        self.experts = Experts(experts, width, hidden)
        self.routing: Routing | None = None
        self.is_recorded = False  # whether `routing` keeps its gradients
        self.is_plain = False  # whether forward() does without moesaic's operators, for files

    @property
    def num_experts(self) -> int:
        """Number of experts before pruning, E."""
        return self.router.out_features

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on logits in training."""
        return self.noise / self.num_experts

    def extra_repr(self) -> str:
        return (f"experts={len(self.kept)} of {self.num_experts}, k={self.k}, router={self.choice!r}, "
                f"capacity_factor={self.capacity_factor}")

    def _tokens(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.width:
            raise ValueError(f"MoE: the last dimension of inputs must be {self.width}, found {x.shape[-1]}")
        return x.reshape(-1, self.width)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_plain:
            return self._plain(x)
        tokens = self._tokens(x)
        with torch.autocast(x.device.type, enabled=False):  # small differences of logits decide
            logits = self.router(tokens.to(self.router.weight.dtype))
        noisy = logits
        if self.training and self.noise > 0:
            noisy = logits + torch.randn_like(logits) * self.noise_std
        group = tokens.shape[0] // x.shape[0] if x.dim() > 2 and self.choice == "expert_choice" else 0
        matrix, unused = self._route(noisy, group)
        record = Routing(logits, noisy, matrix[0], unused)
        self.routing = record if self.is_recorded else record.detached()
        e = self.experts
        y = torch.ops.moesaic.routed_mlp(tokens, *matrix, e.w1, e.b1, e.w2, e.b2,
                                         list(ACTIVATIONS).index(self.activation))
        return y.reshape(x.shape)

    def _route(self, logits: Tensor, group: int) -> tuple[Sequence[Tensor], Tensor]:
        """Returns the sparse matrix of a routing of logits [T, E] and `Routing.unused`."""
        kept = self.kept if len(self.kept) < self.num_experts else []
        if self.choice == "expert_choice":
            matrix = torch.ops.moesaic.route_expert_choice(
                logits, capacity_factor=self.capacity_factor * self.k, group_size=group, gate=self.gate, kept=kept)
            return matrix, matrix[3].diff() == 0
        *matrix, choice, row = torch.ops.moesaic.route_token_choice(
            logits, self.k, self.gate, self.capacity_factor, kept=kept)
        unused = row < 0
        if kept:
            unused = unused & torch.isin(choice, torch.tensor(kept, dtype=choice.dtype, device=choice.device))
        return matrix, unused

    def _plain(self, x: Tensor) -> Tensor:
        """Computes forward() by PyTorch's operators alone, for files."""
        tokens = self._tokens(x)
        by_image = x.dim() > 2 and self.choice == "expert_choice"
        groups = x.reshape(x.shape[0], -1, self.width) if by_image else tokens.unsqueeze(0)
        logits = self.router(groups)
        weights = (self._weights_of_choices(logits[0]) if self.choice == "token_choice" else
                   self._weights_of_selections(logits).reshape(-1, self.num_experts))
        e = self.experts
        y = torch.zeros_like(tokens)
        for slot, expert in enumerate(self.kept):
            gate, inputs, token = weights[:, expert], tokens, None
            if self.capacity_factor > 0:  # room that is left goes to tokens of weight 0
                gate, token = gate.topk(self._room(groups))
                inputs = tokens.index_select(0, token)
            hidden = ACTIVATIONS[self.activation](inputs @ e.w1[slot] + e.b1[slot])
            rows = gate.unsqueeze(1) * (hidden @ e.w2[slot] + e.b2[slot])
            y = y + rows if token is None else y.index_add(0, token, rows)
        return y.reshape(x.shape)

    def _share(self) -> tuple[int, float]:
        """Returns the factors of tokens / experts in an expert's capacity."""
        return (self.k, self.capacity_factor) if self.choice == "token_choice" else (1, self.capacity_factor * self.k)

    def _capacity(self, token_logits: Tensor) -> Tensor:
        """Returns the operators' capacity of an expert for logits [T], in their order of operations."""
        k, factor = self._share()
        tokens = torch.ones_like(token_logits, dtype=torch.float64).sum()
        return torch.ceil(torch.ceil(tokens * k * factor / self.num_experts) / 4) * 4

    def _room(self, x: Tensor) -> Any:
        """Returns at least the rows of an expert for groups [groups, tokens, width], in whole numbers: 2^20 parts of a
        row of each token."""
        groups, tokens, _ = x.shape
        k, factor = self._share()
        parts = math.ceil(k * factor / self.num_experts * 2**20) + 1
        rows = ((tokens * parts + 2**20 - 1) // 2**20 + 3) // 4 * 4
        return torch.sym_min(groups * rows, groups * tokens)

    def _weights_of_choices(self, logits: Tensor) -> Tensor:
        """Returns the gates [T, E] of token choice, 0 for other experts and for dropped choices."""
        best = logits.sort(dim=1, descending=True, stable=True).indices[:, :self.k]  # ties go to the lower expert
        chosen = logits.gather(1, best)
        gates = chosen.softmax(1) if self.gate == 0 else logits.softmax(1).gather(1, best)
        if self.capacity_factor > 0:  # a queue holds all first choices before the second ones
            taken = F.one_hot(best.t().flatten(), self.num_experts)
            place = ((taken.cumsum(0) - 1) * taken).sum(1).unflatten(0, [self.k, -1]).t()
            gates = gates * (place < self._capacity(logits[:, 0]))
        return torch.zeros_like(logits).scatter(1, best, gates)

    def _weights_of_selections(self, logits: Tensor) -> Tensor:
        """Returns the gates [groups, tokens, E] of expert choice, 0 for tokens that an expert does not select."""
        score = logits.softmax(2) if self.gate == 2 else logits
        ranked, order = score.sort(dim=1, descending=True, stable=True)  # ties go to the earlier token
        rank = torch.arange(score.shape[1], device=score.device).unsqueeze(1)
        selected = rank < self._capacity(logits[0, :, 0])
        gates = (ranked.masked_fill(~selected, -math.inf).softmax(1), ranked.softmax(1) * selected,
                 ranked * selected)[self.gate]
        return torch.zeros_like(logits).scatter(1, order, gates)

    def keep_experts(self, ids: Sequence[int]) -> None:
        """Removes all experts but these ids. The router keeps its rows, so that the others' gates do not change; a
        token's removed choices give 0 (pruning paper, arXiv 2405.16646, eqs. 5-6). Optimizers hold the old
        parameters: make a new optimizer. Raises ValueError for unknown ids, and for no ids."""
        ids = sorted(set(ids))
        if not ids or not set(ids) <= set(self.kept):
            raise ValueError(f"MoE: experts {ids} cannot be kept; there are {self.kept}")
        slots = [self.kept.index(expert) for expert in ids]
        for name, stack in list(self.experts.named_parameters()):
            setattr(self.experts, name, nn.Parameter(stack.detach()[slots].clone(), stack.requires_grad))
        self.kept, self.routing = ids, None


def moe_layers(model: nn.Module) -> dict[str, MoE]:
    """Returns a network's layers by their names. Raises ValueError for a network without any."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, MoE)}
    if not layers:
        raise ValueError(f"{type(model).__name__} has no layer of type moesaic.MoE")
    return layers


def squared_variation(x: Tensor) -> Tensor:
    return x.var(correction=0) / x.mean().square()


class RecordedRouting:
    """The routing of a network's layers in their last forward passes, with gradients."""

    def __init__(self, layers: dict[str, MoE]):
        self.layers = layers

    def loss(self, importance: float = 0.005, load: float = 0.005) -> Tensor:
        """Returns the sum over layers of V-MoE's auxiliary losses times these weights (arXiv 2106.05974, appendix A).

        Importance: CV^2 of the sums over tokens of softmax(logits). Load: CV^2 of the mean over tokens of the
        probability that an expert's logit, with new noise, reaches the token's k-th largest one; only in training with
        noise. Layers whose experts choose are balanced and add nothing. Raises RuntimeError before a forward pass.
        """
        check_number("loss: importance", importance, 0)
        check_number("loss: load", load, 0)
        total = next(iter(self.layers.values())).router.weight.new_zeros((), dtype=torch.float32)
        for name, layer in self.layers.items():
            seen = layer.routing
            if seen is None:
                raise RuntimeError(f"routing: the layer {name!r} has computed nothing yet")
            if layer.choice == "expert_choice":
                continue
            logits = seen.logits.float()
            total = total + importance * squared_variation(logits.softmax(-1).sum(0))
            if load and layer.training and layer.noise > 0:
                noisy = seen.noisy_logits.float()
                order = noisy.detach().argsort(dim=1, descending=True, stable=True)
                threshold = noisy.gather(1, order[:, layer.k - 1:layer.k])
                p = 0.5 * torch.erfc((threshold - logits) / (layer.noise_std * math.sqrt(2)))
                total = total + load * squared_variation(p.mean(0))
        return total


@contextlib.contextmanager
def routing(model: nn.Module) -> Iterator[RecordedRouting]:
    """Keeps the gradients of what routers decide: `with routing(model) as r: loss = ce(model(x), y) + r.loss()`."""
    layers = moe_layers(model)
    for layer in layers.values():
        layer.routing, layer.is_recorded = None, True
    try:
        yield RecordedRouting(layers)
    finally:
        for layer in layers.values():
            layer.is_recorded = False
            if layer.routing is not None:
                layer.routing = layer.routing.detached()
