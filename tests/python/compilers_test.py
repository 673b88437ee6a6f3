#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The operators for any number of tokens and for half logits: compilers_test.py PATH/TO/libmoesaic.so [unittest's
arguments]

torch.compile and torch.export do not know the number of tokens, and the shape functions are the kernels' sizes; logits of
bfloat16 and float16 give what float32 of the same numbers gives.
"""
import sys
import unittest

import torch
from operators_test import (EXPERT_SOFTMAX_EXPERTS, EXPERT_SOFTMAX_SELECTED, EXPERTS, HIDDEN, LAYERS, OPS, ROUTINGS,
                            SOFTMAX_ALL, SOFTMAX_SELECTED, TANH, TOKENS, WIDTH, check, expert_choice, layer_inputs,
                            own_operators, patches_of, randn, token_choice)
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._python_dispatch import TorchDispatchMode

IDENTITY = 4

ROUTING_CALLS = {
    "token choice": lambda h: token_choice(h),
    "token choice, all experts": lambda h: token_choice(h, k=4, gate=SOFTMAX_SELECTED),
    "token choice, capacity": lambda h: token_choice(h, factor=0.7),
    "token choice, rounded capacity": lambda h: token_choice(h, factor=0.55, capacity_rounding=1,
                                                             capacity_multiple_of=1),
    "token choice, groups": lambda h: token_choice(h, factor=0.7, group=6, kept=(0, 3), priority=True),
    "token choice, rerouted": lambda h: token_choice(h, factor=0.7, group=6, kept=(0, 2, 3), reroute=True),
    "token choice, rows": lambda h: token_choice(h, group=4, capacity=3),
    "expert choice": lambda h: expert_choice(h),
    "expert choice, groups": lambda h: expert_choice(h, rows=1, group=6, kept=(1, 2)),
    "expert choice, capacity": lambda h: expert_choice(h, rows=0, factor=1.3, gate=EXPERT_SOFTMAX_EXPERTS),
    "expert choice, rounded": lambda h: expert_choice(h, rows=0, factor=3.1, group=6, capacity_rounding=1,
                                                      capacity_multiple_of=2),
    "adaptive": lambda h: OPS.route_adaptive(h, 0.1, []),
    "adaptive, pruned": lambda h: OPS.route_adaptive(h, 0.1, [1, 3]),
}
# Options that are sizes may follow from the number of tokens.
SIZED_CALLS = {
    "token choice, rows by tokens": lambda h: token_choice(h, capacity=h.shape[0] // 3),
    "token choice, groups by tokens": lambda h: token_choice(h, factor=0.7, group=h.shape[0] // 2 + 1),
    "expert choice, rows by tokens": lambda h: expert_choice(h, rows=h.shape[0] // 4 + 1),
    "expert choice, groups by tokens": lambda h: expert_choice(h, rows=2, group=h.shape[0] // 2 + 1),
}
HALVES = (torch.bfloat16, torch.float16)


def recorded(function, logits):
    """The operators and the arguments that a function of of_logits passes; none are those of a composite of ATen's."""
    calls = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, arguments=(), named=None):
            if operator.namespace == "moesaic":
                calls.append((operator.overloadpacket, arguments))
            return operator(*arguments, **(named or {}))

    with Record(), torch.no_grad():
        function(logits)
    return [(operator, (logits, *arguments[1:])) for operator, arguments in calls]


def of_logits(dtype, tokens=TOKENS):
    """What is computed from logits: name -> function, and logits that require gradients."""
    logits = layer_inputs(tokens=tokens, grad=False)[1].to(dtype).requires_grad_()
    calls = {name: (function, logits) for name, function in ROUTING_CALLS.items()}
    for twice in (False, True):
        labels = torch.arange(tokens) % EXPERTS
        calls[f"cross entropy, {twice}"] = (lambda h, twice=twice: OPS.cross_entropy(h, labels, twice)), logits
    return calls


def traced_calls(tokens, grad):
    """name -> function, its tensors, and the operator whose sizes it shows."""
    x, logits, *weights = layer_inputs(tokens=tokens, grad=grad)
    w1, b1, w2, b2 = weights
    plain = logits.detach()
    labels = torch.arange(tokens) % EXPERTS
    upstream = randn(tokens, WIDTH, seed=10, grad=False)
    for name, function in (ROUTING_CALLS | SIZED_CALLS).items():
        yield name, function, (logits,)
    for twice in (False, True):
        yield f"cross_entropy, {twice}", lambda h, y, twice=twice: OPS.cross_entropy(h, y, twice), (logits, labels)
    for kind, routing in (("by tokens", token_choice(plain, factor=0.7)), ("by experts", expert_choice(plain))):
        offsets, token, gate, token_offsets, token_row = routing[:5]
        gate.requires_grad_(grad)
        rows = randn(token.shape[0], WIDTH, seed=8, grad=grad)
        hidden = randn(token.shape[0], HIDDEN, seed=9, grad=False)
        back = token_offsets, token_row
        still = rows.detach()
        yield f"dispatch, {kind}", OPS.dispatch, (x, offsets, token, *back)
        yield f"dispatch_backward, {kind}", OPS.dispatch_backward, (still, *back)
        yield f"combine, {kind}", OPS.combine, (rows, gate, *back)
        yield f"combine_backward, {kind}", OPS.combine_backward, (upstream, still, gate.detach(), *back)
        for keep in (False, True):
            yield (f"grouped_mlp, {kind}, {keep}", lambda *t, keep=keep: OPS.grouped_mlp(*t, TANH, keep),
                   (rows, offsets, *weights))
        yield (f"grouped_mlp_backward, {kind}", lambda *t: OPS.grouped_mlp_backward(*t, TANH),
               tuple(t.detach() for t in (still, still, offsets, hidden, w1, b1, w2)))
        yield (f"routed_mlp, {kind}", lambda *t: OPS.routed_mlp(*t, TANH),
               (x, offsets, token, gate, *back, *weights))
        for patches in (patches_of(x), patches_of(x).requires_grad_(grad)):
            for activation in (TANH, IDENTITY):
                yield (f"filter_experts, {kind}, {activation}, {patches.requires_grad}",
                       lambda *t, activation=activation: OPS.filter_experts(*t, 1, activation, False),
                       (patches, offsets, token, w1, b1))
    _, token, gate, _, _, choice, choice_row = token_choice(plain, factor=0.7)
    yield ("route_token_choice_backward",
           lambda *t: OPS.route_token_choice_backward(*t, SOFTMAX_ALL, [], False), (gate, plain, choice, choice_row))
    _, token, gate, _, _ = expert_choice(plain, rows=0, factor=1.3)
    yield ("route_expert_choice_backward",
           lambda *t: OPS.route_expert_choice_backward(*t, 0, 1.3, 0, EXPERT_SOFTMAX_SELECTED, [], False, 0, 4),
           (gate, plain, token, gate))
    for name, (route, _) in ROUTINGS.items():
        for steps, layer in LAYERS.items():
            yield (f"layer, {name}, {steps}", lambda x, h, *w, route=route, layer=layer: layer(x, route(h), w),
                   (x, logits, *weights))


def outputs_and_gradients(function, tensors):
    found = function(*tensors)
    outputs = list(found) if isinstance(found, (tuple, list)) else [found]
    differentiable = [y for y in outputs if y.requires_grad]
    inputs = [t for t in tensors if t.requires_grad]
    gradients = torch.autograd.grad(differentiable, inputs, [torch.cos(y.detach()) for y in differentiable],
                                    allow_unused=True) if differentiable else ()
    return [t.detach() for t in outputs], [g for g in gradients if g is not None]


class UnknownNumberOfTokens(unittest.TestCase):
    SIZES = (10, 23, 7, 64, 17)  # no two sizes of the first call are equal: a compiler would take them for one

    def assert_same(self, function, traced, tensors):
        for found, wanted in zip(outputs_and_gradients(traced, tensors), outputs_and_gradients(function, tensors)):
            torch.testing.assert_close(found, wanted, equal_nan=True)

    def for_each_call(self, check):
        shown = set()
        for grad in (True, False):
            with RecordOperators(shown):
                by_size = [list(traced_calls(tokens, grad)) for tokens in self.SIZES]
                for of_sizes in zip(*by_size):
                    name, function, _ = of_sizes[0]
                    outputs_and_gradients(function, of_sizes[0][2])
            for of_sizes in zip(*by_size):
                name, function, _ = of_sizes[0]
                with self.subTest(call=name, grad=grad):
                    torch._dynamo.reset()
                    check(function, [tensors for _, _, tensors in of_sizes])
        composites = {"moesaic.cross_entropy", "moesaic.filter_experts"}  # traced as what they consist of
        self.assertEqual(shown, own_operators() - composites)

    def compiles_once(self, backend):
        def check(function, of_sizes):
            counter = CompileCounterWithBackend(backend)
            compiled = torch.compile(function, backend=counter, dynamic=True, fullgraph=True)
            for tensors in of_sizes:
                self.assert_same(function, compiled, tensors)
            self.assertEqual(counter.frame_count, 1)

        self.for_each_call(check)

    def test_one_compilation_serves_all(self):
        self.compiles_once("aot_eager")

    def test_export_takes_any(self):
        class Module(torch.nn.Module):
            def __init__(self, function):
                super().__init__()
                self.function = function

            def forward(self, *tensors):
                return self.function(*tensors)

        def check(function, of_sizes):
            first, second = of_sizes[:2]
            dynamic = tuple({d: Dim.DYNAMIC for d in range(a.dim()) if a.shape[d] != b.shape[d]}
                            for a, b in zip(first, second))
            program = torch.export.export(Module(function), tuple(first), dynamic_shapes={"tensors": dynamic})
            for tensors in of_sizes:
                self.assert_same(function, program.module(), tensors)

        self.for_each_call(check)

    def test_bounds_are_those_of_the_kernels(self):
        """A shape function's formula, without a guard that would tie it to some sizes."""
        for name, function in ROUTING_CALLS.items():
            with self.subTest(call=name):
                shapes = ShapeEnv()
                logits = layer_inputs(grad=False)[1]
                symbolic = FakeTensorMode(shape_env=shapes).from_tensor(
                    logits, symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC]))
                outputs = function(symbolic)
                self.assertEqual(shapes.guards, [])
                tokens = symbolic.shape[0].node.expr
                for count in range(3, 70):
                    wanted = function(randn(count, EXPERTS, seed=count, grad=False))
                    for found, real in zip(outputs, wanted):
                        self.assertEqual([at_size(n, tokens, count) for n in found.shape], list(real.shape))


def at_size(number, symbol, value):
    return int(number.node.expr.subs(symbol, value)) if isinstance(number, torch.SymInt) else number


class RecordOperators(TorchDispatchMode):
    def __init__(self, names):
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        if operator.namespace == "moesaic":
            self.names.add(str(operator.overloadpacket))
        return operator(*arguments, **(named or {}))


class HalfLogits(unittest.TestCase):
    def for_each(self, check):
        for dtype in HALVES:
            for name, (function, logits) in of_logits(dtype).items():
                with self.subTest(call=name, dtype=dtype):
                    check(function, logits)

    def test_equal_float32_of_the_same_numbers(self):
        def compare(function, logits):
            wide = logits.detach().float().requires_grad_()
            (found, narrow), (wanted, exact) = [outputs_and_gradients(function, (h,)) for h in (logits, wide)]
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
            self.assertEqual([g.dtype for g in narrow], [logits.dtype for _ in exact])
            torch.testing.assert_close(narrow, [g.to(logits.dtype) for g in exact], rtol=0, atol=0)
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    torch.testing.assert_close(outputs_and_gradients(function, (logits,))[0], wanted, rtol=0, atol=0,
                                               equal_nan=True)

        self.for_each(compare)

    def test_gradients_are_those_of_finite_differences(self):
        def compare(function, logits):
            def weighted(h):
                outputs = function(h)
                y = outputs[2] if isinstance(outputs, (tuple, list)) else outputs
                return torch.cos(torch.arange(y.numel(), dtype=y.dtype)) @ y.nan_to_num()

            y = weighted(logits)
            if not y.requires_grad:
                return  # adaptive routing has no gradient
            gradient, = torch.autograd.grad(y, logits)
            point, step = logits.detach().double(), 1e-6
            numeric = torch.zeros_like(point)
            for i in range(point.numel()):
                move = torch.zeros_like(point).view(-1)
                move[i] = step
                move = move.view_as(point)
                numeric.view(-1)[i] = (weighted(point + move) - weighted(point - move)) / (2 * step)
            digits = torch.finfo(logits.dtype).eps
            torch.testing.assert_close(gradient.double(), numeric, rtol=digits, atol=1e-5)

        self.for_each(compare)

    def test_one_compilation_serves_all_sizes(self):
        for dtype in HALVES:
            for name in of_logits(dtype):
                with self.subTest(call=name, dtype=dtype):
                    torch._dynamo.reset()
                    counter = CompileCounterWithBackend("aot_eager")
                    function, _ = of_logits(dtype)[name]
                    compiled = None
                    for tokens in UnknownNumberOfTokens.SIZES if "entropy" not in name else (TOKENS,):
                        logits = of_logits(dtype, tokens)[name][1]
                        compiled = compiled or torch.compile(function, backend=counter, dynamic=True, fullgraph=True)
                        for found, wanted in zip(outputs_and_gradients(compiled, (logits,)),
                                                 outputs_and_gradients(function, (logits,))):
                            torch.testing.assert_close(found, wanted, equal_nan=True)
                    self.assertEqual(counter.frame_count, 1)

    def test_opcheck(self):
        def check_recorded(function, logits):
            for operator, arguments in recorded(function, logits):
                check(operator, arguments)

        self.for_each(check_recorded)


if __name__ == "__main__":
    torch.ops.load_library(sys.argv.pop(1))
    # Fills what at::empty() gives with NaN, so that what a kernel does not write shows.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)  # what is computed here is too small to fraction
    unittest.main()
