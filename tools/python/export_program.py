# SPDX-License-Identifier: Apache-2.0
"""Records the network of a folder that `moesaic export --format pytorch` wrote.

export_program.py pt2|onnx FOLDER OUT TORCH_VERSION
"""
import functools
import importlib.util
import logging
import sys
import warnings
from pathlib import Path

BATCH = 3  # torch.export takes sizes 0 and 1 for constants
TEXTS = ("config", "labels", "preprocess", "evaluation")
TOLERANCE = 1e-5


def stop(text):
    sys.exit(f"error: {text}")


def network_of(folder):
    spec = importlib.util.spec_from_file_location("modeling", folder / "modeling.py")
    modeling = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(modeling)
    return modeling, modeling.load(folder)


def lay_out_factors(program):
    """Copies what a number multiplies where it is a view with gaps: the runner's kernel reads it without strides."""
    import torch

    aten = torch.ops.aten
    for node in list(program.graph.nodes):
        if node.target not in (aten.mul.Tensor, aten.mul.Scalar) or isinstance(node.args[1], torch.fx.Node):
            continue
        factor = node.args[0]
        if factor.meta["val"].is_contiguous():
            continue
        with program.graph.inserting_before(node):
            copy = program.graph.call_function(
                aten.clone.default, (factor,), {"memory_format": torch.contiguous_format})
        copy.meta = {**factor.meta, "val": factor.meta["val"].contiguous()}
        node.replace_input_with(factor, copy)
    program.graph_module.recompile()


def read_constants_in_place(program):
    """Drops the copies of constants, to which our networks do not write: the runner spends microseconds on each node."""
    import torch

    aten = torch.ops.aten
    for node in list(program.graph.nodes):
        if node.target in (aten.lift_fresh_copy.default, aten.detach_.default):
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    program.graph_module.recompile()


def write_pt2(network, images, texts, out, is_ours=False):
    import torch
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    program = torch.export.export(network, (images,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    for symbol in list(program.range_constraints):  # it is recorded for 2 and more, and right for 1
        program._range_constraints[symbol] = ValueRanges(1, int_oo)
    lay_out_factors(program)
    if is_ours:
        read_constants_in_place(program)
    for node in program.graph.nodes:  # where its source lay is no part of a network
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
            node.meta.pop(key, None)
    torch.export.save(program, out, extra_files=texts)


def stable_sort():
    """Returns aten.sort.stable in ONNX, whose TopK gives ties to the lower index."""
    from onnxscript import opset20 as op

    def sort(x, stable=None, dim: int = -1, descending: bool = False):
        count = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
        return op.TopK(x, count, axis=dim, largest=1 if descending else 0, sorted=1)

    return sort


def int8_product():
    """Returns aten._int_mm in ONNX."""
    from onnxscript import opset20 as op

    def product(x, weights):
        return op.MatMulInteger(x, weights)

    return product


def write_onnx(network, images, texts, out):
    import torch

    outputs = network(images)
    layers = len(outputs) - 1 if isinstance(outputs, tuple) else 0
    program = torch.onnx.export(
        network, (images,), dynamo=True, opset_version=20, verbose=False, input_names=["images"],
        output_names=["logits"] + [f"routing.{layer}" for layer in range(layers)],
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        custom_translation_table={
            torch.ops.aten.sort.stable: stable_sort(), torch.ops.aten._int_mm.default: int8_product()})
    for node in program.model.graph:
        node.metadata_props.clear()
    program.model.metadata_props.update(texts)
    program.save(out, external_data=False)


def prove_onnx(proof, out, outputs):
    """Runs the file on images and compares its outputs with the network's own logits and routing."""
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(out, options, providers=["CPUExecutionProvider"])
    for images in sorted(name for name in proof if name.startswith("images.")):
        batch = images.partition(".")[2]
        for name, found in zip(outputs, session.run(outputs, {"images": proof[images].numpy()})):
            wanted = proof[f"{name}.{batch}"].numpy()
            fits = found.shape == wanted.shape and numpy.isfinite(found).all()
            error = numpy.abs(found - wanted).max() / max(1.0, numpy.abs(wanted).max()) if fits else numpy.inf
            decided = [x.argmax(1) if name == "logits" else x != 0 for x in (found, wanted)]
            if error > TOLERANCE or (decided[0] != decided[1]).any():
                what = "other logits" if name == "logits" else f"another routing in MoE layer {name.partition('.')[2]}"
                stop(f"ONNX Runtime computes {what} than the network for {len(wanted)} rows "
                     f"(error {error:.2g}, at most {TOLERANCE:g})")


def with_routing(network):
    """Returns the network with more outputs: for each MoE layer the experts' weights [tokens, experts].

    It changes the network, whose file must be written before.
    """
    import torch

    routing = []

    def watch(layer):
        combine, select = layer.combine_weights, getattr(layer, "select", None)

        def combined(logits):  # it may call select(), whose experts are not all of the layer's
            before = len(routing)
            weights = combine(logits)
            routing[before:] = [weights]
            return weights

        def selected(logits):
            token, gate = select(logits)
            routing.append(gate.new_zeros([token.size(0), logits.size(0)]).scatter_(1, token, gate).t())
            return token, gate

        layer.combine_weights = combined
        if select is not None:
            layer.select = selected

    for layer in network.modules():
        if hasattr(layer, "combine_weights"):
            watch(layer)

    class WithRouting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, images):
            routing.clear()
            return self.network(images), *routing

    return WithRouting()


def main(form, folder, out, version):
    needed = ["torch"] if form == "pt2" else ["torch", "onnx", "onnxscript", "onnxruntime"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        stop(f"{sys.executable} has no {' and no '.join(missing)}: {sys.executable} -m pip install {' '.join(missing)}")
    import torch

    if torch.__version__.split("+")[0] != version:
        stop(f"{sys.executable} has PyTorch {torch.__version__}, this program LibTorch {version}")
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    folder = Path(folder)
    modeling, network = network_of(folder)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    import json

    facts = json.loads((folder / "preprocess.json").read_text())
    texts = {f"{name}.json": (folder / f"{name}.json").read_text() for name in TEXTS}
    images = torch.randn(BATCH, *facts["input_size"], generator=torch.Generator().manual_seed(1))
    if facts.get("takes_bytes"):
        images = torch.zeros_like(images, dtype=torch.uint8)
    with torch.no_grad():
        write = functools.partial(write_pt2, is_ours=True) if form == "pt2" else write_onnx
        write(network, images, texts, out)
        proof = modeling.read_tensors(folder / "proof.safetensors")
        outputs = sorted({name.rpartition(".")[0] for name in proof} - {"images"})
        routed = folder / f"routing.{form}"
        if len(outputs) > 1:
            write(with_routing(network), images, {}, routed)
        if form == "onnx":
            prove_onnx(proof, out, ["logits"])
            if len(outputs) > 1:
                prove_onnx(proof, routed, outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
