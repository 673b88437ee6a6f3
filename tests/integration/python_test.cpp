// SPDX-License-Identifier: Apache-2.0
// The operators from stock Python: loaded, differentiated, checked by PyTorch's own checks.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "data/jpeg_bytes.h"
#include "integration/program.h"
#include "integration/readme.h"
#include "integration/served.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

/// MOESAIC_VENV's Python or python3, whichever has the PyTorch of this build; empty if none.
std::string python_of_this_torch() {
  const char* venv = std::getenv("MOESAIC_VENV");
  for (const std::string& python :
       {(fs::path(venv == nullptr ? "" : venv) / "bin/python").string(), std::string("python3")}) {
    const auto version = run_command({python, "-c", "import torch; print(torch.__version__)"});
    const std::string number = version.out.substr(0, version.out.find_first_of("+\n"));
    if (version.exit_code == 0 && number == TORCH_VERSION) return python;
  }
  return "";
}

class PythonOperators : public ProgramTest {
 protected:
  void SetUp() override {
    SKIP_WITH_SANITIZER("a program built without sanitizers cannot load a library that has them");
    static const std::string found = python_of_this_torch();
    if (found.empty()) GTEST_SKIP() << "needs a Python with PyTorch " << TORCH_VERSION;
    python_ = found;
  }

  ProgramResult run_python(Strings arguments) const {
    arguments.insert(arguments.begin(), {python_, "-W", "ignore"});
    return run_command(arguments);
  }

  std::string python_;
};

/// Images whose bytes no step leaves as they are, read by the script, and what it asks of Pillow.
constexpr const char* kInputCheck = R"(
import json, sys, types, torch
pillow = types.ModuleType("PIL")
pillow.ImageOps = types.SimpleNamespace(exif_transpose=lambda image: image)
sys.modules["PIL"] = pillow
sys.path.insert(0, sys.argv[1])
from network_input import network_input

class Image:
    def __init__(self, height, width, step, format="PNG", orientation=1):
        self.size, self.height, self.width = (width, height), height, width
        self.pixels = bytes(step * i % 251 for i in range(height * width))
        self.format, self.orientation = format, orientation
    def getexif(self): return {0x0112: self.orientation}
    def convert(self, mode): assert mode == "L"; return self
    def tobytes(self): return self.pixels
    def draft(self, mode, size):
        self.__init__(-(-self.height // (self.height // size[1])), size[0], 7, self.format)

facts = json.load(open(sys.argv[2]))
made = network_input(Image(40, 30, 31), facts)
assert list(made.shape) == facts["input_size"] and made.dtype == torch.float32, made.shape
scaled = made * facts["std"][0] + facts["mean"][0]
assert 0.4 < scaled.mean() < 0.6 and scaled.min() >= -1e-6 and scaled.max() <= 1 + 1e-6
plain = torch.tensor([7 * i % 251 for i in range(28 * 28)], dtype=torch.uint8).view(28, 28, 1)
wanted = (plain.permute(2, 0, 1) / 255 - facts["mean"][0]) / facts["std"][0]
assert torch.allclose(network_input(Image(28, 28, 7), facts), wanted, atol=1e-6)
for reductions, sides, orientation, reduced in (
    ([2, 4, 8], 224, 1, True), ([2, 4, 8], 112, 1, True), ([2, 4, 8], 112, 6, True), ([], 112, 1, False),
    ([2, 4, 8], 114, 6, False)):
    photo = Image(sides, sides, 7, "JPEG", orientation)
    made = network_input(photo, {**facts, "jpeg_reductions": reductions})
    assert torch.allclose(made, wanted, atol=1e-6) == reduced, (reductions, sides)
)";

TEST_F(PythonOperators, TheFactsOfAnExportMakeTheNetworksInput) {
  NEEDS_FASHION_MNIST();
  const std::string run = smoke_run().string();
  must_succeed({"export", run, "--format", "safetensors", "--out", text_path("out")});
  must_succeed(run_python(
      {"-c", kInputCheck, source_path("tests/integration"), text_path("out/preprocess.json")}));
}

/// Probabilities of a photograph by the page's preprocessing and stock PyTorch.
constexpr const char* kPhotoCheck = R"(
import json, sys, torch
from PIL import Image
sys.path.insert(0, sys.argv[1])
from network_input import network_input
facts = {"preprocess.json": ""}
model = torch.jit.load(sys.argv[2], _extra_files=facts).eval()
for photo, found in zip(sys.argv[4:], json.load(open(sys.argv[3]))["images"]):
    made = model(network_input(Image.open(photo), json.loads(facts["preprocess.json"]))[None]).softmax(1)[0]
    for top in found["top"]:
        assert abs(made[top["index"]].item() - top["probability"]) < 1e-5, (photo, made, found)
)";

constexpr const char* kTwoPictures = R"(
import sys
from PIL import Image
first = Image.open(sys.argv[1])
first.save(sys.argv[2], format="MPO", save_all=True, append_images=[first.resize((40, 30))])
assert Image.open(sys.argv[2]).format == "MPO"
)";

TEST_F(PythonOperators, ThePagesPreprocessingGivesTheProbabilitiesOfPredict) {
  NEEDS_FASHION_MNIST();
  if (run_python({"-c", "import PIL"}).exit_code != 0) GTEST_SKIP() << "needs Python's Pillow";
  const std::string run = smoke_run().string(), script = text_path("model.ts.pt");
  must_succeed({"export", run, "--format", "torchscript", "--out", script});
  Strings photos;
  for (const auto& [height, width] : {std::pair(601, 397), {130, 235}, {33, 90}, {64, 64}}) {
    photos.push_back(text_path(fmt::format("{}.jpg", height)));
    test::write_file(photos.back(), test::jpeg_bytes(height, width, test::JpegKind::noise, {}));
  }
  // Two pictures in one file, as some cameras write them: Pillow calls it MPO.
  must_succeed(run_python({"-c", kTwoPictures, photos.front(), text_path("two.jpg")}));
  photos.push_back(text_path("two.jpg"));
  const auto predicted = must_succeed(joined({"predict", run, "--json"}, photos));
  write("predicted.json", predicted.out);
  must_succeed(run_python(joined(
      {"-c", kPhotoCheck, source_path("tests/integration"), script, text_path("predicted.json")},
      photos)));
}

/// The page's reader against TorchScript. Where Python's safetensors is not installed, a few lines
/// stand in for it.
constexpr const char* kReaderCheck = R"(
import json, sys, types, torch
try:
    import safetensors.torch
except ImportError:
    def load_file(file):
        data, tensors = open(file, "rb").read(), {}
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:start]).items():
            if name == "__metadata__": continue
            begin, end = entry["data_offsets"]
            numbers = torch.frombuffer(bytearray(data[start + begin : start + end]), dtype=torch.float32)
            tensors[name] = numbers.view(entry["shape"])
        return tensors
    package, sub = types.ModuleType("safetensors"), types.ModuleType("safetensors.torch")
    package.torch, sub.load_file = sub, load_file
    sys.modules.update({"safetensors": package, "safetensors.torch": sub})
sys.path.insert(0, sys.argv[1])
from vmoe_reader import vmoe
images = torch.randn(5, 1, 28, 28)
with torch.no_grad():
    assert torch.allclose(vmoe(sys.argv[2], images), torch.jit.load(sys.argv[3])(images), atol=1e-5)
)";

TEST_F(PythonOperators, TheReaderOfThePageIsTheExportedNetwork) {
  NEEDS_FASHION_MNIST();
  for (const char* phase : {"finetune", "recover"}) {  // All experts, and those that pruning left.
    const std::string checkpoint = (smoke_run() / "checkpoints" / phase).string();
    const std::string out = text_path(phase), script = out + ".ts.pt";
    for (const auto& [format, place] : {std::pair("safetensors", out), {"torchscript", script}}) {
      must_succeed({"export", checkpoint, "--format", format, "--out", place});
    }
    must_succeed(run_python({"-c", kReaderCheck, source_path("tests/integration"), out, script}));
  }
}

/// The servers of docs/deploying.md, by Python.
class PythonServers : public PythonOperators {
 protected:
  void SetUp() override {
    PythonOperators::SetUp();
    if (IsSkipped()) return;
    NEEDS_FASHION_MNIST();
    if (python_.find('/') == std::string::npos) GTEST_SKIP() << "needs MOESAIC_VENV";
    options_.environment = {"MOESAIC_PYTHON=" + python_};
  }

  std::string exported(const std::string& format, const Strings& more = {}) const {
    const std::string file = text_path(fmt::format("model{}.{}", more.size(), format));
    must_succeed(joined({"export", smoke_run().string(), "--format", format, "--out", file}, more),
                 options_);
    return file;
  }

  /// Compares the classes of a batch of bytes with those of the network.
  void expect_served(const std::string& format, const std::string& script) const {
    expect_quoted("docs/deploying.md", script, "python", "import json");
    const ServedImages images = served_images(smoke_run());
    std::string wanted;
    for (const int64_t best : images.best) {
      wanted += images.classes.at(static_cast<size_t>(best)) + "\n";
    }
    write("images", images.bytes);
    const std::string file = exported(format, {"--with-preprocessing"});
    const auto served = run_command({"sh", "-c",
                                     fmt::format("'{}' -W ignore '{}' '{}' < '{}'", python_,
                                                 source_path(script), file, text_path("images"))});
    EXPECT_EQ(served.out, wanted) << served.err;
  }

  ProgramOptions options_;
};

TEST_F(PythonServers, OfAProgramGiveTheNetworksClasses) {
  expect_served("pt2", "examples/deploying/server.py");
}

TEST_F(PythonServers, OfOnnxGiveTheNetworksClasses) {
  if (run_python({"-c", "import onnx, onnxscript, onnxruntime"}).exit_code != 0) {
    const auto refused = run_program(
        {"export", smoke_run().string(), "--format", "onnx", "--out", text_path("model.onnx")},
        options_);
    expect_one_line_error(refused, 1, "pip install");
    EXPECT_FALSE(fs::exists(path("model.onnx")));
    GTEST_SKIP() << "needs Python's onnx, onnxscript and onnxruntime";
  }
  expect_served("onnx", "examples/deploying/server_onnx.py");
}

TEST_F(PythonServers, PredictEvalAndBenchUseAProgramWithItsLabelsAndPreprocessing) {
  const std::string photo = text_path("photo.jpg");
  test::write_file(photo, test::jpeg_bytes(33, 90, test::JpegKind::noise, {}));
  const auto predicted = [&](const std::string& network) {
    const auto result = must_succeed({"predict", network, photo, "--json"});
    return result.json()["images"][0]["top"];
  };
  const auto wanted = predicted(smoke_run().string());
  for (const std::string& file : {exported("pt2"), exported("pt2", {"--with-preprocessing"})}) {
    const auto found = predicted(file);
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(found[i]["class"], wanted[i]["class"]);
      EXPECT_NEAR(found[i]["probability"].get<double>(), wanted[i]["probability"].get<double>(),
                  1e-5);
    }
  }
  const std::string file = text_path("model0.pt2");
  const auto accuracy = [&](const std::string& network) {
    return run_program({"eval", network, "--json"}).json()["accuracy"].get<double>();
  };
  EXPECT_NEAR(accuracy(file), accuracy(smoke_run().string()), 0.1);  // A near tie may part them.
  const auto timed =
      run_program({"bench", file, "--batch-sizes", "2", "--seconds", "0", "--json"}).json();
  EXPECT_GT(timed["rows"][0]["images_per_second"], 0.0);
  const auto again =
      run_program({"export", smoke_run().string(), "--format", "pt2", "--out", file});
  expect_one_line_error(again, 2, "model0.pt2");
  for (const char* format : {"safetensors", "torchscript", "vmoe"}) {
    const auto refused = run_program({"export", smoke_run().string(), "--format", format,
                                      "--with-preprocessing", "--out", text_path("other")});
    expect_one_line_error(refused, 2, "for the formats onnx, pt2, pytorch");
  }
}

const std::string kBuiltLibrary = MOESAIC_BUILD_DIR "/lib/libmoesaic.so";

TEST_F(PythonOperators, LoadFromTheBuildAndFromWhereItIsInstalled) {
  const std::string prefix = text_path("installed");
  must_succeed(run_command({"cmake", "--install", MOESAIC_BUILD_DIR, "--prefix", prefix}));
  for (const std::string& library : {kBuiltLibrary, prefix + "/lib/libmoesaic.so"}) {
    const auto result = run_python({"-c", fmt::format("import torch; torch.ops.load_library('{}'); "
                                                      "print(torch.ops.moesaic.dispatch.default)",
                                                      library)});
    EXPECT_EQ(result.out, "moesaic.dispatch.default\n") << result.err;
  }
}

TEST_F(PythonOperators, PassGradcheckAndOpcheck) {
  must_succeed(run_python({source_path("tests/python/operators_test.py"), kBuiltLibrary}));
}

TEST_F(PythonOperators, CompileOnceForAnyNumberOfTokensAndTakeHalfLogits) {
  must_succeed(run_python({"-B", source_path("tests/python/compilers_test.py"), kBuiltLibrary}));
}

TEST_F(PythonOperators, ThePackageOfThisBuildPassesItsTests) {
  const auto result = must_succeed(
      run_python({"-B", source_path("tests/python/package_test.py"), MOESAIC_BUILD_DIR}));
  if (result.err.find("skipped=") != result.err.npos) {
    GTEST_SKIP() << "a part needs Python's timm, transformers, pandas and matplotlib";
  }
}

TEST_F(PythonOperators, TheExampleOfItsPagePrintsWhatThatShows) {
  fs::create_directory(path("build"));
  fs::create_directory_symlink(MOESAIC_BUILD_DIR, path("build/release"));
  const std::string example = source_path("tests/consumer/operators.py");
  const auto result = must_succeed(run_command(
      {"sh", "-c", fmt::format("cd '{}' && '{}' '{}'", path("").string(), python_, example)}));
  expect_quoted("docs/operators.md", "tests/consumer/operators.py", "python", "import torch");
  expect_shown("docs/operators.md", result.out);
}

TEST_F(PythonOperators, PackParquetFilesIntoShardsThatTheProgramReads) {
  if (run_python({"-c", "import pyarrow.parquet"}).exit_code != 0) {
    GTEST_SKIP() << "needs Python's pyarrow";
  }
  const std::string tools = source_path("tools/python");
  must_succeed(run_python({"-B", source_path("tests/python/parquet_test.py"), tools}));
  test::write_file(path("photo.jpg"), test::jpeg_bytes(33, 90, test::JpegKind::noise, {}));
  must_succeed(run_command(
      {"sh", "-c",
       fmt::format("cd '{0}' && '{1}' -c 'import pyarrow, pyarrow.parquet; "
                   "pyarrow.parquet.write_table(pyarrow.table({{\"image\": [{{\"bytes\": "
                   "open(\"photo.jpg\", \"rb\").read()}}] * 3, \"label\": [0, 1, 0]}}), "
                   "\"a.parquet\")' && '{1}' -B '{2}/pack_parquet.py' train=a.parquet --out pets",
                   path("").string(), python_, tools)}));
  const auto verified = must_succeed({"data", "verify", text_path("pets/pets.json")});
  EXPECT_THAT(verified.out, HasSubstr("train: 3 of 3"));
}

class PythonEmbeddings : public PythonOperators {
 protected:
  void expect_to_pass(const std::string& python, const std::string& part) const {
    must_succeed(run_command({python, "-B", source_path("tests/python/embeddings_test.py"),
                              source_path("tools/python"), part}));
  }
};

TEST_F(PythonEmbeddings, AreRefusedInOneLineWhereSomethingIsWrong) {
  expect_to_pass("python3", "WrongUse");
}

TEST_F(PythonEmbeddings, AreWrittenCompletelyOrNotAtAll) {
  if (run_python({"-c", "import safetensors"}).exit_code != 0) {
    GTEST_SKIP() << "needs Python's safetensors";
  }
  expect_to_pass(python_, "Written");
}

}  // namespace
}  // namespace moesaic::testing
