// SPDX-License-Identifier: Apache-2.0
// Networks as plain PyTorch, and what Python records of them.
#include "moesaic/export/formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"
#include "moesaic/checkpoint/program.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/script.h"
#include "moesaic/prune/prune_checkpoint.h"

namespace moesaic {
namespace {

constexpr std::array<int64_t, 3> kProofBatches = {1, 2, 7};
constexpr double kProofTolerance = 1e-5;

constexpr char kHead[] = R"("""{name}: load() returns the network, in evaluation.

It computes and trains without dropout, noise of routers and losses of routing. `aten` are
PyTorch's operators by the names and arguments that LibTorch has for them. Where libmoesaic.so is
loaded (torch.ops.load_library), experts compute by its operators.
"""
import json
from pathlib import Path
from typing import List

import torch
import torch.nn.functional as F
from torch import Tensor, nn

aten = torch.ops.aten


def floor_divide(x, y):
    return torch.div(x, y, rounding_mode="floor")  # torch.export's runner has no other with numbers


def has_operators():
    return hasattr(torch.ops.moesaic, "grouped_mlp") and not torch.compiler.is_compiling()
)";

constexpr char kNormalized[] = R"(

class Normalized({network}):
    """Takes images of uint8, resized as preprocess.json says."""

    def __init__(self):
        super().__init__()
        for name, values in ("image_mean", [{mean}]), ("image_std", [{std}]):
            shaped = torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)
            self.register_buffer(name, shaped, persistent=False)

    def forward(self, images):
        pixels = images.to(torch.float32) * {rescale_factor}
        return super().forward((pixels - self.image_mean) / self.image_std)
)";

constexpr char kTail[] = R"(

DTYPES = {{"F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "I8": torch.int8, "U8": torch.uint8}}


def read_tensors(file):
    """Returns the tensors of a safetensors file by name."""
    content = bytearray(Path(file).read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    tensors = {{}}
    for name, of in json.loads(content[8:begin]).items():
        if name == "__metadata__":
            continue
        dtype, count = DTYPES[of["dtype"]], torch.Size(of["shape"]).numel()
        flat = torch.frombuffer(content, dtype=dtype, count=count, offset=begin + of["data_offsets"][0])
        tensors[name] = flat.reshape(of["shape"])
    return tensors


def load(folder=Path(__file__).parent):
    network = {network}()
    network.load_state_dict(read_tensors(Path(folder) / "model.safetensors"))
    constants = Path(folder) / "constants.safetensors"
    if constants.exists():
        buffers = dict(network.named_buffers())
        for name, value in read_tensors(constants).items():
            buffers[name].copy_(value)
    return network.eval()
)";

constexpr char kCard[] = R"(# {name}

A network of moesaic, trained on {data}, in plain PyTorch:

```python
import modeling

network = modeling.load()
logits = network(images)  # [batch, {shape}] {prepared} as preprocess.json says
```

| figure | value |
|---|---|
{rows}
The classes are those of `labels.json`; `config.json` has the network's settings.{notes}
)";

/// Throws Error (usage) where Python's dialect cannot say how tokens are routed.
void check_groups(const Model& model) {
  for (const MoEBlock& block : model.moe_blocks()) {
    const RouteOptions rule = block.layer->router->evaluation_rule();
    const int64_t group = rule.group_size;
    if (!rule.is_expert_choice() || group == 0) continue;
    if (model.tokens_per_image() % group == 0) continue;
    fail_usage(
        "export: experts choose in groups of {} tokens, into which the {} tokens of an image do "
        "not divide; choose torchscript or safetensors",
        group, model.tokens_per_image());
  }
}

std::string name_of(const Model& model) {
  return model.config().value("name", std::string("network"));
}

std::string card(const Model& model, const ExportInfo& info, bool is_int8) {
  std::string rows;
  const auto row = [&](const std::string& name, const std::string& value) {
    rows += fmt::format("| {} | {} |\n", name, value);
  };
  row("parameters", fmt::to_string(model.num_parameters()));
  row("FLOPs of an image, tokens spread evenly",
      fmt::format("{:.4g}", model.flops_per_image(even_rows_per_token(model))));
  row("classes", fmt::to_string(model.num_classes()));
  for (const MoEBlock& block : model.moe_blocks()) {
    row(fmt::format("experts of block {}", block.block),
        fmt::format("{} of {}", block.layer->kept().size(), block.layer->options().num_experts));
  }
  for (const auto& [name, value] : info.evaluation.items()) {
    if (name == "step" || !value.is_number()) continue;
    row(info.evaluation.value("split", "own") + " " + name,
        fmt::format("{:.6g}", value.get<double>()));
  }
  std::string notes;
  if (is_int8) {
    notes = "\nThe weights of experts are int8; accuracy and loss were measured in float32.";
  }
  if (const std::string why = batch_dependence(model); !why.empty()) {
    notes += fmt::format("\nAn image's result depends on the others of its batch, since {}.", why);
  }
  return fmt::format(
      kCard, fmt::arg("name", name_of(model)),
      fmt::arg("data", info.input.dataset.empty() ? "data of its own" : info.input.dataset),
      fmt::arg("shape", fmt::format("{}", fmt::join(model.input_shape(), ", "))),
      fmt::arg("prepared", info.input.takes_bytes ? "uint8, resized" : "float32, prepared"),
      fmt::arg("rows", rows), fmt::arg("notes", notes));
}

/// Adds the class of a network that takes bytes.
void add_normalized(const InputSpec& input, script::PythonClasses& classes) {
  const auto list = [](const std::vector<double>& values) {
    return fmt::format("{}", fmt::join(values, ", "));
  };
  classes.text += fmt::format(kNormalized, fmt::arg("network", classes.network),
                              fmt::arg("mean", list(input.mean)), fmt::arg("std", list(input.std)),
                              fmt::arg("rescale_factor", input.rescale_factor.value()));
  classes.network = "Normalized";
}

/// Writes the files of export_pytorch() into a folder that is there.
void write_python(const Model& model, const fs::path& folder, const ExportInfo& info) {
  check_groups(model);
  const std::optional<torch::jit::Module> network =
      model.torchscript(script::Context{.dialect = script::Dialect::python});
  if (!network) {
    fail_usage("export: models of the family '{}' have no form in PyTorch; choose safetensors",
               name_of(model));
  }
  TensorMap state = state_of(model), buffers;
  for (const auto& buffer : network->named_buffers()) buffers[buffer.name] = buffer.value;
  bool is_int8 = false;
  for (const auto& [name, value] : buffers) {  // Experts' weights of int8 replace those of float32.
    if (value.scalar_type() != at::kChar) continue;
    is_int8 = true;
    state[name] = value;
    state[name + "_scale"] = buffers.at(name + "_scale");
  }
  const auto is_stored = [&](const std::string& name) { return state.contains(name); };
  TensorMap constants;
  for (const auto& [name, value] : buffers) {
    if (!is_stored(name)) constants[name] = value;
  }
  script::PythonClasses classes = script::python_classes(*network, is_stored);
  if (info.input.takes_bytes) add_normalized(info.input, classes);
  write_atomic(folder / "modeling.py",
               fmt::format(kHead, fmt::arg("name", name_of(model))) + classes.text +
                   fmt::format(kTail, fmt::arg("network", classes.network)));
  write_tensors(folder / "model.safetensors", state, {{"format", "pt"}});
  if (!constants.empty()) {
    write_tensors(folder / "constants.safetensors", constants, {{"format", "pt"}});
  }
  for (const auto& [name, side] : side_files(model, info)) write_atomic(folder / name, side);
  write_atomic(folder / "README.md", card(model, info, is_int8));
}

/// Returns what a network that takes bytes makes of them.
at::Tensor normalized(const at::Tensor& images_BCHW, const InputSpec& input) {
  const auto of_channels = [](const std::vector<double>& values) {
    return at::tensor(values, at::kFloat).view({-1, 1, 1});
  };
  const at::Tensor pixels_BCHW = images_BCHW.to(at::kFloat) * input.rescale_factor.value();
  return (pixels_BCHW - of_channels(input.mean)) / of_channels(input.std);
}

/// Images, and what the network makes of them: its logits and, of each MoE layer, the weights of
/// the experts' outputs for each token.
struct Proof {
  at::Tensor images;
  std::vector<at::Tensor> outputs;
};

std::vector<Proof> make_proofs(const Model& model, const InputSpec& input) {
  const torch::NoGradGuard no_grad;
  at::Generator generator = nn::make_generator(1);
  std::vector<Proof> all;
  for (const int64_t batch : kProofBatches) {
    std::vector<int64_t> shape = model.input_shape();
    shape.insert(shape.begin(), batch);
    at::Tensor given = at::empty(shape, at::kFloat).normal_(0.0, 1.0, generator), images = given;
    if (input.takes_bytes) {
      given = at::empty(shape, at::kByte).random_(256, generator);
      images = normalized(given, input);
    }
    // A forward pass in evaluation changes nothing of the network.
    const ModelOutput out = const_cast<Model&>(model).forward(images);
    all.push_back({given, {out.logits}});
    for (const RoutingRecord& record : out.routings) {
      all.back().outputs.push_back(combine_weights(record.routing).contiguous());
    }
  }
  return all;
}

/// Returns the proofs by the names that the script has for inputs and outputs.
TensorMap named(const std::vector<Proof>& proofs) {
  TensorMap tensors;
  for (const auto& [images, outputs] : proofs) {
    const int64_t batch = images.size(0);
    tensors[fmt::format("images.{}", batch)] = images;
    tensors[fmt::format("logits.{}", batch)] = outputs[0];
    for (size_t i = 1; i < outputs.size(); ++i) {
      tensors[fmt::format("routing.{}.{}", i - 1, batch)] = outputs[i];
    }
  }
  return tensors;
}

/// Runs the script. Throws Error with the last line that it says where it fails.
void record(const std::string& format, const fs::path& folder, const fs::path& out,
            const std::function<void()>& poll) {
  std::string said;
  const fs::path script = resource("tools/python/export_program.py");
  const int status = run_with_input({export_python().string(), script.string(), format,
                                     folder.string(), out.string(), TORCH_VERSION},
                                    "", {"PYTHONDONTWRITEBYTECODE=1"}, {}, &said, poll);
  if (status == 0) return;
  std::string last = "it said nothing";
  for (const std::string& line : split(said, '\n')) {
    if (line.find_first_not_of(' ') != line.npos) last = line;
  }
  constexpr size_t kMaxBytes = 400;  // It names Python's path and the packages to install.
  fail("export: Python cannot write {} (exit code {}): {}", format, status,
       one_line(last, kMaxBytes));
}

/// Compares the first `count` outputs of a program with the network's.
void prove(const fs::path& file, const std::vector<Proof>& proofs, size_t count) {
  const ExportedProgram program(file);
  for (const auto& [images, outputs] : proofs) {
    std::vector<at::Tensor> computed = program.outputs(images);
    computed.resize(count, at::empty({0}));
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor &found = computed[i], &wanted = outputs[i];
      const bool fits = found.sizes() == wanted.sizes() && found.isfinite().all().item<bool>();
      const double scale = std::max(1.0, wanted.abs().max().item<double>());
      const double error = fits ? (found - wanted).abs().max().item<double>() / scale : INFINITY;
      const auto decided = [&](const at::Tensor& x) { return i == 0 ? x.argmax(1) : x.ne(0); };
      if (error <= kProofTolerance && at::equal(decided(found), decided(wanted))) continue;
      fail(
          "export: LibTorch's runner computes {} than the network for {} (error {:.2g}, at "
          "most {:g}); nothing was written",
          i == 0 ? "other logits" : fmt::format("another routing in MoE layer {}", i - 1),
          count_text(images.size(0), "image"), error, kProofTolerance);
    }
  }
}

/// Records the network beside `file`, in a folder that goes away, and moves the result there. The
/// script records it once more with its routing as further outputs, for the proof alone.
void export_recorded(const std::string& format, const Model& model, const fs::path& file,
                     const ExportInfo& info, const std::function<void()>& poll) {
  export_python();
  AtomicFile out(file);
  const StagedDirectory beside(file);
  const fs::path folder = beside.path() / "network", made = beside.path() / ("model." + format);
  fs::create_directory(folder);
  write_python(model, folder, info);
  const std::vector<Proof> proofs = make_proofs(model, info.input);
  write_tensors(folder / "proof.safetensors", named(proofs));
  record(format, folder, made, poll);
  if (format == "pt2") {
    prove(made, proofs, 1);
    const size_t outputs = proofs[0].outputs.size();
    if (outputs > 1) prove(folder / "routing.pt2", proofs, outputs);
  }
  out.write(MappedFile(made).bytes());
  out.commit();
}

}  // namespace

fs::path export_python() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  if (const fs::path own = variable("MOESAIC_PYTHON"); !own.empty()) {
    if (fs::is_regular_file(status_of(own))) return own;
    fail_usage("MOESAIC_PYTHON={}: no such program", own.string());
  }
  fs::path environment = variable("MOESAIC_VENV");
  if (environment.empty()) {
    const fs::path cache = variable("XDG_CACHE_HOME");
    environment = (cache.empty() ? variable("HOME") / ".cache" : cache) / "moesaic" / "venv";
  }
  const fs::path python = environment / "bin" / "python";
  if (fs::is_regular_file(status_of(python))) return python;
  fail_usage(
      "export: this format needs Python with PyTorch {}, and there is no {}; run tools/setup.sh or "
      "set MOESAIC_PYTHON; --format pytorch needs none",
      TORCH_VERSION, python.string());
}

void export_pytorch(const Model& model, const fs::path& folder, const ExportInfo& info) {
  check_new_folder(folder, "export");
  StagedDirectory staged(folder);
  write_python(model, staged.path(), info);
  staged.commit();
}

void export_pt2(const Model& model, const fs::path& file, const ExportInfo& info,
                const std::function<void()>& poll) {
  export_recorded("pt2", model, file, info, poll);
}

void export_onnx(const Model& model, const fs::path& file, const ExportInfo& info,
                 const std::function<void()>& poll) {
  export_recorded("onnx", model, file, info, poll);
}

}  // namespace moesaic
