// SPDX-License-Identifier: Apache-2.0
#include "moesaic/import/vmoe/import.h"

#include <fmt/format.h>

#include "import/vmoe/fixture.h"
#include "import/vmoe/reference.h"
#include "moesaic/checkpoint/inspect.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/export/formats.h"
#include "moesaic/export/predict.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "support/matchers.h"
#include "support/tensors.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

class ImportVMoE : public ::testing::Test {
 protected:
  fs::path put(const std::string& name, const ordered_json& json) const {
    test::put(folder_ / name, json.dump(2));
    return folder_ / name;
  }
  fs::path put_config(const VMoEConfig& config) const {
    return put("config.json", to_json(config));
  }
  /// Writes a network of random numbers and its configuration; returns its arrays.
  TensorMap put_network(const VMoEConfig& config = import_config(),
                        const vmoe_checkpoint::WriteOptions& options = {}) const {
    const TensorMap arrays = random_arrays(config);
    write_arrays(folder_ / "ckpt", arrays, options);
    put_config(config);
    return arrays;
  }
  ImportVMoEOptions options() const { return options_from(folder_ / "ckpt"); }
  ImportVMoEOptions options_from(const fs::path& prefix) const {
    return {.prefix = prefix, .model_config = folder_ / "config.json", .out = folder_ / "out"};
  }
  void remove_results() const {
    fs::remove_all(folder_ / "out");
    fs::remove_all(folder_ / "back");
  }
  /// An imported checkpoint's arrays, by the way back.
  TensorMap exported(const fs::path& checkpoint,
                     const vmoe_checkpoint::WriteOptions& options = {}) const {
    fs::create_directories(folder_ / "back");
    export_vmoe(*load_model(checkpoint), folder_ / "back/ckpt", options);
    return read_arrays(folder_ / "back/ckpt");
  }
  std::string refused(const ImportVMoEOptions& options, ErrorKind kind) const {
    const std::string message = test::error_of(kind, [&] { import_vmoe(options); });
    EXPECT_FALSE(fs::exists(options.out));
    return message;
  }

  test::TempDir folder_;
};

TEST_F(ImportVMoE, TheNetworkHasTheArraysAndGivesThemBack) {
  const VMoEConfig config = import_config();
  const TensorMap arrays = put_network(config, {.shards = 3, .max_chunk_bytes = 1000});
  const ImportVMoEResult result = import_vmoe(options());
  EXPECT_EQ(result.num_copied, static_cast<int64_t>(arrays.size()));
  EXPECT_EQ(result.num_shards, 3);
  EXPECT_EQ(result.num_parameters, VMoE(config, 1).num_parameters());
  EXPECT_EQ(load_model(folder_ / "out")->config(), to_json(config));
  const InputSpec input = input_spec_of(load_checkpoint(folder_ / "out"), VMoE(config, 1));
  EXPECT_EQ(input.mean, std::vector<double>(static_cast<size_t>(config.channels), 0.5));
  expect_equal(exported(folder_ / "out"), arrays);
}

TEST_F(ImportVMoE, EveryCheckpointOfTheReference) {
  NEEDS_REFERENCE();
  for (const std::string name : {"vmoe_top2", "vmoe_bpr", "e3", "expert_choice", "train/adam"}) {
    const auto config = reference_config(name);
    for (const bool whole : {true, false}) {
      remove_results();
      put("config.json", whole ? config : config["model"]);
      import_vmoe(options_from(reference_path(name) / "ckpt"));
      const auto& writer = config["checkpoint"];
      const TensorMap found =
          exported(folder_ / "out", {.shards = writer["num_shards"],
                                     .max_chunk_bytes = writer["max_chunk_bytes"],
                                     .max_piece_bytes = writer["subchunk_bytes"]});
      expect_equal(found, read_tensors(reference_path(name) / "params.safetensors"));
      if (writer["expert_partitions"] != 1) continue;  // cut as its devices were
      for (const auto& file : fs::directory_iterator(folder_ / "back")) {
        const std::string part = file.path().filename().string();
        EXPECT_TRUE(test::get(file.path()) == test::get(reference_path(name) / part))
            << name << " " << part;
      }
    }
  }
}

TEST_F(ImportVMoE, EveryLayoutOfFiles) {
  NEEDS_REFERENCE();
  put("config.json", reference_config("ckpt_format"));
  const TensorMap wanted = read_tensors(reference_path("ckpt_format/params.safetensors"));
  for (const char* name : {"single", "sharded", "chunked"}) {
    remove_results();
    import_vmoe(options_from(reference_path("ckpt_format") / name));
    expect_equal(exported(folder_ / "out"), wanted);
  }
}

/// README of the reference's tensors, section 7.
TEST_F(ImportVMoE, FineTuningBeginsAsTheReferenceDoes) {
  NEEDS_REFERENCE();
  for (const std::string name : {"vmoe_resize", "vmoe_shrink", "e3_reshape", "upcycle"}) {
    for (const bool by_rules : {true, false}) {
      if (name == "upcycle" && !by_rules) continue;  // the released recipes have no such rules
      remove_results();
      const fs::path golden = reference_path("finetune_init/" + name);
      const auto config = reference_config("finetune_init/" + name);
      put("config.json", config);
      ImportVMoEOptions given = options_from(golden / "pretrained");
      if (by_rules) {
        given.rules = folder_ / "config.json";
      } else {
        given.num_classes = config["model"]["num_classes"].get<int64_t>();
        given.image_size = config["image_size"].get<int64_t>();
      }
      const ImportVMoEResult result = import_vmoe(given);
      TensorMap wanted = read_tensors(golden / "golden.safetensors");
      const TensorMap found = exported(folder_ / "out");
      for (const auto& [array, state] : config["tensors"].items()) {
        const bool transformed = std::ranges::count(result.transformed, array) > 0;
        const bool fresh = std::ranges::count(result.fresh, array) > 0;
        EXPECT_EQ(transformed ? "transformed" : fresh ? "fresh" : "copied", state) << array;
        if (array.ends_with("Router/dense/kernel") && fresh) continue;  // random
        ASSERT_TRUE(found.contains(array)) << array;
        const float off = (found.at(array) - wanted.at(array)).abs().max().item<float>();
        EXPECT_LE(off, array.ends_with("pos_embedding") ? 1.2e-7f : 0.0f) << name << array;
      }
      EXPECT_EQ(found.size(), wanted.size());
    }
  }
}

TEST_F(ImportVMoE, TheReferencesLogitsAfterwards) {
  NEEDS_REFERENCE();
  for (const std::string name : {"vmoe_resize", "vmoe_shrink", "e3_reshape", "upcycle"}) {
    const fs::path golden = reference_path("finetune_init/" + name);
    put("config.json", reference_config("finetune_init/" + name));
    fs::remove_all(folder_ / "out");
    ImportVMoEOptions given = options_from(golden / "pretrained");
    given.rules = folder_ / "config.json";
    import_vmoe(given);
    const TensorMap forward = read_tensors(golden / "forward.safetensors");
    const TensorMap target = read_tensors(golden / "golden.safetensors");
    const auto model = load_model(folder_ / "out");
    const torch::NoGradGuard no_grad;
    TensorMap state = state_of(*model);
    state.at("head.weight").copy_(forward.at("head/kernel").t());
    for (const int64_t block : {1, 3}) {
      if (name != "upcycle") continue;
      state.at(fmt::format("blocks.{}.moe.router.weight", block))
          .copy_(
              target.at(fmt::format("Encoder/encoderblock_{}/Moe/Router/dense/kernel", block)).t());
    }
    model->eval();
    const ModelOutput out =
        model->forward(forward.at("input/images").permute({0, 3, 1, 2}).contiguous());
    expect_close(out.pre_logits, forward.at("pre_logits"), 1e-5);
    expect_close(out.logits, forward.at("logits"), 1e-5);
  }
}

TEST_F(ImportVMoE, ClassesAndImagesOfAnotherSize) {
  const TensorMap arrays = put_network();
  ImportVMoEOptions given = options();
  given.num_classes = 3;
  given.image_size = 48;
  const ImportVMoEResult result = import_vmoe(given);
  EXPECT_THAT(result.fresh, ElementsAre("head/kernel", "head/bias"));
  EXPECT_THAT(result.dropped, ElementsAre("head/bias", "head/kernel"));
  EXPECT_THAT(result.transformed, ElementsAre("Encoder/posembed_input/pos_embedding"));
  EXPECT_THAT(result.notes, ElementsAre(HasSubstr("group_size 34 became 74: 2 images of 37")));
  const auto model = load_model(folder_ / "out");
  EXPECT_EQ(model->num_classes(), 3);
  EXPECT_EQ(model->input_shape(), (std::vector<int64_t>{3, 48, 48}));
  EXPECT_EQ(state_of(*model).at("head.weight").abs().sum().item<float>(), 0.0f);
  // A head that fits stays where only the images' size changes.
  fs::remove_all(folder_ / "out");
  given.num_classes.reset();
  EXPECT_TRUE(import_vmoe(given).fresh.empty());
  EXPECT_TRUE(torch::equal(state_of(*load_model(folder_ / "out")).at("head.weight"),
                           arrays.at("head/kernel").t()));
}

TEST_F(ImportVMoE, ALayerBeforeTheHeadStaysUnlessTheConfigurationHasNone) {
  VMoEConfig config = import_config();
  config.representation_size = 6;
  write_arrays(folder_ / "ckpt", random_arrays(config));
  ordered_json json = to_json(config);
  ImportVMoEOptions given = options();
  given.num_classes = 3;
  put("config.json", json);
  EXPECT_THAT(import_vmoe(given).dropped, ElementsAre("head/bias", "head/kernel"));
  fs::remove_all(folder_ / "out");
  json["representation_size"] = nullptr;
  put("config.json", json);
  EXPECT_THAT(import_vmoe(given).dropped,
              ElementsAre("head/bias", "head/kernel", "pre_logits/bias", "pre_logits/kernel"));
  EXPECT_EQ(state_of(*load_model(folder_ / "out")).at("head.weight").size(1), 12);
  fs::remove_all(folder_ / "out");
  given.num_classes.reset();
  EXPECT_THAT(refused(given, ErrorKind::usage), HasSubstr("representation_size is 0, but"));
}

TEST_F(ImportVMoE, OtherDtypesAndATrainState) {
  const VMoEConfig config = import_config();
  const TensorMap arrays = random_arrays(config);
  TensorMap stored = {{"step", torch::zeros({}, at::kInt)},
                      {"opt_state/0/trace/embedding/kernel", at::ones({8, 8, 3, 12})}};
  for (const auto& [name, tensor] : arrays) stored["params/" + name] = tensor.to(at::kBFloat16);
  write_arrays(folder_ / "ckpt", stored, {.shards = 2, .max_chunk_bytes = 300});
  put_config(config);
  const ImportVMoEResult result = import_vmoe(options());
  EXPECT_EQ(result.branch, "params/");
  EXPECT_EQ(result.num_other_arrays, 2);
  TensorMap wanted;
  for (const auto& [name, tensor] : arrays) wanted[name] = tensor.to(at::kBFloat16).to(at::kFloat);
  expect_equal(exported(folder_ / "out"), wanted);
}

TEST_F(ImportVMoE, ADenseNetworkNeedsNoConfiguration) {
  VMoEConfig config = import_config();
  config.encoder.moe = {};
  write_arrays(folder_ / "ckpt", random_arrays(config));
  ImportVMoEOptions given = options();
  given.model_config.clear();
  import_vmoe(given);
  EXPECT_EQ(load_model(folder_ / "out")->config(), to_json(config));
  fs::remove_all(folder_ / "out");
  write_arrays(folder_ / "ckpt", random_arrays(import_config()));
  EXPECT_THAT(refused(given, ErrorKind::usage),
              HasSubstr("must have encoder.moe.group_size, "
                        "encoder.moe.router.dispatcher.capacity_factor, "
                        "encoder.moe.router.num_selected_experts"));
}

TEST_F(ImportVMoE, ArraysThatDoNotFitAreNamed) {
  const VMoEConfig config = import_config();
  put_config(config);
  const TensorMap arrays = random_arrays(config);
  const auto refused_with = [&](const std::function<void(TensorMap&)>& change) {
    TensorMap changed = arrays;
    change(changed);
    write_arrays(folder_ / "ckpt", changed);
    return refused(options(), ErrorKind::failure);
  };
  const std::string kernel = "Encoder/encoderblock_2/Mlp/Dense_1/kernel";
  EXPECT_THAT(refused_with([&](TensorMap& all) { all.erase(kernel); }),
              HasSubstr("no array '" + kernel + "', which the network needs"));
  EXPECT_THAT(refused_with([&](TensorMap& all) {
                all[kernel] = at::ones({12, 20});
              }),
              HasSubstr("'" + kernel + "' is [12, 20], the network's is [20, 12]"));
  EXPECT_THAT(refused_with([&](TensorMap& all) { all["extra"] = at::ones({1}); }),
              HasSubstr("array 'extra' has no place in the network"));
  EXPECT_THAT(refused_with([&](TensorMap& all) { all[kernel] = all[kernel].to(at::kInt); }),
              HasSubstr("is int32; a parameter is one of"));
  EXPECT_THAT(refused_with([&](TensorMap& all) {
                all[kernel] = at::full({20, 12}, NAN);
              }),
              HasSubstr("holds NaN"));
  EXPECT_THAT(refused_with([&](TensorMap& all) {
                all.erase("Encoder/encoderblock_2/LayerNorm_0/bias");
                std::erase_if(all, [](const auto& item) {
                  return item.first.starts_with("Encoder/encoderblock_2/");
                });
              }),
              HasSubstr("no arrays of Encoder/encoderblock_2"));
}

TEST_F(ImportVMoE, NothingIsLeftWhereTheDiskIsFull) {
  put_network();
  const auto before = folder_.names();
  {
    const test::FileSizeLimit limit(4096);
    refused(options(), ErrorKind::failure);
  }
  EXPECT_EQ(folder_.names(), before);
}

TEST_F(ImportVMoE, NothingIsLeftWhereItIsStopped) {
  put_network();
  const auto before = folder_.names();
  ImportVMoEOptions given = options();
  given.progress = [](uint64_t done, uint64_t total) {
    if (done > total / 2) throw std::runtime_error("stop");
  };
  EXPECT_THROW(import_vmoe(given), std::runtime_error);
  EXPECT_EQ(folder_.names(), before);
}

TEST_F(ImportVMoE, APrunedNetworkIsWrittenWithZerosAndComputesTheSame) {
  VMoEConfig config = import_config();
  config.encoder.moe.router.capacity.factor = 0.0;
  const VMoEConfig whole = config;
  config.encoder.moe.kept_experts = {{"1", {0, 3}}, {"3", {1, 2, 7}}};
  const auto network = small_vmoe(config);
  VMoE& pruned = *network;
  const torch::NoGradGuard no_grad;
  export_vmoe(pruned, folder_ / "ckpt", {});
  put_config(whole);
  import_vmoe(options());
  const at::Tensor images = randn({4, 3, 32, 32}, 7, at::kFloat);
  expect_close(load_model(folder_ / "out")->forward(images).logits, pruned.forward(images).logits,
               1e-5);
  config.encoder.moe.router.pruned = PrunedSelection::reroute;
  const VMoE rerouting(config, 1);
  EXPECT_THAT(test::usage_of([&] { export_vmoe(rerouting, folder_ / "other", {}); }),
              HasSubstr("reroutes tokens of"));
  VMoEConfig convolved = whole;
  convolved.stem = {{8, 2}};
  EXPECT_EQ(test::usage_of([&] { export_vmoe(VMoE(convolved, 1), folder_ / "other", {}); }),
            "export: the network has the setting 'stem', which a V-MoE checkpoint cannot "
            "store; choose safetensors");
  convolved.stem = {{convolved.channels}};  // All arrays would have the shapes of the network.
  put_config(convolved);
  fs::remove_all(folder_ / "out");
  EXPECT_THAT(refused(options(), ErrorKind::usage), HasSubstr("has no 'stem'; leave it out"));
  EXPECT_THAT(test::usage_of([&] { export_vmoe(pruned, folder_ / "ckpt", {}); }),
              HasSubstr("already exists"));
}

TEST_F(ImportVMoE, APrunedNetworkComesBackByItsOwnConfiguration) {
  VMoEConfig config = import_config();
  config.encoder.moe.kept_experts = {{"1", {0, 3}}, {"3", {1, 2, 7}}};
  const auto network = small_vmoe(config);
  VMoE& pruned = *network;
  const torch::NoGradGuard no_grad;
  export_vmoe(pruned, folder_ / "ckpt", {});
  put_config(config);
  const ImportVMoEResult result = import_vmoe(options());
  EXPECT_EQ(result.num_parameters, pruned.num_parameters());
  EXPECT_THAT(result.notes,
              ElementsAre("block 1 has 2 of 8 experts, as encoder.moe.kept_experts says",
                          "block 3 has 3 of 8 experts, as encoder.moe.kept_experts says"));
  const auto imported = load_model(folder_ / "out");
  expect_equal(state_of(*imported), state_of(pruned));
  const at::Tensor images = randn({4, 3, 32, 32}, 7, at::kFloat);
  expect_close(imported->forward(images).logits, pruned.forward(images).logits, 1e-5);
  ImportVMoEOptions fine_tuned = options();
  fine_tuned.num_classes = 5;
  fine_tuned.out = folder_ / "fine-tuned";
  import_vmoe(fine_tuned);
  EXPECT_EQ(load_model(fine_tuned.out)->moe_blocks()[0].layer->kept(),
            (std::vector<int64_t>{0, 3}));
  fs::remove_all(folder_ / "out");
  config.encoder.moe.mean_replacement = true;
  put_config(config);
  EXPECT_THAT(refused(options(), ErrorKind::usage),
              AllOf(HasSubstr("config.json:"), HasSubstr("has no 'encoder.moe.mean_replacement'")));
  config.encoder.moe.mean_replacement = false;
  config.encoder.moe.kept_experts = {{"1", {0, 1}}};
  config.encoder.moe.merged_into = {{"1", {0, 1, 0, 1, 0, 1, 0, 1}}};
  put_config(config);
  EXPECT_THAT(refused(options(), ErrorKind::usage), HasSubstr("has no 'encoder.moe.merged_into'"));
}

TEST_F(ImportVMoE, NumberFormatsComeBack) {
  const VMoEConfig config = import_config();
  TensorMap arrays = random_arrays(config);
  for (auto& [name, array] : arrays) {
    if (name.ends_with("/kernel")) array = array.to(at::kBFloat16);
    if (name.ends_with("/scale")) array = array.to(at::kHalf);
  }
  write_arrays(folder_ / "ckpt", arrays);
  put_config(config);
  import_vmoe(options());
  const Checkpoint imported = load_checkpoint(folder_ / "out");
  const ExportInfo info = export_info(imported, *model_of(imported));
  EXPECT_EQ(info.array_dtypes.at("head/kernel"), "bfloat16");
  EXPECT_FALSE(info.array_dtypes.contains("head/bias"));
  fs::create_directories(folder_ / "back");
  export_vmoe(*load_model(folder_ / "out"), folder_ / "back/ckpt", {}, info.array_dtypes);
  for (const char* part : {"ckpt.index", "ckpt.data-00000-of-00001"}) {
    EXPECT_TRUE(test::get(folder_ / part) == test::get(folder_ / "back" / part)) << part;
  }
}

TEST_F(ImportVMoE, RoundedNumbersAreSaid) {
  const VMoEConfig config = import_config();
  TensorMap arrays = random_arrays(config);
  arrays.at("cls") = arrays.at("cls").to(at::kDouble);
  write_arrays(folder_ / "ckpt", arrays);
  put_config(config);
  EXPECT_THAT(import_vmoe(options()).notes,
              ElementsAre("an array of float64 is rounded to float32: cls"));
  arrays.at("head/bias") = arrays.at("head/bias").to(at::kDouble);
  write_arrays(folder_ / "ckpt", arrays);
  fs::remove_all(folder_ / "out");
  EXPECT_THAT(import_vmoe(options()).notes,
              ElementsAre("2 arrays of float64 are rounded to float32: cls, ..."));
}

/// Each imported, run and given back.
TEST_F(ImportVMoE, EveryKindOfNetwork) {
  std::vector<VMoEConfig> configs(6, import_config());
  configs[0].patch_size = {4, 8};
  configs[0].image_size = {8, 24};
  configs[0].encoder.moe.group_size = 14;
  configs[1].name = kE3;
  configs[2].num_classes = 0;
  configs[2].representation_size = 7;
  configs[3].encoder.position_emb.name = kSinCos2d;
  configs[3].encoder.moe.router.capacity.factor = 0.0;
  configs[3].encoder.moe.router.capacity.rows = 5;
  configs[4].encoder.position_emb.name = kNoPosition;
  configs[4].encoder.moe.mlp_dim = 6;
  configs[5].name = kE3;
  configs[5].classifier = "map";
  configs[5].map_head_qk_norm = true;
  configs[5].encoder.moe.router.noise = kNoiseAlways;
  for (const VMoEConfig& config : configs) {
    remove_results();
    const TensorMap arrays = put_network(config);
    import_vmoe(options());
    const auto model = load_model(folder_ / "out");
    EXPECT_EQ(model->config(), to_json(config));
    EXPECT_EQ(model->num_parameters(), VMoE(config, 1).num_parameters());
    std::vector<int64_t> shape = model->input_shape();
    shape.insert(shape.begin(), 2);
    const auto outputs = predict(*model, at::ones(shape), {.returns_routing = true});
    const int64_t wide = config.has_head() ? config.num_classes : config.pre_logits_size();
    EXPECT_EQ(outputs.at("logits").sizes().vec(), (std::vector<int64_t>{2, wide}));
    expect_equal(exported(folder_ / "out"), arrays);
  }
}

TEST_F(ImportVMoE, AHeadlessNetworkCanBeGivenAHead) {
  VMoEConfig config = import_config();
  config.num_classes = 0;
  put_network(config);
  ImportVMoEOptions given = options();
  given.num_classes = 3;
  EXPECT_THAT(import_vmoe(given).fresh, ElementsAre("head/kernel", "head/bias"));
  EXPECT_EQ(load_model(folder_ / "out")->num_classes(), 3);
}

TEST_F(ImportVMoE, GroupsAreCountedAnewWithoutPositionsTooWhichTellTheImagesSize) {
  VMoEConfig config = import_config();
  config.encoder.position_emb.name = "sincos2d";
  put_network(config);
  ImportVMoEOptions given = options();
  given.image_size = 48;
  EXPECT_THAT(import_vmoe(given).notes,
              ElementsAre(HasSubstr("group_size 34 became 74: 2 images of 37")));
}

TEST_F(ImportVMoE, InspectComparesPrefixes) {
  TensorMap arrays = put_network();
  import_vmoe(options());
  arrays.at("head/bias") += 1.0;
  arrays["step"] = at::ones({}, at::kInt);
  write_arrays(folder_ / "other", arrays);
  const auto two = inspect_difference(folder_ / "ckpt", folder_ / "other.index");
  EXPECT_EQ(two["only_in_second"], ordered_json({"step"}));
  EXPECT_EQ(two["changed"].size(), 1U);
  EXPECT_EQ(two["changed"][0]["name"], "head/bias");
  EXPECT_EQ(two["equal"], arrays.size() - 2);
  const auto mixed = inspect_difference(folder_ / "ckpt", folder_ / "out");
  EXPECT_EQ(mixed["equal"], arrays.size() - 1);
  EXPECT_TRUE(mixed["changed"].empty() && mixed["only_in_second"].empty()) << mixed;
  // Numbers that are not of floating point are of no network.
  arrays["steps"] = at::ones({999}, at::kLong);
  write_arrays(folder_ / "third", arrays);
  EXPECT_EQ(inspect_difference(folder_ / "third", folder_ / "out")["equal"], arrays.size() - 3);
  const VMoEFileArrays third = arrays_of_files(folder_ / "third");
  EXPECT_THAT(test::failure_of([&] { third.read(*third.find("steps")); }), HasSubstr("int64"));
}

}  // namespace
}  // namespace moesaic::testing
