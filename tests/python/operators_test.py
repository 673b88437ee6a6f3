#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The operators as Python sees them: operators_test.py PATH/TO/libmoesaic.so [unittest's arguments]

Values and gradients against plain PyTorch loops, torch.autograd.gradcheck, and torch.library.opcheck.
"""
import math
import sys
import unittest

import torch
from torch.library import opcheck
from torch.testing._internal.optests import aot_autograd_check

OPS = torch.ops.moesaic
SOFTMAX_SELECTED, SOFTMAX_ALL = 0, 1  # of route_token_choice
EXPERT_SOFTMAX_SELECTED, EXPERT_SOFTMAX_TOKENS, EXPERT_SOFTMAX_EXPERTS = 0, 1, 2
RELU, GELU, CUBIC, TANH = 0, 2, 3, 6
ACTIVATION = {RELU: torch.relu, GELU: torch.nn.functional.gelu, TANH: torch.tanh}
TOKENS, EXPERTS, WIDTH, HIDDEN = 10, 4, 3, 5


def gradcheck(function, inputs):
    torch.autograd.gradcheck(function, inputs, rtol=1e-5, atol=1e-7)  # the defaults let 0.1 % pass


def randn(*shape, seed, dtype=torch.float64, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)


def layer_inputs(experts=EXPERTS, tokens=TOKENS, **options):
    """x, logits, w1, b1, w2, b2"""
    shapes = [(tokens, WIDTH), (tokens, EXPERTS), (experts, WIDTH, HIDDEN), (experts, HIDDEN),
              (experts, HIDDEN, WIDTH), (experts, WIDTH)]
    return [randn(*shape, seed=i, **options) for i, shape in enumerate(shapes)]


def token_choice(logits, k=2, gate=SOFTMAX_ALL, factor=0.0, group=0, kept=(), priority=False, reroute=False,
                 **options):
    return OPS.route_token_choice(logits, k, gate, factor, group, list(kept), priority, reroute, **options)


def expert_choice(logits, rows=3, factor=0.0, group=0, gate=EXPERT_SOFTMAX_SELECTED, kept=(), **options):
    return OPS.route_expert_choice(logits, rows, factor, group, gate, list(kept), **options)


def after_routing(x, routing, weights, activation=GELU):
    offsets, token, gate, token_offsets, token_row = routing[:5]
    rows = OPS.dispatch(x, offsets, token, token_offsets, token_row)
    rows, _ = OPS.grouped_mlp(rows, offsets, *weights, activation, False)
    return OPS.combine(rows, gate, token_offsets, token_row)


def after_routing_at_once(x, routing, weights, activation=GELU):
    return OPS.routed_mlp(x, *routing[:5], *weights, activation)


def plain_experts(x, gates, weights, activation=GELU):
    """gates: {(token, expert): weight}"""
    w1, b1, w2, b2 = weights
    y = [torch.zeros_like(row) for row in x]
    for (token, expert), gate in gates.items():
        hidden = ACTIVATION[activation](x[token] @ w1[expert] + b1[expert])
        y[token] = y[token] + gate * (hidden @ w2[expert] + b2[expert])
    return torch.stack(y)


def plain_token_choice(logits, k=2, gate=SOFTMAX_ALL, factor=0.0):
    tokens, experts = logits.shape
    capacity = math.ceil(tokens * k * factor / experts + 3) // 4 * 4 if factor else tokens
    choice = logits.argsort(dim=1, descending=True, stable=True)[:, :k].tolist()
    free, gates = [capacity] * experts, {}
    for rank in range(k):
        for token in range(tokens):
            expert = choice[token][rank]
            if free[expert] > 0:
                free[expert] -= 1
                seen = logits[token] if gate == SOFTMAX_ALL else logits[token, choice[token]]
                gates[token, expert] = logits[token, expert].exp() / seen.exp().sum()
    return gates


def plain_expert_choice(logits, rows=3, gate=EXPERT_SOFTMAX_SELECTED):
    by_expert = logits.softmax(dim=1) if gate == EXPERT_SOFTMAX_EXPERTS else logits
    gates = {}
    for expert in range(logits.shape[1]):
        score = by_expert[:, expert]
        best = score.argsort(descending=True, stable=True)[:rows]
        if gate == EXPERT_SOFTMAX_SELECTED:
            chosen = score[best].softmax(dim=0)
        elif gate == EXPERT_SOFTMAX_TOKENS:
            chosen = score.softmax(dim=0)[best]
        else:
            chosen = score[best]
        gates.update({(token, expert): weight for token, weight in zip(best.tolist(), chosen)})
    return gates


def plain_adaptive(logits, threshold):
    return {(t, e): 1.0 for t, e in (logits >= threshold).nonzero().tolist()}


ROUTINGS = {
    "token choice, dropless": (lambda h: token_choice(h), lambda h: plain_token_choice(h)),
    "token choice, capacity": (lambda h: token_choice(h, gate=SOFTMAX_SELECTED, factor=0.7),
                               lambda h: plain_token_choice(h, gate=SOFTMAX_SELECTED, factor=0.7)),
    **{f"expert choice, gate {gate}": (lambda h, gate=gate: expert_choice(h, gate=gate),
                                       lambda h, gate=gate: plain_expert_choice(h, gate=gate))
       for gate in (EXPERT_SOFTMAX_SELECTED, EXPERT_SOFTMAX_TOKENS, EXPERT_SOFTMAX_EXPERTS)},
    "adaptive": (lambda h: OPS.route_adaptive(h, 0.2, []), lambda h: plain_adaptive(h, 0.2)),
}
LAYERS = {"three operators": after_routing, "routed_mlp": after_routing_at_once}


class WholeLayers(unittest.TestCase):
    def for_each(self, check):
        for name, (route, plain) in ROUTINGS.items():
            for steps, layer in LAYERS.items():
                with self.subTest(routing=name, layer=steps):
                    check(route, plain, layer)

    def test_values_and_gradients_equal_plain_loops(self):
        def compare(route, plain, layer):
            for activation in ACTIVATION:
                inputs = layer_inputs()
                x, logits, *weights = inputs
                found = layer(x, route(logits), weights, activation)
                wanted = plain_experts(x, plain(logits), weights, activation)
                torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
                upstream = randn(*found.shape, seed=9, grad=False)
                for a, b in zip(torch.autograd.grad(found, inputs, upstream, allow_unused=True),
                                torch.autograd.grad(wanted, inputs, upstream, allow_unused=True)):
                    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)

        self.for_each(compare)

    def test_without_gradients_the_values_are_the_same_bits(self):
        def compare(route, _, layer):
            x, logits, *weights = layer_inputs(dtype=torch.float32)
            wanted = layer(x, route(logits), weights)
            self.assertTrue(wanted.requires_grad)
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    found = layer(x, route(logits), weights)
                self.assertFalse(found.requires_grad)
                self.assertTrue(torch.equal(found, wanted))

        self.for_each(compare)

    def test_gradcheck(self):
        self.for_each(lambda route, _, layer: gradcheck(
            lambda x, logits, *weights: layer(x, route(logits), weights), layer_inputs()))

    def test_gradcheck_of_a_pruned_layer(self):
        for reroute in (False, True):
            gradcheck(
                lambda x, logits, *weights: after_routing(
                    x, token_choice(logits, factor=0.7, kept=(0, 2, 3), priority=True, reroute=reroute), weights),
                layer_inputs(experts=3))


class Operators(unittest.TestCase):
    def test_indices_have_no_gradient(self):
        logits = layer_inputs()[1]
        for routing in (token_choice(logits), expert_choice(logits)):
            self.assertEqual([t.requires_grad for t in routing], [i == 2 for i in range(len(routing))])

    def test_hidden_is_kept_only_where_asked_or_needed(self):
        for grad, keep, rows in ((False, False, 0), (False, True, 2 * TOKENS), (True, False, 2 * TOKENS)):
            x, logits, *weights = layer_inputs(grad=grad)
            offsets, token, _, token_offsets, token_row = token_choice(logits)[:5]
            rows_of_x = OPS.dispatch(x, offsets, token, token_offsets, token_row)
            self.assertEqual(OPS.grouped_mlp(rows_of_x, offsets, *weights, GELU, keep)[1].shape, (rows, HIDDEN))

    def test_a_wrong_argument_is_a_python_error(self):
        x, logits, *weights = layer_inputs()
        with self.assertRaisesRegex(RuntimeError, "route_token_choice: k must be between 1 and the 4 experts"):
            token_choice(logits, k=5)
        offsets, token, _, token_offsets, token_row = token_choice(logits)[:5]
        with self.assertRaisesRegex(RuntimeError, "dispatch: token must be between 0 and 9, found 10"):
            OPS.dispatch(x, offsets, token.clone().fill_(TOKENS), token_offsets, token_row)


def patches_of(x):
    """Two patches of each token; only the filters want gradients."""
    return torch.stack((x, 2 * x), dim=1).detach()


def samples(dtype):
    """Arguments of every operator that users call, with and without gradients."""
    for grad in (True, False):
        x, logits, *weights = layer_inputs(dtype=dtype, grad=grad)
        for gate in range(4):
            yield OPS.route_token_choice, (logits, 2, gate, 0.0, 0, [], False, False)
            yield OPS.route_token_choice, (logits, 2, gate, 0.7, 5, [0, 3], True, gate % 2 == 0)
            yield OPS.route_expert_choice, (logits, 3, 0.0, 5, gate, [])
            yield OPS.route_expert_choice, (logits, 0, 1.5, 0, gate, [1, 2])
        yield OPS.route_adaptive, (logits, 0.1, [])
        yield OPS.route_adaptive, (logits, 0.1, [1, 3])
        for routing in (token_choice(logits.detach(), factor=0.7), expert_choice(logits.detach())):
            offsets, token, gate, token_offsets, token_row = routing[:5]
            gate.requires_grad_(grad)
            rows = randn(token.shape[0], WIDTH, seed=8, dtype=dtype, grad=grad)
            yield OPS.dispatch, (x, offsets, token, token_offsets, token_row)
            yield OPS.combine, (rows, gate, token_offsets, token_row)
            yield OPS.combine, (rows, gate, token_offsets, token_row, offsets, weights[3].detach())
            for keep in (True, False):
                yield OPS.grouped_mlp, (rows, offsets, *weights, TANH, keep)
                yield OPS.grouped_mlp, (rows, offsets, *weights, TANH, keep, False)
            yield OPS.routed_mlp, (x, offsets, token, gate, token_offsets, token_row, *weights, TANH)
            for keep in (True, False):
                for activation in (TANH, CUBIC):
                    yield OPS.filter_experts, (patches_of(x), offsets, token, *weights[:2], 1, activation, keep)
        labels = torch.arange(logits.shape[0]) % logits.shape[1]
        for twice in (False, True):
            yield OPS.cross_entropy, (logits, labels, twice)


def backward_samples(dtype):
    x, logits, w1, b1, w2, _ = layer_inputs(dtype=dtype, grad=False)
    offsets, token, gate, token_offsets, token_row, choice, choice_row = token_choice(logits, factor=0.7)
    rows = randn(token.shape[0], WIDTH, seed=8, dtype=dtype, grad=False)
    hidden = randn(token.shape[0], HIDDEN, seed=9, dtype=dtype, grad=False)
    yield OPS.route_token_choice_backward, (gate, logits, choice, choice_row, SOFTMAX_ALL, [], False)
    yield OPS.dispatch_backward, (rows, token_offsets, token_row)
    yield OPS.combine_backward, (x, rows, gate, token_offsets, token_row)
    yield OPS.grouped_mlp_backward, (rows, rows, offsets, hidden, w1, b1, w2, TANH)
    _, token, gate, _, _ = expert_choice(logits)
    yield OPS.route_expert_choice_backward, (gate, logits, token, gate, 3, 0.0, 0, EXPERT_SOFTMAX_SELECTED, [],
                                             False, 0, 4)


def check(operator, arguments):
    if not operator(*arguments)[0].is_floating_point() and operator(*arguments)[2].requires_grad:
        opcheck(operator.default, arguments,
                test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
        # test_aot_dispatch_dynamic adds up all outputs in the dtype of the first, which is an index here. This is
        # what it calls, with the gates first.
        aot_autograd_check(lambda *a: gates_first(*operator(*a)), arguments, {}, dynamic=True)
    else:
        opcheck(operator.default, arguments)


def gates_first(offsets, token, gate, *others):
    return gate, offsets, token, *others


def own_operators():
    return {s.name.replace("::", ".") for s in torch._C._jit_get_all_schemas() if s.name.startswith("moesaic::")}


class OpCheck(unittest.TestCase):
    def test_every_operator(self):
        checked = set()
        for dtype in (torch.float64, torch.float32):
            for i, (operator, arguments) in enumerate(samples(dtype)):
                with self.subTest(operator=str(operator), dtype=dtype, sample=i):
                    check(operator, arguments)
                checked.add(str(operator))
            for operator, arguments in backward_samples(dtype):
                with self.subTest(operator=str(operator), dtype=dtype):
                    # They are what gradients call: they have none of their own to register or trace.
                    opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))
                checked.add(str(operator))
        self.assertEqual(checked, own_operators())


if __name__ == "__main__":
    torch.ops.load_library(sys.argv.pop(1))
    # Fills what at::empty() gives with NaN, so that what a kernel does not write shows.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)  # what is computed here is too small to fraction
    unittest.main()
