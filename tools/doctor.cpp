// SPDX-License-Identifier: Apache-2.0
// Prints the data of a bug report and checks whether this machine is usable.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>
#include <torch/version.h>

#include "bench/bench.h"
#include "command_line.h"
#include "moesaic/base/process.h"
#include "moesaic/data/source.h"
#include "moesaic/export/formats.h"
#include "moesaic/nn/moe_layer.h"
#include "moesaic/ops/device.h"
#include "moesaic/report/device_agreement.h"

namespace moesaic::tools {
namespace {

class Report {
 public:
  void note(const std::string& name, const std::string& text) {
    std::cout << fmt::format("  {:<12} {}\n", name, text);
  }
  void check(const std::string& name, bool good, const std::string& text) {
    std::cout << fmt::format("{} {:<12} {}\n", good ? "✓" : "✗", name, text);
    good_ = good_ && good;
  }
  bool good() const { return good_; }

 private:
  bool good_ = true;
};

void check_operators(Report& report) {
  int missing = 0;
  for (const char* name :
       {"route_token_choice", "dispatch", "grouped_mlp", "combine", "routed_mlp"}) {
    const bool here =
        c10::Dispatcher::singleton().findSchema({std::string("moesaic::") + name, ""}).has_value();
    missing += here ? 0 : 1;
  }
  report.check("operators", missing == 0,
               missing == 0 ? "registered" : fmt::format("{} are not registered", missing));
}

/// Runs one small layer forward and backward to check the arithmetic.
void check_layer(Report& report) {
  nn::MoELayer layer(nn::MoELayerOptions{.width = 16, .hidden = 32, .num_experts = 4});
  const at::Tensor x = torch::linspace(-1, 1, 64 * 16).view({64, 16});
  const at::Tensor y = layer->forward(x).y_Td;
  y.square().sum().backward();
  const bool finite = torch::isfinite(layer->router->weight.grad()).all().item<bool>() &&
                      torch::isfinite(y).all().item<bool>();
  report.check("layer", finite, finite ? "forward and backward give finite numbers" : "gives NaN");
}

/// Compares a GPU's operators with the CPU's, and says how to turn off what does not agree; with
/// `all`, every case runs with what MOESAIC_CUDA_OFF said.
void check_gpu(Report& report, bool all) {
  if (const auto off = disabled_cuda_features(); !off.empty()) {
    report.note("GPU", fmt::format("MOESAIC_CUDA_OFF turns off: {}", fmt::join(off, ", ")));
  }
  if (all) {
    for (const DeviceCase& item : device_cases()) {
      const Agreement found = compare_devices(item, at::kCUDA);
      report.check("GPU", found.agrees(), fmt::format("{}: {}", found.name, found.text()));
    }
    return;
  }
  bool helps = false;
  for (const Agreement& found : disable_failing_features(device_cases(), at::kCUDA)) {
    report.check("GPU", found.agrees(), fmt::format("{}: {}", found.name, found.text()));
    helps = helps || !found.disabled_features.empty();
  }
  if (!helps) return;
  report.note("GPU", fmt::format("turn off what does not agree: export MOESAIC_CUDA_OFF={}",
                                 fmt::join(disabled_cuda_features(), ",")));
}

void check_data(Report& report) {
  for (const std::string& name : dataset_names()) {
    const DatasetSource source(name);
    if (!source.spec().base.empty() || source.base().is_generated()) continue;
    const bool found = !source.base().find_folder().empty();
    report.note("data", fmt::format("{} {} {}", name, found ? "in" : "is", source.where()));
  }
}

/// Only exports to some formats need it.
void note_python(Report& report) {
  try {
    report.note("Python", export_python().string());
  } catch (const Error&) {
    report.note("Python", "not found; exports to pt2 and onnx need that of tools/setup.sh");
  }
}

void doctor(bool all, int& exit_code) {
  disabled_cuda_features();  // Refuses a misspelt part where there is no GPU, too.
  Report report;
  report.note("moesaic", MOESAIC_VERSION);
  report.note("LibTorch", fmt::format("{} (this build), vector instructions {}", TORCH_VERSION,
                                      at::get_cpu_capability()));
  report.note("processor", bench::processor());
  report.note("matmul", cpu_matmul_dtypes());
  report.note("threads", fmt::format("{}", at::get_num_threads()));
  report.note("CUDA", fmt::format("{}, {}", has_cuda_operators() ? "compiled" : "not compiled",
                                  torch::cuda::is_available() ? "GPU found" : "no GPU found"));
  const fs::path gnuplot = find_program("gnuplot");  // Only some commands need it.
  report.note("gnuplot", gnuplot.empty() ? "not on PATH; moesaic reproduce draws figures with it"
                                         : gnuplot.string());
  note_python(report);
  const auto space = fs::space(fs::current_path());
  report.note("disk", fmt::format("{:.1f} GiB free here",
                                  static_cast<double>(space.available) / (1 << 30)));
  report.check("resources", fs::exists(resource("datasets")),
               fmt::format("datasets and recipes in {}", resource_root().string()));
  check_operators(report);
  check_layer(report);
  if (has_cuda_operators() && torch::cuda::is_available()) check_gpu(report, all);
  check_data(report);
  exit_code = report.good() ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto* verb = add_verb(app, "doctor",
                        "Check this installation and print a report for bug reports.", "doctor");
  const auto all = std::make_shared<bool>(false);
  verb->add_flag(
      "--all", *all,
      "compare all GPU operators with the CPU's, with none turned off (one that differs is turned "
      "off for later comparisons)");
  verb->callback([all, &exit_code] { doctor(*all, exit_code); });
}

}  // namespace moesaic::tools
