// SPDX-License-Identifier: Apache-2.0
// Export of networks: formats by name, and the metadata by which exported weights can be used
// without this library.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "moesaic/base/filesystem.h"
#include "moesaic/base/registry.h"
#include "moesaic/checkpoint/store.h"

namespace moesaic {

/// What an export says beyond the network itself.
struct ExportInfo {
  InputSpec input;  ///< With `takes_bytes`, PyTorch's forms take uint8 and normalise it as it says.
  std::string loss = {};                   ///< Objective of the last phase; "" if unknown.
  std::optional<int64_t> batch_size = {};  ///< Images a batch in the run's own evaluations.
  /// The run's own evaluation of this network, a line of its metrics.jsonl; null without one.
  Json evaluation = {};
  /// Dtypes of imported arrays that were not float32, by the names of google-research/vmoe.
  std::map<std::string, std::string> array_dtypes = {};
};

/// Returns the metadata of a checkpoint of `model`, which takes normalised images; its tensors are
/// not needed.
ExportInfo export_info(const Checkpoint& checkpoint, const Model& model);

/// Returns why an image's result depends on the images before it in a batch, "" where it does not:
/// experts' capacities that images share, or noise that is drawn by an image's place.
std::string batch_dependence(const Model& model);

/// Returns whether the network has experts, all of which tokens choose: with an evaluation capacity
/// factor of 0 it drops no token.
bool can_lift_capacity(const Model& model);

/// Returns file name -> text: "config.json" with the model's configuration and, under
/// kConstantsKey, its constants(), "labels.json" with the list of class names, "preprocess.json"
/// with document_of() the input, "evaluation.json" with the loss and the batch size by which
/// moesaic evaluates.
std::map<std::string, std::string> side_files(const Model& model, const ExportInfo& info);

/// Writes the weights to safetensors, which most libraries read, bit for bit. If `out` ends in
/// ".safetensors", it is one file, with the texts of side_files() in its metadata under their names
/// without ".json"; else a folder, absent or empty before, with `model.safetensors` and the side
/// files. Atomic. Throws Error (usage) if `out` exists already.
void export_safetensors(const Model& model, const fs::path& out, const ExportInfo& info = {});

/// Returns the network as a script module, which LibTorch and PyTorch run without this library:
/// forward(images [B, C, H, W] float32) -> logits [B, classes], for any B, with aten operators
/// only. Its parameters are copies under the names of the state dict
/// (`blocks.0.attention.qkv.weight`, ...); fixed position embeddings are a buffer. Routing is
/// exact: ties to the lower expert, capacities, groups and drops as in route(); pruned
/// experts add zero and are never computed. Throws Error (usage) for a family without TorchScript
/// export.
torch::jit::Module to_torchscript(const Model& model);

/// Writes to_torchscript() atomically. Extra files are the texts of side_files() and, so that this
/// library reads the network without unpickling, what export_safetensors() writes: the weights lie
/// in the file twice. PyTorch deprecates TorchScript as of version 2.11: prefer safetensors
/// for archives.
void export_torchscript(const Model& model, const fs::path& file, const ExportInfo& info = {});

/// Writes the network as a folder for stock PyTorch: `modeling.py` with torch.nn modules that have
/// the names of the state dict, whose load() returns the network; `model.safetensors`, the side
/// files, and README.md, a model card. It computes and trains what to_torchscript() computes; see
/// script::Dialect for the sizes in it that depend on values. Throws Error (usage) for a family
/// without TorchScript export, and for experts that choose in groups that images do not divide
/// into.
void export_pytorch(const Model& model, const fs::path& folder, const ExportInfo& info = {});

/// Records the network of export_pytorch() by torch.export for any batch size from 1, in Python,
/// see export_python(), and writes it with the side files within. Before the file gets its name,
/// LibTorch's runner computes 1, 2 and 7 random images with it: logits that differ from the
/// network's by more than 1e-5 of the largest one, or another largest one, are an Error (failure),
/// after which there is no file. A second recording has the weights of experts as outputs: those
/// that differ by more than 1e-5, and tokens that other experts compute, are an Error too. `poll`
/// is called while Python runs, which is killed where it throws; then there is no file either.
void export_pt2(const Model& model, const fs::path& file, const ExportInfo& info = {},
                const std::function<void()>& poll = {});

/// Records the network in ONNX, opset 20, with the side files as metadata, and compares it as
/// export_pt2() does, by ONNX Runtime, which must be installed in the Python of export_python().
void export_onnx(const Model& model, const fs::path& file, const ExportInfo& info = {},
                 const std::function<void()>& poll = {});

/// Returns the Python that records networks: $MOESAIC_PYTHON, or that of the environment that
/// tools/setup.sh makes. Throws Error (usage) where there is none.
fs::path export_python();

/// Returns `info` for a network that takes images of uint8, resized as `input` says, and normalises
/// them itself. Throws Error (usage) where mean and std are not known or inputs are no images.
ExportInfo with_preprocessing(ExportInfo info);

/// What `moesaic export` passes to a format.
struct ExportOptions {
  fs::path out;
  std::optional<int64_t> num_shards;  ///< Number of weight files, for formats with shards.
  std::function<void()> poll;         ///< May throw, then nothing is written.
};

/// A format of `moesaic export`.
struct ExportFormat {
  std::string description;  ///< Text behind the name in --help.
  std::string out_help;     ///< Meaning of --out in --help.
  /// Max number of shards. If it is not 0, their number can be chosen.
  int64_t max_shards = 0;
  bool has_preprocessing = false;  ///< Whether it writes with_preprocessing().
  /// Throws Error (usage) if `out` exists already.
  std::function<void(const fs::path& out)> check_out;
  std::function<void(const Model& model, const ExportInfo& info, const ExportOptions& options)>
      write;
};

/// Returns the registry of formats, by the value of --format.
Registry<ExportFormat>& export_formats();

}  // namespace moesaic
