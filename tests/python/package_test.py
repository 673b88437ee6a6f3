#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package: package_test.py [BUILD_FOLDER [unittest's arguments]]

With a build folder it is put together from python/ and that build, without one the installed package is tested. What
needs timm, transformers, pandas or matplotlib is skipped without them.
"""
import contextlib
import copy
import importlib.util
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

ROOT = Path(__file__).resolve().parents[2]
SITE = tempfile.TemporaryDirectory()
if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
    build = Path(sys.argv.pop(1)).resolve()
    shutil.copytree(ROOT / "python", SITE.name, dirs_exist_ok=True)
    package = Path(SITE.name) / "moesaic"
    (package / "share").mkdir()
    for name, place in (("lib", build / "lib"), ("bin", build / "bin"), ("share/moesaic", ROOT)):
        (package / name).symlink_to(place)
    sys.path.insert(0, SITE.name)

import moesaic  # noqa: E402
import moesaic_program  # noqa: E402

WIDTH, HIDDEN, EXPERTS, TOKENS = 6, 10, 4, 14


class Block(nn.Module):
    """What upcycle() needs of a block of timm's ViTs."""

    def __init__(self):
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.fc1, self.mlp.act, self.mlp.fc2 = nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)
        self.mlp.drop1 = nn.Dropout(0.0)
        self.mlp.forward = lambda x: self.mlp.fc2(self.mlp.act(self.mlp.fc1(x)))

    def forward(self, x):
        return x + self.mlp(x)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.mean(1)


def needs(*packages):
    """Skips a test where a package is not installed, and says which."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return unittest.skipIf(missing, f"needs {', '.join(missing)}")


def images(count=2):
    return torch.randn(count, 7, WIDTH, generator=torch.Generator().manual_seed(count))


def plain(layer, x):
    """y[t] = sum over the k best experts of gate * MLP, with all experts there and nothing dropped."""
    y = torch.zeros_like(x)
    for t, token in enumerate(x):
        logits = layer.router.weight @ token
        chosen = logits.argsort(descending=True)[:layer.k].tolist()
        for e in chosen:
            gate = (logits.softmax(0) if layer.gate == 1 else logits[chosen].softmax(0))[
                e if layer.gate == 1 else chosen.index(e)]
            hidden = F.gelu(token @ layer.experts.w1[e] + layer.experts.b1[e])
            y[t] += gate * (hidden @ layer.experts.w2[e] + layer.experts.b2[e])
    return y


class Layer(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.x = torch.randn(TOKENS, WIDTH)

    def test_the_layer_is_its_formula(self):
        for gate in ("softmax_all", "softmax_selected"):
            layer = moesaic.MoE(WIDTH, HIDDEN, EXPERTS, capacity_factor=0, gate=gate, noise=0)
            torch.testing.assert_close(layer(self.x), plain(layer, self.x))
            layer.keep_experts([0, 2, 3])
            with_zeros = moesaic.MoE(WIDTH, HIDDEN, EXPERTS, capacity_factor=0, gate=gate, noise=0)
            with_zeros.router = layer.router
            with torch.no_grad():
                for name, stack in with_zeros.experts.named_parameters():
                    stack.zero_()[[0, 2, 3]] = layer.experts.get_parameter(name)
            torch.testing.assert_close(layer(self.x), plain(with_zeros, self.x))

    def test_names_are_those_of_checkpoints(self):
        self.assertEqual([(name, list(value.shape)) for name, value in moesaic.MoE(6, 10, 4).state_dict().items()],
                         [("router.weight", [4, 6]), ("experts.w1", [4, 6, 10]), ("experts.b1", [4, 10]),
                          ("experts.w2", [4, 10, 6]), ("experts.b2", [4, 6])])

    def test_statistics_count_rows_and_drops(self):
        layer = moesaic.MoE(WIDTH, HIDDEN, EXPERTS, k=1, capacity_factor=0.5, noise=0)  # 4 rows: 14 / 4 * 0.5, rounded
        with torch.no_grad():
            layer.router.weight.zero_()[1, 0] = 1.0
        x = self.x.abs()
        layer(x)
        self.assertEqual(layer.routing.load.tolist(), [0, 4, 0, 0])
        self.assertAlmostEqual(layer.routing.drops.item(), 10 / 14, places=6)
        p = (x @ layer.router.weight.t()).softmax(1)
        self.assertAlmostEqual(layer.routing.entropy.item(), -(p * p.log()).sum(1).mean().item(), places=5)

    def test_inputs_of_another_width_are_refused(self):
        for shape in ((3, 2 * WIDTH), (3, WIDTH, 1)):
            with self.assertRaisesRegex(ValueError, f"must be {WIDTH}, found {shape[-1]}"):
                moesaic.MoE(WIDTH, HIDDEN, EXPERTS)(torch.zeros(shape))

    def test_an_expert_takes_the_best_tokens_of_each_image(self):
        layer = moesaic.MoE(WIDTH, HIDDEN, EXPERTS, k=2, router="expert_choice", capacity_factor=1.0)
        layer(images(3))
        self.assertEqual(layer.routing.load.tolist(), [12] * EXPERTS)  # 7 tokens * 2 / 4, rounded up to 4, of 3 images
        with moesaic.routing(layer) as routed:
            layer(images(3))
            self.assertEqual(routed.loss().item(), 0)

    def test_losses_are_their_formulas_and_train_the_router(self):
        layer = moesaic.MoE(WIDTH, HIDDEN, EXPERTS)
        with moesaic.routing(nn.Sequential(layer)) as routed:
            layer(self.x)
            loss = routed.loss(importance=0.5, load=0.25)
        seen, deviation = layer.routing, 1.0 / EXPERTS
        p = seen.logits.softmax(1).sum(0).tolist()
        mean = sum(p) / EXPERTS
        importance = sum((v - mean) ** 2 for v in p) / EXPERTS / mean ** 2
        share = [0.0] * EXPERTS
        for clean, noisy in zip(seen.logits.tolist(), seen.noisy_logits.tolist()):
            limit = sorted(noisy)[-2]
            for e in range(EXPERTS):
                share[e] += 0.5 * math.erfc((limit - clean[e]) / deviation / math.sqrt(2)) / TOKENS
        mean = sum(share) / EXPERTS
        load = sum((v - mean) ** 2 for v in share) / EXPERTS / mean ** 2
        self.assertAlmostEqual(loss.item(), 0.5 * importance + 0.25 * load, places=5)
        loss.backward()
        self.assertGreater(layer.router.weight.grad.abs().max().item(), 0)
        self.assertFalse(layer.routing.logits.requires_grad)

    def test_wrong_use_is_one_line(self):
        for options, said in (({"router": "tokens"}, "choose one of token_choice, expert_choice"),
                              ({"k": 5}, "k=5 must be between 1 and the 4 experts"), ({"gate": "one"}, "gate='one'"),
                              ({"activation": "silu"}, "choose one of relu, gelu_tanh, gelu")):
            with self.assertRaisesRegex(ValueError, said):
                moesaic.MoE(WIDTH, HIDDEN, EXPERTS, **options)
        sizes = {"width": WIDTH, "hidden": HIDDEN, "experts": EXPERTS}
        for name, value in (("width", 0), ("hidden", 0), ("experts", 0), ("k", 0), ("capacity_factor", math.nan),
                            ("capacity_factor", -1), ("noise", math.nan), ("noise", -1), ("noise", math.inf)):
            with self.assertRaisesRegex(ValueError, f"^MoE: {name}={value} must be a [a-z]+ number of at least [01]$"):
                moesaic.MoE(**{**sizes, name: value})
        for name, value in (("width", 1.5), ("k", "2"), ("noise", None)):
            with self.assertRaisesRegex(TypeError, f"^MoE: {name}={value!r} must be a"):
                moesaic.MoE(**{**sizes, name: value})
        with moesaic.routing(moesaic.MoE(**sizes)) as routed:
            for name, value in (("load", math.nan), ("importance", -1)):
                with self.assertRaisesRegex(ValueError, f"^loss: {name}={value} must be a finite number"):
                    routed.loss(**{name: value})
        with self.assertRaisesRegex(ValueError, "has no layer"), moesaic.routing(nn.Linear(1, 1)):
            pass


class Mixtures(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(2)
        self.dense = Network()
        self.mixture = moesaic.upcycle(copy.deepcopy(self.dense), blocks=[0, -1], experts=EXPERTS)

    def test_an_upcycled_network_computes_what_it_did(self):
        self.assertIsInstance(self.mixture.blocks[1].mlp, moesaic.MoE)
        torch.testing.assert_close(self.mixture(images()), self.dense(images()))  # in training, with noise
        torch.testing.assert_close(self.mixture.eval()(images()), self.dense(images()))

    def test_other_mlps_are_refused_before_a_block_changes(self):
        self.dense.blocks[1].mlp.act = nn.SiLU()
        with self.assertRaisesRegex(ValueError, "no activation SiLU"):
            moesaic.upcycle(self.dense, blocks=[0, 1])
        self.assertNotIsInstance(self.dense.blocks[0].mlp, moesaic.MoE)
        with self.assertRaisesRegex(ValueError, "no block 2; the last one is 1"):
            moesaic.upcycle(self.dense, blocks=[2])
        with self.assertRaisesRegex(ValueError, "no block 'a'"):
            moesaic.upcycle(self.dense, blocks="a")
        with self.assertRaisesRegex(TypeError, r"^upcycle: blocks=1 must be a list of numbers, as \[1\]$"):
            moesaic.upcycle(self.dense, blocks=1)
        for option in ({"noise": math.nan}, {"noise": -1}, {"capacity_factor": math.nan}):
            with self.assertRaisesRegex(ValueError, "{}={} must be a".format(*next(iter(option.items())))):
                moesaic.upcycle(self.dense, blocks=[0], **option)

    def test_experts_that_cannot_stay_are_refused_before_a_layer_changes(self):
        for ids in ([0, 9], [0], [0, 0], [], [0, "1"], 2, None):
            with self.assertRaisesRegex(ValueError, "layer 'blocks.1.mlp', .*; choose at least 2 of them, each once"):
                moesaic.prune(self.mixture, keep={"blocks.0.mlp": [0, 1], "blocks.1.mlp": ids})
        for keep, kind, said in (("a", TypeError, "keep='a' must be a finite number"), (None, TypeError, "keep=None"),
                                 (math.nan, ValueError, "keep=nan"), (-0.5, ValueError, "keep=-0.5 must be"),
                                 ({"head": [0], 1: [0]}, ValueError, r"\['head', 1\], the network has \['blocks")):
            with self.assertRaisesRegex(kind, said):
                moesaic.prune(self.mixture, before=self.mixture, keep=keep)
        self.assertEqual([block.mlp.kept for block in self.mixture.blocks], [[0, 1, 2, 3]] * 2)

    def test_experts_whose_routers_grew_stay_and_can_be_loaded(self):
        before = copy.deepcopy(self.mixture.state_dict())
        with torch.no_grad():
            self.mixture.blocks[0].mlp.router.weight.mul_(torch.tensor([[0.5], [2], [1], [3]]))
        with self.assertRaisesRegex(ValueError, "keep=0.25 keeps 1 experts of layer 'blocks.0.mlp', which has 4"):
            moesaic.prune(self.mixture, before=before, keep=0.25)
        kept = moesaic.prune(self.mixture, before=before, keep=0.5)
        self.assertEqual(kept, {"blocks.0.mlp": [1, 3], "blocks.1.mlp": [0, 1]})  # equal changes: lower ids
        torch.testing.assert_close(self.mixture.blocks[0].mlp.experts.w1, before["blocks.0.mlp.experts.w1"][[1, 3]])
        fresh = moesaic.upcycle(Network(), blocks=[0, 1], experts=EXPERTS)
        moesaic.prune(fresh, keep=json.loads(json.dumps(kept)))
        fresh.load_state_dict(self.mixture.state_dict())
        self.assertTrue(torch.equal(fresh.eval()(images()), self.mixture.eval()(images())))

    def test_a_file_computes_the_network_without_this_package(self):
        moesaic.prune(self.mixture, before=self.mixture, keep=3)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "network.pt2"
            moesaic.export(self.mixture, file, shape=(7, WIDTH))
            with self.assertRaisesRegex(FileExistsError, "exists and is kept"):
                moesaic.export(self.mixture, file, shape=(7, WIDTH))
            with self.assertRaisesRegex(FileNotFoundError, "there is no folder 'nodir' for a.pt2; make it first"):
                moesaic.export(self.mixture, "nodir/a.pt2", shape=(7, WIDTH))
            program = torch.export.load(file)
            self.assertFalse([node for node in program.graph.nodes if "moesaic" in str(node.target)])
            torch.testing.assert_close(program.module()(images(5)), self.mixture.eval()(images(5)))
            self.assertEqual(os.listdir(folder), ["network.pt2"])

    def test_a_file_that_computes_something_else_is_not_written(self):
        class Other(nn.Module):
            def forward(self, x):
                return x.mean(1) + (1e-3 if torch.compiler.is_exporting() else 0)

        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, "computes another output than the network for 1 inputs"):
                moesaic.export(Other(), Path(folder) / "other.pt2", shape=(7, WIDTH))
            self.assertEqual(os.listdir(folder), [])

    def test_a_file_drops_and_selects_what_its_layer_does(self):
        chooses = {"router": "expert_choice", "capacity_factor": 1.0}
        for shape, kept, options in (((7, WIDTH), range(4), {}), ((7, WIDTH), [0, 1, 3], {"gate": "softmax_selected"}),
                                     ((WIDTH,), [1, 2], chooses), ((7, WIDTH), [1, 2], chooses),
                                     ((7, WIDTH), [0, 1], {**chooses, "gate": "softmax_tokens"}),
                                     ((7, WIDTH), [1, 3], {**chooses, "gate": "softmax_experts"})):
            layer = moesaic.MoE(WIDTH, HIDDEN, EXPERTS, **options).eval().requires_grad_(False)
            layer.router.weight[1] = 5  # of all tokens below the first choice
            layer.keep_experts(kept)
            with self.subTest(shape=shape, **options), tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "layer.pt2"
                moesaic.export(layer, file, shape=shape)
                network = torch.export.load(file).module()
                for batch in (1, 2, 7):
                    x = images(batch).abs().reshape(-1, *shape)
                    torch.testing.assert_close(network(x), layer(x))
                self.assertGreater(layer.routing.drops.item(), 0)

    def test_compiles_in_one_graph_for_any_batch(self):
        self.compiles(self.mixture, [images(2), images(3), images(5)])

    def compiles(self, network, batches):
        for router in ("token_choice", "expert_choice"):
            for layer in network.modules():
                if isinstance(layer, moesaic.MoE):
                    layer.choice, layer.capacity_factor, layer.noise = router, 1.25, 0.0
            counter = CompileCounterWithBackend("aot_eager")
            torch._dynamo.reset()
            frames = 0
            compiled = torch.compile(network.train(), backend=counter, fullgraph=True, dynamic=True)
            for x in batches:
                gradients = []
                for run in (network, compiled):
                    network.zero_grad()
                    with moesaic.routing(network) as routed:
                        (run(x).square().mean() + routed.loss()).backward()
                    gradients.append([p.grad.clone() for p in network.parameters()])
                torch.testing.assert_close(*gradients)
                frames = frames or counter.frame_count  # PyTorch traces twice where a setting is a float
                self.assertEqual(counter.frame_count, frames)

    @needs("timm")
    def test_a_vit_of_timm_becomes_a_mixture_and_compiles(self):
        import timm

        vit = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, depth=2, num_classes=3).eval()
        x = torch.randn(4, 3, 16, 16)
        wanted = vit(x)
        torch.testing.assert_close(moesaic.upcycle(vit, blocks=[1], experts=EXPERTS)(x), wanted, rtol=1e-5, atol=1e-5)
        self.compiles(vit, [x, x[:2], x[:3]])

    @needs("timm")
    def test_the_example_of_its_page_runs(self):
        page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
        code = page.split("```python\n")[1].split("```")[0].replace("pretrained=True", "img_size=32, patch_size=8")
        with tempfile.TemporaryDirectory() as folder:
            file = f'"{folder}/vit.pt2"'
            batch = torch.randn(4, 3, 32, 32), torch.arange(4)
            exec(code.replace('"vit.pt2"', f"{file}, (3, 32, 32)"), {"loader": [batch]})
            self.assertEqual(os.listdir(folder), ["vit.pt2"])


class Transformers(unittest.TestCase):
    @needs("transformers")
    def test_experts_of_transformers_compute_what_they_did(self):
        import moesaic.transformers
        import transformers

        sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 24,
                 "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
                 "num_experts_per_tok": 2, "num_local_experts": 6}
        tokens = torch.randint(40, (2, 9), generator=torch.Generator().manual_seed(3))
        for family in ("Qwen3Moe", "Mixtral", "GptOss"):  # GptOss: transposed weights, biases, another gate
            torch.manual_seed(3)
            network = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**sizes))
            for name, value in network.named_parameters():
                if name.endswith("_bias"):
                    nn.init.normal_(value)
            found = []
            for implementation, calls in (("eager", 0), ("moesaic", 2)):
                network.set_experts_implementation(implementation)
                network.zero_grad()
                with mock.patch.object(moesaic.transformers, "csr", wraps=moesaic.transformers.csr) as csr:
                    logits = network(tokens).logits
                self.assertEqual(csr.call_count, calls)
                logits.square().sum().backward()
                found.append([logits.detach(), *(p.grad for p in network.parameters() if p.grad is not None)])
            torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)

    @needs("transformers")
    def test_experts_of_several_processes_are_refused(self):
        from moesaic.transformers import experts_forward

        with self.assertRaisesRegex(NotImplementedError, 'expert-parallel.*choose experts_implementation="grouped_mm"'):
            experts_forward(mock.Mock(_is_expert_parallel=True), *[torch.zeros(1, 1)] * 3)


class Notebooks(unittest.TestCase):
    def run_cells(self, name):
        """Runs a notebook's code as Jupyter does, in its folder; returns its variables and what it printed."""
        file = ROOT / f"examples/notebooks/{name}.ipynb"
        cells = [cell for cell in json.loads(file.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
        self.assertFalse([cell for cell in cells if cell["outputs"] or cell["execution_count"]], "outputs are committed")
        variables, printed = {}, io.StringIO()
        with contextlib.chdir(file.parent), contextlib.redirect_stdout(printed):
            for i, cell in enumerate(cells):
                exec(compile("".join(cell["source"]), f"{file.name}, cell {i}", "exec"), variables)
        return variables, printed.getvalue()

    def test_a_layer_in_ones_own_loop(self):
        variables, printed = self.run_cells("layer")
        self.assertLess(variables["losses"][-1], variables["losses"][0] / 2, printed)
        self.assertEqual(printed.count("cluster "), 4)

    @needs("timm")
    def test_a_vit_becomes_a_mixture_and_is_pruned(self):
        variables, printed = self.run_cells("vit")
        self.assertEqual([len(ids) for ids in variables["kept"].values()], [4, 4])
        self.assertEqual(printed.count("accuracy"), 2)

    @needs("pandas", "matplotlib")
    def test_a_figure_of_a_paper(self):
        with mock.patch.dict(os.environ, MPLBACKEND="Agg"):
            variables, _ = self.run_cells("figure")
        self.assertEqual(variables["table"].shape, (3, 6))
        self.assertEqual(len(variables["axes"].containers), 6)


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def python(self, code, path="", **variables):
        paths = [str(path), *sys.path]
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env={
            **os.environ, "PYTHONPATH": ":".join(filter(None, paths)), **variables})

    def test_starts_without_importing_torch(self):
        ran = self.python("import sys; sys.argv = ['moesaic', '--version']; import moesaic_program; "
                          "assert 'torch' not in sys.modules; moesaic_program.main()")
        self.assertEqual((ran.stdout, ran.returncode), ((ROOT / "VERSION").read_text(), 0), ran.stderr)

    def test_another_torch_is_one_line_with_both_versions(self):
        info = self.folder / "torch-2.12.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.1\n")
        said = ("moesaic was built for PyTorch 2.11, and this is PyTorch 2.12.1; pip install 'torch==2.11.*'")
        self.assertEqual(self.python("import moesaic", self.folder).stderr.splitlines()[-1], f"ImportError: {said}")
        ran = self.python("import moesaic_program; moesaic_program.main()", self.folder)
        self.assertEqual((ran.stderr, ran.returncode), (f"error: {said}\n", 1))

    def test_a_missing_library_is_one_line_with_its_package(self):
        own = Path(moesaic.__file__).parent
        shutil.copytree(own, self.folder / "moesaic", ignore=shutil.ignore_patterns("bin", "lib", "share"))
        (self.folder / "moesaic/lib").mkdir()
        library = (own / "lib/libmoesaic.so").read_bytes()
        self.assertIn(b"\0libmpack.so.0\0", library)
        (self.folder / "moesaic/lib/libmoesaic.so").write_bytes(
            library.replace(b"\0libmpack.so.0\0", b"\0libmpack.so.7\0"))
        shutil.copytree(Path(moesaic_program.__file__).parent, self.folder / "moesaic_program")
        self.assertEqual(self.python("import moesaic", self.folder).stderr.splitlines()[-1],
                         "ImportError: moesaic needs libmpack.so.7 of the Debian release that it was built on; "
                         "apt-get install libmpack7")
        for name, package in (("libre2.so.9", "libre2-9"), ("libcrypto.so.3", "libssl3"), ("libz.so.1", "zlib1g"),
                              ("libjpeg.so.62", "libjpeg62-turbo"), ("libbz2.so.1.0", "libbz2-1.0")):
            self.assertEqual(moesaic_program.debian_package(name), package)
        (self.folder / "moesaic/lib/libmoesaic.so").unlink()
        self.assertRegex(self.python("import moesaic", self.folder).stderr.splitlines()[-1],
                         r"^ImportError: moesaic is not built, there is no .*/libmoesaic.so; pip install \. ")

    @unittest.skipIf(shutil.which("cmake") is None, "needs cmake")
    def test_a_build_without_a_compiler_is_one_line(self):
        ran = subprocess.run(["cmake", "-S", ROOT, "-B", self.folder / "build"], capture_output=True, text=True,
                             check=False, env={**os.environ, "CXX": str(self.folder / "c++")})
        self.assertEqual(ran.returncode, 1)
        self.assertIn("  There is no C++ compiler; install what the build needs by tools/setup.sh\n", ran.stderr)

    def test_trains_exports_and_loads(self):
        run = moesaic.train("models/pmoe/recipes/smoke.json", self.folder / "run", seed=2, phases__experts__epochs=1)
        config = json.loads((run / "config.json").read_text())
        self.assertEqual((config["seed"], config["phases"][1]["epochs"]), (2, 1))
        moesaic.export(run, self.folder / "network")
        network, images = moesaic.load(self.folder / "network"), torch.zeros(2, 1, 16, 50)
        self.assertEqual(list(network(images).shape), [2, 2])
        with self.assertRaisesRegex(ValueError, "must end in .pt2, .onnx or .safetensors, or have no ending"):
            moesaic.export(run, self.folder / "network.h5")

    def test_raises_with_the_programs_error_line(self):
        with self.assertRaisesRegex(RuntimeError, "moesaic train: .*no such file.*exit code 2"):
            moesaic.train(self.folder / "none.json")
        with self.assertRaisesRegex(FileNotFoundError, "--format pytorch"):
            moesaic.load(self.folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
