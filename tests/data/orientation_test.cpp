// SPDX-License-Identifier: Apache-2.0
// Photos are turned as their EXIF says, or as a setting says, the same for every reader.

#include "data/data_fixture.h"
#include "data/jpeg_bytes.h"
#include "data/tar_bytes.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/pack.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::JpegKind;
using test::said_by;

/// A folder with a photo of 16 x 40 pixels, as stored, that viewers show as 40 x 16.
class Orientation : public ::testing::Test {
 protected:
  Orientation() : data_env_("MOESAIC_DATA", std::nullopt) {
    for (const char* split : {"train", "val"}) {
      write_file(root() / split / "cat" / "0.jpg",
                 test::turned_jpeg_bytes(16, 40, JpegKind::noise));
    }
  }

  test::fs::path root() const { return folder_ / "photos"; }
  std::shared_ptr<const Dataset> folder() const { return open_dataset(root().string(), "train"); }
  /// The same folder described, with a further setting.
  std::shared_ptr<const Dataset> described(const std::string& setting) const {
    write_file(folder_ / "pets.json",
               R"({"name": "pets", "format": "image_folder", "paths": [")" + root().string() +
                   R"("], "mean": [0, 0, 0], "std": [1, 1, 1])" + setting + "}");
    return open_dataset((folder_ / "pets.json").string(), "train");
  }

  /// Height of the image as it is read, before it is resized.
  static int64_t height_of(const Dataset& data, int64_t min = 40) {
    Bitmap bitmap;
    int64_t seen = 0;
    const auto whole = [&](int64_t h, int64_t w) {
      seen = h;
      return Rectangle{0, 0, h, w};
    };
    data.decode(0, whole, {min}, bitmap);
    EXPECT_EQ(bitmap.height * bitmap.width * bitmap.channels,
              static_cast<int64_t>(bitmap.pixels.size()));
    return seen;
  }
  static PreprocessConfig way(const std::string& orientation) {
    return {.size = 8, .orientation = orientation};
  }

  test::ScopedEnv data_env_;
  test::TempDir folder_;
};

TEST_F(Orientation, IsThatOfViewersUnlessTheDataOrTheRecipeSayOtherwise) {
  EXPECT_EQ(height_of(*folder()), 40);
  EXPECT_EQ(height_of(*folder(), 4), 40);
  EXPECT_EQ(height_of(*described("")), 40);
  const std::string stored = R"(, "exif_orientation": false)";
  EXPECT_EQ(height_of(*described(stored)), 16);
  EXPECT_EQ(height_of(*preprocessed(described(stored), way("data"))), 16);
  EXPECT_EQ(height_of(*preprocessed(described(stored), way("upright"))), 40);
  EXPECT_EQ(height_of(*preprocessed(folder(), way("data"))), 40);
  EXPECT_EQ(height_of(*preprocessed(folder(), way("stored"))), 16);
  EXPECT_NE(test::image_of(*preprocessed(folder(), way("stored")), 0),
            test::image_of(*preprocessed(folder(), way("upright")), 0));
}

TEST_F(Orientation, OfACheckpointOverrulesThatOfData) {
  for (const char* orientation : {"upright", "stored"}) {
    const auto trained_on = preprocessed(folder(), way(orientation));
    const auto document = document_of(input_spec(*trained_on, way(orientation)));
    EXPECT_EQ(document.at("orientation"), orientation);
    const InputSpec spec = read_input_spec(document, "there");
    for (const char* setting : {"", R"(, "exif_orientation": false)"}) {
      EXPECT_EQ(test::image_of(*preprocessed(described(setting), spec), 0),
                test::image_of(*trained_on, 0))
          << orientation << setting;
    }
    DatasetInfo info = folder()->info();
    const auto predicted = make_image_dataset(info, {root() / "train" / "cat" / "0.jpg"});
    EXPECT_EQ(test::image_of(*preprocessed(predicted, spec), 0), test::image_of(*trained_on, 0));
  }
  const auto stored = preprocessed(folder(), way("stored"));
  EXPECT_THAT(said_by([&] {
                warn_overridden(input_spec(*stored, way("stored")),
                                described(R"(, "exif_orientation": true)")->info(), "run");
              }),
              HasSubstr("orientation"));
}

/// A folder of an older version was read as stored, unless its description said otherwise.
TEST_F(Orientation, OfAnOlderCheckpointIsAsItWasTrained) {
  const auto stored = preprocessed(folder(), way("stored"));
  auto document = document_of(input_spec(*stored, way("stored")));
  document.erase("orientation");
  const InputSpec spec = read_input_spec(document, "there");
  EXPECT_TRUE(document_of(spec).at("orientation").is_null());
  EXPECT_EQ(test::image_of(*preprocessed(folder(), spec), 0), test::image_of(*stored, 0));
  EXPECT_EQ(height_of(*preprocessed(described(R"(, "exif_orientation": true)"), spec)), 40);
}

/// Data that are made of square photos, which are read as their descriptions or a recipe say.
TEST_F(Orientation, OfDerivedDataIsPassedToTheirPhotos) {
  std::vector<test::TarEntry> entries;
  for (const char* label : {"0", "1", "2"}) {
    entries.push_back(
        {std::string(label) + ".jpg", test::turned_jpeg_bytes(16, 16, JpegKind::noise)});
    entries.push_back({std::string(label) + ".cls", Bytes{static_cast<uint8_t>(*label)}});
  }
  write_file(folder_ / "photos.tar", test::tar_bytes(entries));
  const auto write = [&](const std::string& name, const std::string& settings) {
    write_file(folder_ / (name + ".json"), R"({"name": ")" + name + "\", " + settings + "}");
  };
  const auto open = [&](const std::string& name) {
    return open_dataset((folder_ / (name + ".json")).string(), "train");
  };
  const std::string stored = R"(, "exif_orientation": false)",
                    upright = R"(, "exif_orientation": true)";
  const std::string shards = R"("format": "shards", "classes": ["a", "b", "c"], "height": 16,
      "width": 16, "paths": ["./"], "shards": {"train": [{"name": "photos.tar"}]})";
  write("photos", shards);
  write("stored-photos", shards + stored);
  for (
      const std::string derivation :
      {R"("rotate": {"degrees": 30})",
       R"("mosaic": {"grid": [2, 2], "deciding": ["a", "b"], "num_train": 4, "num_test": 4, "seed": 1})",
       R"("mosaic": {"grid": [1, 2], "deciding": ["a", "b"], "num_train": 4, "num_test": 4, "seed": 1,
                      "tile": [12, 12]})",
       R"("backdrop": {"images": "photos.json", "size": [8, 8], "seed": 1})",
       R"("keep_classes": ["c", "b"])"}) {
    write("plain", R"("base": "photos.json", )" + derivation);
    write("stored", R"("base": "photos.json", )" + derivation + stored);
    write("upright", R"("base": "stored-photos.json", )" + derivation + upright);
    const auto plain = open("plain"), as_stored = open("stored");
    const auto read = [&](const Dataset& data) { return test::image_of(data, 0); };
    const auto by_recipe = [&](const std::shared_ptr<const Dataset>& data,
                               const char* orientation) {
      PreprocessConfig config = way(orientation);
      config.size = {data->info().height, data->info().width};
      return read(*preprocessed(data, config));
    };
    EXPECT_NE(read(*plain), read(*as_stored)) << derivation;
    EXPECT_EQ(read(*open("upright")), read(*plain)) << derivation;
    EXPECT_EQ(by_recipe(plain, "stored"), read(*as_stored)) << derivation;
    EXPECT_EQ(by_recipe(as_stored, "upright"), read(*plain)) << derivation;
    EXPECT_EQ(by_recipe(as_stored, "data"), read(*as_stored)) << derivation;
  }
  write("renamed", R"("base": "photos.json")" + stored);
  EXPECT_EQ(height_of(*open("renamed")), 16);
  EXPECT_EQ(open("renamed")->info().applies_exif, false);
  write("none", R"("base": "cifar10", "keep_classes": ["cat", "dog"])" + stored);
  EXPECT_THAT(test::usage_of(
                  [&] { DatasetSource((folder_ / "none.json").string()).open_metadata("train"); }),
              HasSubstr("exif_orientation is for photos, and 'cifar10' has none"));
  write("digits", R"("format": "gated")" + stored);
  EXPECT_THAT(test::usage_of([&] { load_dataset_spec((folder_ / "digits.json").string()); }),
              HasSubstr("exif_orientation"));
}

TEST_F(Orientation, StaysWhereFilesAreCopiedOrMadeSmaller) {
  for (const bool upright : {true, false}) {
    const auto data =
        described(upright ? R"(, "exif_orientation": true)" : R"(, "exif_orientation": false)");
    for (const int64_t size : {0, 8}) {
      const test::fs::path out = folder_ / "packed";
      said_by([&] {
        pack_dataset((folder_ / "pets.json").string(), out,
                     {.split = "train", .size = size, .show_progress = false});
      });
      const auto packed = open_dataset((out / "packed.json").string(), "train");
      EXPECT_EQ(packed->info().applies_exif, upright);
      const int64_t height = height_of(*packed), whole = upright ? 40 : 16;
      EXPECT_EQ(height, size == 0 ? whole : upright ? 20 : 8);
      test::fs::remove_all(out);
    }
  }
}

}  // namespace
}  // namespace moesaic
