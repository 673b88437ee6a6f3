// SPDX-License-Identifier: Apache-2.0
// Predictions for image files, from the command line.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>

#include "data/jpeg_bytes.h"
#include "data/png_bytes.h"
#include "integration/program.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/export/formats.h"
#include "moesaic/formats/image.h"
#include "support/decoded_image.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kSide = 32;

/// Stripes of a direction, width and brightness that `seed` chooses, RGB.
Bytes stripes(int seed) {
  Bytes pixels;
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      for (int c = 0; c < 3; ++c) {
        const int place = seed % 2 == 0 ? x : y + c;
        pixels.push_back(static_cast<uint8_t>(50 * (seed % 4) + 25 * (place / (1 + seed % 3) % 4)));
      }
    }
  }
  return pixels;
}

/// A V-MoE of a few steps on images of 32 x 32 pixels of two classes, whose experts have a
/// capacity.
class PredictFiles : public ProgramTest {
 protected:
  PredictFiles() : options_{.environment = {"MOESAIC_DATA=" + text_path("data")}} {
    write_data();
    write("run.json", R"({"name": "predict", "seed": 3, "checkpoint_every": 0,
        "model": {"name": "vmoe", "image_size": 32, "channels": 3, "patch_size": 8,
          "hidden_size": 16, "num_classes": 2, "encoder": {"num_layers": 2, "num_heads": 2,
            "mlp_dim": 16, "moe": {"layers": [1], "num_experts": 4, "router": {
              "num_selected_experts": 2, "dispatcher": {"capacity_factor": 0.5}}}}},
        "phases": [{"name": "train", "data": ")" +
                          text_path("mini.json") + R"(", "batch_size": 8, "steps": 4,
          "optimizer": {"name": "adam", "lr": 0.01}}]})");
    must_succeed({"train", text_path("run.json"), "--out", text_path("run")}, options_);
    fs::remove_all(path("data"));  // A checkpoint needs no data.
    fs::remove(path("mini.json"));
    for (const auto& [name, seed] : images()) put(name, seed);
  }

  void write_data() const {
    fs::create_directories(path("data/mini"));
    write("data/mini/train.bin", records(16));
    write("data/mini/test.bin", records(8));
    write("mini.json", R"({"name": "mini", "description": "two classes", "format": "cifar",
        "classes": ["dark, striped", "bright"], "num_images": {"train": 16, "test": 8},
        "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3], "files": {
          "train_1": {"name": "train.bin", "size": 49168},
          "test_1": {"name": "test.bin", "size": 24584}}})");
  }

  static std::string records(int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      const Bytes pixels = stripes(i);
      bytes += static_cast<char>(i / 2 % 2);
      for (size_t c = 0; c < 3; ++c) {
        for (size_t p = c; p < pixels.size(); p += 3) bytes += static_cast<char>(pixels[p]);
      }
    }
    return bytes;
  }

  /// In the order of a walk through the folder.
  static std::vector<std::pair<std::string, int>> images() {
    return {{"folder/a.png", 0}, {"folder/b/0.PNG", 1}, {"folder/b/1.png", 2}, {"folder/c.png", 3}};
  }
  void put(const std::string& name, int seed) const {
    test::write_file(path(name), test::png_bytes(kSide, kSide, stripes(seed)));
  }

  ProgramResult predict(const Strings& more) const {
    return run_program(joined({"predict", text_path("run")}, more), options_);
  }
  /// What a file's tensor gives.
  std::map<std::string, at::Tensor> tensors(int seed) const {
    const Bytes pixels = stripes(seed);
    at::Tensor image = torch::tensor(std::vector<float>(pixels.begin(), pixels.end()));
    image = image.view({1, kSide, kSide, 3}).permute({0, 3, 1, 2}) / 255.0;
    const at::Tensor mean = torch::tensor({0.5F, 0.4F, 0.3F}).view({3, 1, 1});
    const at::Tensor std = torch::tensor({0.2F, 0.25F, 0.3F}).view({3, 1, 1});
    const std::string in = text_path("in.safetensors"), out = text_path("out.safetensors");
    fs::remove(out);
    write_tensors(in, {{"images", ((image - mean) / std).contiguous()}});
    must_succeed(predict({"--input", in, "--output", out, "--routing"}));
    return read_tensors(out);
  }

  ProgramOptions options_;
};

TEST_F(PredictFiles, EveryVerbReadsAnOlderTorchScriptFileWhereItIsTrusted) {
  write_data();
  const std::string file = text_path("old.pt"), run = text_path("run");
  {
    const Checkpoint checkpoint = load_newest_checkpoint(run);
    const auto model = model_of(checkpoint);
    torch::jit::ExtraFilesMap extra;
    for (const auto& [name, text] : side_files(*model, export_info(checkpoint, *model))) {
      extra[name] = text;
    }
    to_torchscript(*model).save(file, extra);
  }
  for (Strings command : std::vector<Strings>{
           {"inspect", file},
           {"inspect", run, file},
           {"eval", file, "--data", text_path("mini.json")},
           {"predict", file, text_path("folder")},
           {"prune", file, "--keep", "2", "--criterion", "magnitude", "--out", text_path("pruned")},
           {"prune", run, "--pretrained", file, "--keep", "2", "--out", text_path("compared")},
           {"export", file, "--format", "safetensors", "--out", text_path("new")},
           {"bench", file, "--batch-sizes", "1", "--seconds", "0"},
           {"train", text_path("run.json"), "init=" + file, "--out", text_path("more")}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(command, " ")));
    const auto refused = run_program(command, options_);
    expect_one_line_error(refused, 2, file);
    EXPECT_THAT(refused.err, HasSubstr("if you trust its author, give --trust"));
    command.push_back("--trust");
    must_succeed(command, options_);
  }
  const auto told = run_program({"inspect", file, "--trust", "--json"}, options_).json();
  const auto whole = run_program({"inspect", text_path("new"), "--json"}, options_).json();
  EXPECT_EQ(told["kind"], "torchscript");
  for (const char* key : {"parameters", "bytes", "tensors", "model", "classes", "moe"}) {
    EXPECT_EQ(told[key], whole[key]) << key;
  }
}

TEST_F(PredictFiles, GetTheNetworksOwnPreprocessingInSortedOrder) {
  const auto result = must_succeed(predict({text_path("folder"), "--json", "--routing"}));
  const auto found = result.json()["images"];
  ASSERT_EQ(found.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    const auto [name, seed] = images()[i];
    EXPECT_EQ(found[i]["file"], text_path(name));
    const auto wanted = tensors(seed);
    const at::Tensor p = wanted.at("logits").softmax(1)[0];
    double sum = 0.0;
    for (const auto& item : found[i]["top"]) {
      const auto index = item["index"].get<int64_t>();
      EXPECT_NEAR(item["probability"], p[index].item<double>(), 1e-5);
      EXPECT_EQ(item["class"], index == 0 ? "dark, striped" : "bright");
      sum += item["probability"].get<double>();
    }
    EXPECT_NEAR(sum, 1.0, 1e-5);
    const at::Tensor& combine = wanted.at("routing.1.combine");
    const auto& layer = found[i]["routing"][0];
    EXPECT_EQ(layer["layer"], 1);
    ASSERT_EQ(layer["experts"].size(), static_cast<size_t>(combine.size(0)));
    for (int64_t t = 0; t < combine.size(0); ++t) {
      const auto& experts = layer["experts"][static_cast<size_t>(t)];
      EXPECT_EQ(static_cast<int64_t>(experts.size()), combine[t].count_nonzero().item<int64_t>());
      for (size_t j = 0; j < experts.size(); ++j) {
        EXPECT_NEAR(layer["gates"][static_cast<size_t>(t)][j],
                    combine[t][experts[j].get<int64_t>()].item<double>(), 1e-5);
      }
    }
  }
}

TEST_F(PredictFiles, DoNotChangeEachOther) {
  const auto all = predict({text_path("folder"), "--json"}).json()["images"];
  for (size_t i = 0; i < 4; ++i) {
    const auto alone = predict({text_path(images()[i].first), "--json"}).json()["images"];
    EXPECT_EQ(alone, nlohmann::json::array({all[i]}));
  }
}

TEST_F(PredictFiles, AnExportWithoutCapacityDoesNotDependOnTheBatch) {
  const auto exported = [&](const std::string& out, Strings more) {
    const auto result = must_succeed(joined(
        {"export", text_path("run"), "--format", "torchscript", "--out", text_path(out)}, more));
    torch::jit::Module network = torch::jit::load(text_path(out));
    torch::manual_seed(1);
    const at::Tensor images = torch::randn({16, 3, kSide, kSide});
    const at::Tensor together = network.forward({images}).toTensor()[15];
    const at::Tensor alone = network.forward({images.narrow(0, 15, 1)}).toTensor()[0];
    return std::pair(result.err, torch::allclose(together, alone, 1e-5, 1e-5));
  };
  const auto [warned, equal] = exported("with.pt", {});
  EXPECT_THAT(warned, HasSubstr("--without-capacity"));
  EXPECT_FALSE(equal);
  const auto [silent, independent] = exported("without.pt", {"--without-capacity"});
  EXPECT_THAT(silent, Not(HasSubstr("warning")));
  EXPECT_TRUE(independent);
  must_succeed({"predict", text_path("without.pt"), text_path("folder")});
}

TEST_F(PredictFiles, ThatAreDamagedAreALineEachAndTheRestGoesOn) {
  const auto before = must_succeed(predict({text_path("folder"), "--csv"}));
  EXPECT_THAT(before.out,
              StartsWith("file,rank,class,probability\n" + text_path("folder/a.png") + ",1,"));
  EXPECT_EQ(std::count(before.out.begin(), before.out.end(), '\n'), 1 + 4 * 2);
  EXPECT_THAT(before.out, HasSubstr(",\"dark, striped\",0."));
  write("folder/b/00.jpg", "no image");
  const auto result = predict({text_path("folder"), "--csv"});
  expect_one_line_error(result, 1, text_path("folder/b/00.jpg") + ": ");
  EXPECT_EQ(result.out, before.out);
  const auto json = predict({text_path("folder"), "--json"});
  expect_one_line_error(json, 1, "00.jpg");
  EXPECT_EQ(json.json()["images"].size(), 5U);
  EXPECT_TRUE(json.json()["images"][2].contains("error")) << json.out;
  const auto text =
      must_succeed(predict({text_path("folder/c.png"), text_path("folder/a.png"), "--top", "1"}));
  EXPECT_EQ(std::count(text.out.begin(), text.out.end(), '\n'), 2);
  EXPECT_THAT(text.out, StartsWith(text_path("folder/c.png") + ": "));
  EXPECT_THAT(text.out, HasSubstr(" %\n" + text_path("folder/a.png") + ": "));
}

TEST_F(PredictFiles, AreRotatedByExif) {
  const Bytes jpeg = test::jpeg_bytes(kSide, kSide, test::JpegKind::noise, {});
  const test::RgbImage stored = test::decode_image(jpeg);
  Bytes turned(stored.pixels.size());  // Orientation 6: a quarter clockwise.
  for (size_t y = 0; y < kSide; ++y) {
    for (size_t x = 0; x < kSide; ++x) {
      for (size_t c = 0; c < 3; ++c) {
        turned[(y * kSide + x) * 3 + c] = stored.pixels[((kSide - 1 - x) * kSide + y) * 3 + c];
      }
    }
  }
  test::write_file(path("plain.jpg"), jpeg);
  test::write_file(path("exif.jpg"), test::turned_jpeg_bytes(kSide, kSide, test::JpegKind::noise));
  test::write_file(path("turned.png"), test::png_bytes(kSide, kSide, turned));
  const auto of = [&](const std::string& name) {
    const auto result = must_succeed(predict({text_path(name), "--json"}));
    return result.json()["images"][0]["top"];
  };
  EXPECT_EQ(of("exif.jpg"), of("turned.png"));
  EXPECT_NE(of("exif.jpg"), of("plain.jpg"));
}

TEST_F(PredictFiles, WrongUseIsOneLine) {
  const std::string image = text_path("folder/a.png");
  expect_one_line_error(predict({}), 2,
                        "the images are missing; name files or folders after the checkpoint");
  expect_one_line_error(predict({text_path("folder/aa.png")}), 2, "did you mean '" + image + "'?");
  expect_one_line_error(predict({image, "--routing"}), 2, "--routing of images needs --json");
  expect_one_line_error(predict({image, "--json", "--csv"}), 2, "--csv");
  expect_one_line_error(predict({image, "--input", image, "--output", "x"}), 2,
                        "'images' and '--input' exclude one another");
  expect_one_line_error(predict({"--input", image}), 2, "--output");
  expect_one_line_error(predict({image, "--top", "0"}), 2, "between 1 and");
  fs::create_directories(path("empty"));
  expect_one_line_error(predict({text_path("empty")}), 2, "the folder holds no image (.jpg, ");
}

TEST_F(PredictFiles, WhatIsLeftOutIsNamedAndNothingLeftIsAnError) {
  write("folder/readme.txt", "no image");
  put("folder/.hidden.png", 1);
  put("elsewhere/x.png", 2);
  fs::copy_file(path("folder/c.png"), path("folder/c.JFIF"));  // Content tells what it is.
  fs::create_directory_symlink("../elsewhere", path("folder/linked"));
  fs::create_symlink("/nonexistent.jpg", path("folder/gone.jpg"));
  const auto result = must_succeed(predict({text_path("folder"), "--json"}));
  Strings files;
  const nlohmann::json report = result.json();
  for (const auto& image : report["images"]) files.push_back(image["file"]);
  ASSERT_EQ(files.size(), 6U);
  EXPECT_EQ(files.back(), text_path("folder/linked/x.png"));
  EXPECT_THAT(result.err, HasSubstr("warning: " + text_path("folder") +
                                    ": 3 left out: 1 file not called .jpg"));
  EXPECT_THAT(result.err, HasSubstr("1 link to nothing ('gone.jpg'); 1 hidden ('.hidden.png')"));
  for (const char* name : {"Thumbs.db", ".DS_Store", "desktop.ini"}) {
    write(std::string("folder/") + name, "of a system");
  }
  const auto by_name =
      must_succeed(predict({text_path("folder/a.png"), text_path("folder/Thumbs.db")}));
  EXPECT_THAT(by_name.err,
              HasSubstr("warning: 1 left out: 1 hidden ('" + text_path("folder/Thumbs.db") + "')"));
  EXPECT_EQ(predict({text_path("folder"), "--json"}).err, result.err);
  expect_one_line_error(predict({text_path("folder/Thumbs.db")}), 2,
                        "the arguments name no image; 1 left");
  for (const std::string& file : files) fs::remove(file);
  const auto none = predict({text_path("folder")});
  expect_one_line_error(none, 2, "1 link to nothing ('gone.jpg')");
  expect_one_line_error(predict({text_path(std::string(300, 'x'))}), 1, "File name too long");
}

}  // namespace
}  // namespace moesaic::testing
