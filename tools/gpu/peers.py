#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times other ways to compute the layer of `moesaic bench operators --rows 'gpu/*'`, and what the GPU itself gives.

The layer: bfloat16, 66 560 tokens of width 768, hidden width 3072, 8 experts of which each token takes 2, biases, GELU by
tanh. Each row is one line as soon as it is known; what fails is one line as well and ends nothing. Without a GPU, and with
--quick, tensors are small and the times say nothing. ScatterMoE is measured where PYTHONPATH finds the package scattermoe.
"""
import argparse
import importlib.util
import time

import torch
import torch.nn.functional as F

from cublaslt import BatchedProduct

GPU = torch.cuda.is_available()
DEVICE, TYPE = "cuda" if GPU else "cpu", torch.bfloat16


class Sizes:
    def __init__(self, small: bool):
        self.T, self.D, self.H, self.E, self.K = (256, 32, 64, 8, 2) if small else (66_560, 768, 3072, 8, 2)
        self.square, self.bytes = (64, 1 << 16) if small else (8192, 1 << 30)
        self.seconds = 0.01 if small else 0.4
        self.product_flops = 2.0 * self.T * self.K * self.D * self.H  # of one of the layer's two products


def median_ms(work, seconds: float) -> float:
    """The median time of calls that follow each other, after three that compile and warm up."""
    for _ in range(3):
        work()
    if not GPU:
        began = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - began)
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    count = max(5, min(200, int(seconds / max(time.perf_counter() - began, 1e-5))))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    times = sorted(first.elapsed_time(last) for first, last in zip(marks, marks[1:]))
    return times[count // 2]


class Rows:
    def __init__(self, seconds: float):
        self.seconds, self.measured, self.failed = seconds, 0, 0

    def fail(self, name: str, error: Exception) -> None:
        self.failed += 1
        first = (str(error).strip().splitlines() or [""])[0]
        print(f"row {name:<44} failed: {type(error).__name__}: {first[:200]}", flush=True)

    def add(self, name: str, make_work, flops: float = 0.0, moved_bytes: float = 0.0) -> None:
        """`make_work` is called once; what it returns is timed."""
        try:
            ms = median_ms(make_work(), self.seconds)
        except Exception as error:  # whatever a peer throws
            self.fail(name, error)
            return
        self.measured += 1
        rate = f"{flops / ms / 1e9:10.1f} TFLOP/s" if flops else f"{moved_bytes / ms / 1e6:10.0f} GB/s" if moved_bytes else ""
        print(f"row {name:<44} {ms:10.4f} ms {rate}", flush=True)


def draw(*shape, scale: float = 1.0):
    return torch.randn(*shape, device=DEVICE, dtype=TYPE) * scale


def gelu(x):
    return F.gelu(x, approximate="tanh")


def expect_close(found, wanted) -> None:
    apart = ((found.float() - wanted.float()).norm() / wanted.float().norm()).item()
    if not apart < 0.02:
        raise ValueError(f"differs by {apart:.2e} from the same computed by steps")


def ceilings(rows: Rows, n: Sizes) -> None:
    a, b = draw(n.square, n.square), draw(n.square, n.square)
    rows.add(f"ceiling/product_{n.square}", lambda: lambda: a @ b, flops=2.0 * n.square**3)
    source = torch.empty(n.bytes, device=DEVICE, dtype=torch.uint8)
    target = torch.empty_like(source)
    rows.add("ceiling/copy", lambda: lambda: target.copy_(source), moved_bytes=2.0 * n.bytes)


def products(rows: Rows, n: Sizes) -> None:
    """The layer's products alone, with as many rows for every expert: grouped, batched, and one dense product."""
    flops = n.product_flops
    x, h = draw(n.T * n.K, n.D), draw(n.T * n.K, n.H)
    w1, w2, b1 = draw(n.E, n.D, n.H, scale=0.03), draw(n.E, n.H, n.D, scale=0.03), draw(n.E, n.H, scale=0.1)
    ends = torch.arange(1, n.E + 1, device=DEVICE, dtype=torch.int32) * (n.T * n.K // n.E)
    x3, h3 = x.view(n.E, -1, n.D), h.view(n.E, -1, n.H)
    rows.add("products/grouped_mm_first", lambda: lambda: torch._grouped_mm(x, w1, offs=ends), flops)
    rows.add("products/grouped_mm_second", lambda: lambda: torch._grouped_mm(h, w2, offs=ends), flops)
    rows.add("products/grouped_mm_first_gradient", lambda: lambda: torch._grouped_mm(h, w1.transpose(1, 2), offs=ends), flops)
    rows.add("products/grouped_mm_second_gradient", lambda: lambda: torch._grouped_mm(x, w2.transpose(1, 2), offs=ends), flops)
    rows.add("products/grouped_mm_weight_gradient", lambda: lambda: torch._grouped_mm(x.t(), h, offs=ends), flops)
    rows.add("products/batched_first", lambda: lambda: torch.bmm(x3, w1), flops)
    rows.add("products/batched_second", lambda: lambda: torch.bmm(h3, w2), flops)
    rows.add("products/dense_first", lambda: lambda: x @ w1[0], flops)
    rows.add("products/dense_second", lambda: lambda: h @ w2[0], flops)

    # With bias and GELU. PyTorch reaches cuBLASLt's epilogue for one product (_addmm_activation), not for a batch.
    rows.add("gelu/batched_then_bias_gelu", lambda: lambda: gelu(torch.baddbmm(b1[:, None], x3, w1)), flops)
    rows.add("gelu/bias_gelu_alone", lambda: lambda: gelu(h3 + b1[:, None]), moved_bytes=2.0 * h.nbytes)
    rows.add("gelu/epilogue_dense", lambda: lambda: torch._addmm_activation(b1[0], x, w1[0], use_gelu=True), flops)
    rows.add("gelu/epilogue_each_expert",
             lambda: lambda: [torch._addmm_activation(b1[e], x3[e], w1[e], use_gelu=True) for e in range(n.E)], flops)
    if not GPU:
        print("gelu/epilogue_batched: left out, cuBLASLt needs a GPU", flush=True)
        return
    batched_epilogues(rows, flops, x3, w1, b1, w2)


def batched_epilogues(rows: Rows, flops: float, x3, w1, b1, w2) -> None:
    """By cuBLASLt's own interface: forward for inference, forward that keeps GELU's input, and its gradient."""
    before = torch.baddbmm(b1[:, None], x3, w1)
    out, aux = torch.empty_like(before), torch.empty_like(before)

    def checked(wanted, *arguments, **options):
        product = BatchedProduct(*arguments, **options)
        expect_close(product(), wanted)
        return product

    def gradient():
        leaf = before.detach().clone().requires_grad_()
        (wanted,) = torch.autograd.grad(gelu(leaf), leaf, torch.bmm(x3, w2.transpose(1, 2)))
        return checked(wanted, x3, w2, out, aux=before, transposed=True, derivative=True)

    rows.add("gelu/epilogue_batched", lambda: checked(gelu(before), x3, w1, out, bias=b1), flops)
    rows.add("gelu/epilogue_batched_keeps_input", lambda: checked(gelu(before), x3, w1, out, bias=b1, aux=aux), flops)
    rows.add("gelu/epilogue_batched_gradient", gradient, flops)


def route(x, router, k: int):
    return torch.topk(torch.softmax((x @ router).float(), -1), k, -1)


def loop_layer(n: Sizes):
    def layer(x, router, w1, b1, w2, b2):
        gates, chosen = route(x, router, n.K)
        y = torch.zeros_like(x)
        for e in range(n.E):
            token, rank = torch.nonzero(chosen == e, as_tuple=True)
            out = torch.addmm(b2[e], gelu(torch.addmm(b1[e], x[token], w1[e])), w2[e])
            y = y.index_add(0, token, out * gates[token, rank].unsqueeze(1).to(out.dtype))
        return y
    return layer


def grouped_layer(n: Sizes):
    def layer(x, router, w1, b1, w2, b2):
        gates, chosen = route(x, router, n.K)
        expert, order = torch.sort(chosen.reshape(-1), stable=True)
        token = order // n.K
        ends = F.one_hot(expert, n.E).sum(0).cumsum(0).to(torch.int32)
        hidden = gelu(torch._grouped_mm(x[token], w1, offs=ends) + b1[expert])
        out = torch._grouped_mm(hidden, w2, offs=ends) + b2[expert]
        return torch.zeros_like(x).index_add(0, token, out * gates.reshape(-1)[order].unsqueeze(1).to(x.dtype))
    return layer


def scatter_layer(n: Sizes):
    from scattermoe import flatten_sort_count, parallel_linear

    def layer(x, router, w1, b1, w2, b2):
        gates, chosen = route(x, router, n.K)
        expert, scattered, offsets = flatten_sort_count(chosen, num_experts=n.E)
        hidden = gelu(parallel_linear(x, w1, n.K, expert, scattered, offsets, expert_biases=b1, grouped_out=True))
        return parallel_linear(hidden, w2, 1, expert, scattered, offsets, expert_biases=b2, grouped_in=True,
                               gates=gates.to(x.dtype))
    return layer


def layers(rows: Rows, n: Sizes) -> None:
    values = (draw(n.T, n.D), draw(n.D, n.E, scale=0.05), draw(n.E, n.D, n.H, scale=0.03), draw(n.E, n.H, scale=0.1),
              draw(n.E, n.H, n.D, scale=0.03), draw(n.E, n.D, scale=0.1))

    def forward(make_layer):
        layer = make_layer(n)
        with torch.no_grad():
            expect_close(layer(*values), loop_layer(n)(*values))

        def work():
            with torch.no_grad():
                layer(*values)
        return work

    def train(make_layer):
        layer = make_layer(n)
        leaves = [value.detach().clone().requires_grad_() for value in values]
        gradient = torch.randn_like(leaves[0])

        def work():
            for leaf in leaves:
                leaf.grad = None
            layer(*leaves).backward(gradient)
        return work

    peers = {"loop": loop_layer, "grouped_mm": grouped_layer,
             "grouped_mm_compiled": lambda sizes: torch.compile(grouped_layer(sizes))}
    if importlib.util.find_spec("scattermoe"):
        peers["scattermoe"] = scatter_layer
    else:
        print("scattermoe: left out, no such package", flush=True)
    for name, make_layer in peers.items():
        rows.add(f"forward/{name}", lambda: forward(make_layer), 2 * n.product_flops)
        rows.add(f"train/{name}", lambda: train(make_layer), 6 * n.product_flops)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small tensors")
    sizes = Sizes(parser.parse_args().quick or not GPU)
    rows = Rows(sizes.seconds)
    print(f"{torch.cuda.get_device_name() if GPU else 'no GPU'}, torch {torch.__version__}", flush=True)
    torch.manual_seed(1)
    for part in (ceilings, products, layers):
        try:
            part(rows, sizes)
        except Exception as error:  # e.g. no memory for its tensors
            rows.fail(part.__name__, error)
    print(f"{rows.measured} rows, {rows.failed} failed{'' if GPU else ', no GPU'}")
    return 1 if rows.failed or not rows.measured else 0


if __name__ == "__main__":
    raise SystemExit(main())
