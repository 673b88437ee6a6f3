// SPDX-License-Identifier: Apache-2.0
// A training step on the meta device, where every read of a value throws: on a GPU each of them
// would make the host wait. Copies from the host are counted. What the kernels for a GPU do
// themselves is not seen here: experts without a grouped GEMM are told their numbers of rows.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "moesaic/data/dataset.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/gradient_phase.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using train_test::config_of;
using train_test::kModel;
using train_test::quarters;

using OptionalTensor = std::optional<at::Tensor>;

void expect_on_meta(std::initializer_list<at::TensorList> lists, const OptionalTensor& skip) {
  for (const at::TensorList& list : lists) {
    for (const at::Tensor& tensor : list) EXPECT_TRUE(tensor.is_meta());
  }
  EXPECT_TRUE(skip && skip->is_meta());
}

void fused_sgd(at::TensorList parameters, at::TensorList gradients, at::TensorList momenta, double,
               double, double, double, bool, bool, bool, const OptionalTensor&,
               const OptionalTensor& found_inf) {
  expect_on_meta({parameters, gradients, momenta}, found_inf);
}

void fused_adamw(at::TensorList parameters, at::TensorList gradients, at::TensorList means,
                 at::TensorList squares, at::TensorList, at::TensorList counts, double, double,
                 double, double, double, bool, bool, const OptionalTensor&,
                 const OptionalTensor& found_inf) {
  expect_on_meta({parameters, gradients, means, squares, counts}, found_inf);
}

at::Tensor absolute(const at::Tensor& input) {
  return at::empty_like(input);
}

at::Tensor truth(const at::Tensor& input) {
  return at::empty_like(input, at::kBool);
}

std::tuple<at::Tensor, at::Tensor> log_sigmoid(const at::Tensor& input) {
  return {at::empty_like(input), at::empty({0}, input.options())};
}

at::Tensor log_sigmoid_gradient(const at::Tensor&, const at::Tensor& input, const at::Tensor&) {
  return at::empty_like(input);
}

at::Tensor indexed_rows(const at::Tensor& input, int64_t axis, const at::Tensor& index) {
  std::vector<int64_t> shape = input.sizes().vec();
  if (!shape.empty())
    shape[static_cast<size_t>(at::maybe_wrap_dim(axis, input.dim()))] = index.numel();
  return at::empty(shape, input.options());
}

at::Tensor either(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b) {
  return at::add(a, b).add(condition.to(a.scalar_type()));
}

at::Tensor variance(const at::Tensor& input, at::OptionalIntArrayRef axes,
                    const std::optional<at::Scalar>&, bool keeps_axes) {
  return input.sum(axes, keeps_axes);
}

/// Operators of a step whose shapes LibTorch has in Python only.
class ShapeFunctions {
 public:
  ShapeFunctions() {
    library_.impl("abs", absolute);
    library_.impl("logical_not", truth);
    library_.impl("log_sigmoid_forward", log_sigmoid);
    library_.impl("log_sigmoid_backward", log_sigmoid_gradient);
    library_.impl("index_select", indexed_rows);
    library_.impl("where.self", either);
    library_.impl("var.correction", variance);
    library_.impl("_fused_sgd_", fused_sgd);
    library_.impl("_fused_adamw_", fused_adamw);
  }

 private:
  torch::Library library_{torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__};
};

/// Counts this thread's copies from the host to the meta device.
class HostCopies {
 public:
  HostCopies() {
    count() = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&HostCopies::see)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~HostCopies() { at::removeCallback(handle_); }
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  static int& count() {
    static thread_local int number = 0;
    return number;
  }

 private:
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function) {
    if (std::string_view(function.name()) != "aten::copy_") return nullptr;
    const auto inputs = function.inputs();
    if (inputs[0].toTensor().is_meta() && inputs[1].toTensor().is_cpu()) ++count();
    return nullptr;
  }

  at::CallbackHandle handle_ = 0;
};

std::shared_ptr<const Dataset> open_colours(std::string_view, std::string_view split) {
  DatasetInfo info = quarters("three", std::string(split), 3, 24)->info();
  info.channels = 3;
  info.height = info.width = 8;
  info.mean.assign(3, 0.4);
  info.std.assign(3, 0.3);
  std::vector<uint8_t> pixels(24 * 3 * 64, 7), labels(24);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<uint8_t>(i % 3);
  return make_memory_dataset(info, pixels, labels);
}

std::shared_ptr<const Dataset> open_patches(std::string_view, std::string_view split) {
  DatasetInfo info{"patches", std::string(split), "", {"0", "1"}, 1, 4, 6, {}, {}};
  return make_input_dataset(info, {.values_NCHW = torch::ones({24, 1, 4, 6}),
                                   .labels_N = torch::arange(24).remainder(2)});
}

std::string run_of(const std::string& model, const std::string& phase) {
  return R"({"name": "meta", "num_loader_threads": 0, "model": )" + model +
         R"(, "phases": [{"name": "train", "data": "three", "batch_size": 6, "steps": 9, )" +
         phase + "}]}";
}

/// Makes steps on the meta device; returns how many copies from the host each took.
int copies_of_a_step(const RunConfig& config, DatasetOpener open = train_test::open_tiny) {
  const MetaKernels kernels;
  const ShapeFunctions shapes;
  const std::shared_ptr<Model> model = build_meta_model(config.model);
  DatasetCache datasets(open);
  const PhasePlan plan = plan_phases(config, *model, datasets)[0];
  GradientPhase phase(
      plan, {.model = model, .data = open("three", "train"), .seed = 7, .measures_loads = true});
  phase.step();
  const HostCopies copies;
  const StepReport report = phase.step();
  EXPECT_THROW(report.deferred_metrics(), c10::Error) << "the one read of a step";
  EXPECT_EQ(phase.state().values.at("updates"), 2);
  return HostCopies::count();
}

/// Images and labels.
constexpr int kBatch = 2;

TEST(StepOnMetaDevice, ReadsThatAreLeftInAreSeen) {
  EXPECT_THROW(at::ones({2}, at::kMeta).sum().item<double>(), c10::Error);
  const HostCopies copies;
  at::tensor({1, 2}, at::device(at::kMeta).dtype(at::kInt));
  at::zeros({2}).to(at::kMeta);
  EXPECT_EQ(HostCopies::count(), 2);
}

TEST(StepOnMetaDevice, TokensChoose) {
  const std::string losses =
      R"("aux_losses": {"importance": 0.01, "gshard": 0.02, "load": 0.01, "router_z": 0.1,
                        "switch_balance": 0.01, "switch_balance_logit": 0.01}, )";
  const std::string adam = losses + R"("clip_norm": 1, "label_smoothing": 0.1,
      "optimizer": {"name": "adamw", "weight_decay": 0.05}, "augment": {"flip": true, "max_shift": 1})";
  EXPECT_EQ(copies_of_a_step(config_of(run_of(kModel, adam))), kBatch);
  const std::string parts =
      R"("gradient_accumulation_steps": 2, "loss": "sigmoid", "clip_value": 2, "gradient_scale":
      [{"pattern": "head", "value": 2}], "optimizer": {"name": "sgd", "momentum": 0.9,
      "weight_decay": 0.1}, "schedule": {"name": "cosine", "warmup_steps": 2})";
  const std::vector<std::string> queues = {
      "model.encoder.moe.router.dispatcher={\"capacity_factor\": 1, \"batch_priority\": true}",
      "activation_checkpointing=true"};
  EXPECT_EQ(copies_of_a_step(config_of(run_of(kModel, parts), queues)), kBatch);
}

TEST(StepOnMetaDevice, ExpertsChoose) {
  const RunConfig config =
      config_of(run_of(kModel, R"("optimizer": {"name": "adam"}, "aux_losses": {"router_z": 0.1})"),
                {"model.encoder.moe.router={\"name\": \"NoisyTopItemsPerExpertRouter\", "
                 "\"noise_std\": 1, \"dispatcher\": {\"capacity_factor\": 1}}"});
  EXPECT_EQ(copies_of_a_step(config), kBatch);
}

TEST(StepOnMetaDevice, PrunedExperts) {
  for (const char* pruned : {"zero", "reroute"}) {
    const RunConfig config = config_of(
        run_of(kModel, R"("optimizer": {"name": "sgd"}, "aux_losses": {"importance": 0.1})"),
        {"model.encoder.moe.kept_experts={\"1\": [0, 2, 3]}",
         "model.encoder.moe.router.pruned_selection=" + std::string(pruned)});
    EXPECT_EQ(copies_of_a_step(config), kBatch) << pruned;
  }
}

TEST(StepOnMetaDevice, Ensemble) {
  const RunConfig config =
      config_of(run_of(kModel, R"("loss": "ensemble_softmax", "optimizer": {"name": "adamw"},
                                  "aux_losses": {"importance": 0.1, "load": 0.1})"),
                {"model.name=e3", "model.encoder.moe.ensemble_size=2"});
  EXPECT_EQ(copies_of_a_step(config), kBatch);
}

const char* const kExpertsAndRouter = R"("loss": "softmax_twice", "optimizer": {"name": "sgd",
    "momentum": 0.9, "l2": 5e-4}, "optimizers": [{"parameters": ["^moe.experts"], "optimizer":
    {"name": "normalized_sgd", "lr": 0.1, "momentum": 0.9, "l2": 5e-4}}])";

TEST(StepOnMetaDevice, NetworksOfTheClustersPaper) {
  for (const std::string network : {"cnn", "mobilenetv2", "resnet18"}) {
    const std::string model =
        R"({"name": "image-moe", "num_experts": 2, "image_size": 8, "num_classes": 3,
        "width": 0.1, "router": {}, "expert": ")" +
        network + "\"}";
    const std::string phase =
        kExpertsAndRouter + std::string(R"(, "aux_losses": {"switch_balance": 0.001})");
    EXPECT_EQ(copies_of_a_step(config_of(run_of(model, phase)), open_colours), kBatch) << network;
  }
}

TEST(StepOnMetaDevice, FiltersOfTheClustersPaper) {
  for (const std::string router : {"{}", "null"}) {
    const std::string model = R"({"name": "cluster-moe", "num_experts": )" +
                              std::string(router == "null" ? "1" : "4") +
                              R"(, "num_filters": 4, "num_patches": 4, "width": 6, "num_classes": 2,
        "router": )" + router +
                              "}";
    const std::string phase =
        router == "null" ? R"("optimizer": {"name": "normalized_sgd"})" : kExpertsAndRouter;
    EXPECT_EQ(copies_of_a_step(config_of(run_of(model, phase)), open_patches), kBatch) << router;
  }
}

}  // namespace
}  // namespace moesaic
