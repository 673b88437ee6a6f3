# SPDX-License-Identifier: Apache-2.0
"""Experts of Hugging Face's transformers on moesaic's operators, which, once this module is imported, compute a
mixture such as Mixtral's or Qwen3's with `experts_implementation="moesaic"`."""
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import moesaic  # noqa: F401  its operators

try:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # pyright: ignore[reportMissingImports]
except ImportError as problem:
    raise ImportError(f"moesaic.transformers needs transformers 5 ({problem}); pip install 'transformers>=5'") from problem


def csr(expert_Tk: Tensor, gate_Tk: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the sparse matrix of a routing as moesaic's operators take it: offsets [experts + 1], token [A],
    gate [A], token_offsets [T + 1], token_row [A]. Rows are sorted by expert, then by token; A = T k."""
    tokens, k = expert_Tk.shape
    expert, order = expert_Tk.flatten().sort(stable=True)
    row = torch.empty_like(order).scatter_(0, order, torch.arange(tokens * k, device=order.device))
    bounds = torch.arange(experts + 1, device=order.device)
    offsets = torch.searchsorted(expert, bounds.to(expert.dtype), out_int32=True)
    token_offsets = torch.arange(0, (tokens + 1) * k, k, dtype=torch.int32, device=order.device)
    return offsets, (order // k).int(), gate_Tk.flatten()[order], token_offsets, row.int()


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Computes y[t] = sum over i of top_k_weights[t, i] * W_down(act(W_gate x[t]) * (W_up x[t])) of expert
    top_k_index[t, i], for hidden_states [T, d], in place of an experts module's forward() in transformers.

    `dispatch` and `combine` are moesaic's; the products of all experts' rows are PyTorch's grouped_mm, which takes one
    matrix an expert where `grouped_mlp` takes an MLP of two, and rows of a multiple of 16 bytes. Raises
    NotImplementedError for experts that transformers spreads over processes or follows by a norm.
    """
    if self._is_expert_parallel or getattr(self, "has_post_expert_norm", False):
        raise NotImplementedError(f"moesaic: {type(self).__name__} is expert-parallel or has a norm after its experts; "
                                  'choose experts_implementation="grouped_mm"')
    offsets, token, gate, token_offsets, token_row = csr(top_k_index, top_k_weights, self.num_experts)
    expert = torch.repeat_interleave(offsets.diff(), output_size=token.numel()) if self.has_bias else None

    def linear(rows: Tensor, name: str) -> Tensor:
        weight = getattr(self, name)  # [E, out, in], or transposed
        rows = F.grouped_mm(rows.to(weight.dtype), weight if self.is_transposed else weight.mT, offs=offsets[1:])
        return rows if expert is None else rows + getattr(self, f"{name}_bias")[expert]

    rows = torch.ops.moesaic.dispatch(hidden_states, offsets, token, token_offsets, token_row)
    rows = self._apply_gate(linear(rows, "gate_up_proj")) if self.has_gate else self.act_fn(linear(rows, "up_proj"))
    rows = linear(rows, "down_proj")
    y = torch.ops.moesaic.combine(rows, gate.to(rows.dtype), token_offsets, token_row)
    return y.to(hidden_states.dtype)


ALL_EXPERTS_FUNCTIONS.register("moesaic", experts_forward)
