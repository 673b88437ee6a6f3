// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/program.h"

#include <ATen/ATen.h>
#include <c10/util/Logging.h>
#include <c10/util/ScopeExit.h>
#include <torch/nativert/ModelRunnerHandle.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "manifest.h"
#include "moesaic/base/checked_math.h"
#include "moesaic/base/log.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"
#include "moesaic/formats/archive.h"

namespace moesaic {
namespace {

/// Calls LibTorch, whose errors become one line.
template <class Call>
auto in_one_line(const fs::path& file, const char* what, const Call& call) {
  std::string problem;
  try {
    return call();
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    problem = error.what();
  }
  fail("{}: LibTorch {} {}: {}", file.string(), TORCH_VERSION, what,
       one_line(problem.substr(0, problem.find('\n'))));
}

/// Adds copies of all tensors: the next run may use their memory again.
void add_tensors(const c10::IValue& out, std::vector<at::Tensor>& tensors) {
  if (out.isTensor()) tensors.push_back(out.toTensor().clone());
  if (out.isTuple()) {
    for (const c10::IValue& part : out.toTupleRef().elements()) add_tensors(part, tensors);
  }
  if (out.isList()) {
    for (const c10::IValue& part : out.toListRef()) add_tensors(part, tensors);
  }
}

/// Returns the bytes that were normalised to `images_BCHW`; warns where these are others.
at::Tensor bytes_of(const at::Tensor& images_BCHW, const InputSpec& input, const fs::path& file) {
  constexpr double kRounding = 0.01;
  const auto of_channels = [](const std::vector<double>& values) {
    return at::tensor(values, at::kFloat).view({-1, 1, 1});
  };
  const at::Tensor values_BCHW = images_BCHW * of_channels(input.std) + of_channels(input.mean);
  const at::Tensor pixels_BCHW = values_BCHW.div(input.rescale_factor.value());
  const at::Tensor bytes_BCHW = pixels_BCHW.round().clamp(0, 255);
  if (!((pixels_BCHW - bytes_BCHW).abs() <= kRounding).all().item<bool>()) {
    log_once(LogLevel::warning,
             fmt::format("{}: the program takes bytes, and the inputs are none: they are rounded "
                         "to 0 to 255; give (byte / 255 - mean) / std",
                         file.string()));
  }
  return bytes_BCHW.to(at::kByte);
}

/// A network that is known by its settings and computed by a program.
class ProgramModel : public Model {
 public:
  ProgramModel(const fs::path& file, std::shared_ptr<Model> shape, const InputSpec& input)
      : file_(file), program_(file), shape_(std::move(shape)), input_(input) {}

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator&) override {
    check_input_shape(*this, file_.string(), "images", images_BCHW);
    at::Tensor logits =
        program_.run(input_.takes_bytes ? bytes_of(images_BCHW, input_, file_) : images_BCHW);
    const std::vector<int64_t> expected = {images_BCHW.size(0) * num_members(), num_classes()};
    if (num_classes() > 0 && logits.sizes() != at::IntArrayRef(expected)) {
      fail("{}: a program of another network than its configuration's", file_.string());
    }
    return {std::move(logits), {}, {}};
  }

  nlohmann::ordered_json config() const override { return shape_->config(); }
  void reset_head(int64_t) override {
    fail("{}: a program (.pt2) cannot be changed; give the run", file_.string());
  }
  std::vector<MoEBlock> moe_blocks() const override { return shape_->moe_blocks(); }
  std::vector<int64_t> input_shape() const override { return shape_->input_shape(); }
  int64_t num_classes() const override { return shape_->num_classes(); }
  int64_t num_members() const override { return shape_->num_members(); }
  int64_t tokens_per_image() const override { return shape_->tokens_per_image(); }
  std::optional<PatchTokens> patch_tokens() const override { return shape_->patch_tokens(); }
  double flops_per_image(const RowsPerToken& rows_per_token) const override {
    return shape_->flops_per_image(rows_per_token);
  }
  SettingPaths setting_paths() const override { return shape_->setting_paths(); }
  int64_t num_parameters() const override { return shape_->num_parameters(); }

  at::Device device() const override { return at::kCPU; }
  void to(at::Device device, bool) override {
    if (device.is_cpu()) return;
    fail_usage("{}: a program runs on the CPU; leave --device out", file_.string());
  }

 private:
  fs::path file_;
  ExportedProgram program_;
  std::shared_ptr<Model> shape_;
  InputSpec input_;
};

/// Returns the bytes of a tensor by its dtype, in the numbering of torch.export's files, and sizes;
/// nothing where they are no sizes, or the dtype has another number.
std::optional<uint64_t> bytes_of(const nlohmann::json& meta) {
  constexpr std::array<uint64_t, 14> kBytes = {0, 1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 2};
  const auto dtype = meta.at("dtype").get<uint64_t>();
  std::vector<int64_t> sizes;
  for (const auto& size : meta.at("sizes")) sizes.push_back(size.at("as_int").get<int64_t>());
  const bool is_valid = dtype < kBytes.size() && kBytes.at(dtype) > 0 &&
                        std::all_of(sizes.begin(), sizes.end(), [](auto n) { return n >= 0; });
  return is_valid ? checked_product(kBytes.at(dtype), sizes) : std::nullopt;
}

/// Checks what LibTorch's runner reads unchecked: that there is a graph, and that each tensor
/// has the bytes that its sizes say.
void check_content(const fs::path& file) {
  using nlohmann::json;
  const MappedFile mapped(file);
  const auto content = [&](const std::string& name) {
    return find_in_zip(mapped.bytes(), name, file.string());
  };
  const auto document = [&](const std::string& name) {
    const auto bytes = content(name);
    if (!bytes) fail("{}: the program (.pt2) has no {}", file.string(), name);
    const auto* text = reinterpret_cast<const char*>(bytes->data());
    return json::parse(text, text + bytes->size());
  };
  try {
    document("models/model.json").at("graph_module").at("graph").at("nodes");
    for (const std::string kind : {"weights", "constants"}) {
      const std::string folder = "data/" + kind + "/";
      const json tensors = document(folder + "model_" + kind + "_config.json").at("config");
      for (const auto& [name, tensor] : tensors.items()) {
        const auto found = content(folder + tensor.at("path_name").get<std::string>());
        if (found && found->size() == bytes_of(tensor.at("tensor_meta"))) continue;
        fail("{}: a corrupt program: the bytes of tensor {} do not match its sizes", file.string(),
             printable(name));
      }
    }
  } catch (const json::exception& error) {
    fail("{}: a corrupt program: {}", file.string(), one_line(error.what()));
  }
}

}  // namespace

bool is_exported_program(const fs::path& file) {
  return is_torchscript(file) &&
         (is_in_zip(file, "models/model.json") || is_in_zip(file, "archive_format"));
}

ExportedProgram::ExportedProgram(const fs::path& file) : file_(file) {
  constexpr double kCopies = 2.0;  // Of the archive, and of the tensors that are made of it.
  const auto bytes = static_cast<double>(verify_zip(file));
  check_memory(kCopies * bytes, "the program", file.string());
  check_content(file);
  // The runner warns of every operator that it calls through the dispatcher.
  const auto loud = c10::make_scope_exit(
      [level = std::exchange(FLAGS_caffe2_log_level, 2)] { FLAGS_caffe2_log_level = level; });
  runner_ = in_one_line(file, "cannot load the program", [&] {
    return std::make_unique<torch::nativert::ModelRunnerHandle>(file.string(), "model");
  });
}

ExportedProgram::~ExportedProgram() = default;

std::vector<at::Tensor> ExportedProgram::outputs(const at::Tensor& images_BCHW) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  in_one_line(file_, "cannot run the program",
              [&] { add_tensors(runner_->run({images_BCHW.contiguous()}, {}), tensors); });
  if (tensors.empty()) fail("{}: a program without a tensor as its output", file_.string());
  return tensors;
}

std::shared_ptr<Model> program_model(const fs::path& file, std::shared_ptr<Model> shape,
                                     const InputSpec& input) {
  return std::make_shared<ProgramModel>(file, std::move(shape), input);
}

}  // namespace moesaic
