# SPDX-License-Identifier: Apache-2.0
# The example of docs/operators.md in Python.
import torch

torch.ops.load_library("build/release/lib/libmoesaic.so")
ops = torch.ops.moesaic

tokens, experts, width, hidden = 256, 8, 16, 32
torch.manual_seed(0)
x = torch.randn(tokens, width)
router = torch.randn(width, experts, requires_grad=True)
weights = (torch.randn(experts, width, hidden), torch.zeros(experts, hidden),
           torch.randn(experts, hidden, width), torch.zeros(experts, width))

offsets, token, gate, token_offsets, token_row, *_ = ops.route_token_choice(x @ router, k=2, capacity_factor=1.0)
rows = ops.dispatch(x, offsets, token, token_offsets, token_row)
rows, _ = ops.grouped_mlp(rows, offsets, *weights, activation=2)
y = ops.combine(rows, gate, token_offsets, token_row)  # [tokens, width]

y.square().mean().backward()  # through the gates into the router
print("rows of each expert:", *offsets.diff().tolist())
print(f"norm of the router's gradient: {router.grad.norm():.2g}")
