// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "data/data_fixture.h"
#include "moesaic/config/document.h"
#include "moesaic/data/transforms.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::usage_of;

Bytes speckled(int64_t channels, int64_t height, int64_t width) {
  Bytes bytes(static_cast<size_t>(channels * height * width));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * i * 31 + i * 7);
  return bytes;
}

int64_t reflected(int64_t at, int64_t size) {
  while (at < 0 || at >= size) at = at < 0 ? -at : 2 * size - 2 - at;
  return at;
}

/// The definition, in float64, without rounding.
double blurred_at(const Bytes& in, const BlurConfig& config, double sigma, int64_t height,
                  int64_t width, int64_t c, int64_t y, int64_t x) {
  double sum = 0.0, weights = 0.0;
  for (int64_t dy = -config.height / 2; dy <= config.height / 2; ++dy) {
    for (int64_t dx = -config.width / 2; dx <= config.width / 2; ++dx) {
      const double weight = std::exp(-static_cast<double>(dx * dx + dy * dy) / (2 * sigma * sigma));
      const int64_t row = c * height + reflected(y + dy, height);
      sum += weight * in[static_cast<size_t>(row * width + reflected(x + dx, width))];
      weights += weight;
    }
  }
  return sum / weights;
}

TEST(Blur, IsTheGaussianMeanOfWhatIsAround) {
  for (const BlurConfig& config : {BlurConfig{}, BlurConfig{5, 1}, BlurConfig{1, 1}}) {
    for (const double sigma : {0.4, 1.1, 2.2}) {
      const Bytes in = speckled(2, 6, 9);
      Bytes out = in;
      blur(config, sigma, {2, 6, 9, out.data()});
      for (int64_t i = 0; i < 2 * 6 * 9; ++i) {
        const double wanted = blurred_at(in, config, sigma, 6, 9, i / 54, i / 9 % 6, i % 9);
        EXPECT_NEAR(out[static_cast<size_t>(i)], wanted, 0.5 + 1e-4) << i;
      }
    }
  }
}

DatasetInfo grey(int64_t height, int64_t width) {
  return {"grey", "train", "", {"a"}, 1, height, width, {0.0}, {1.0}};
}

TEST(Blur, IsDrawnBetweenFlipAndShift) {
  AugmentConfig augment;
  augment.flip = true;
  augment.max_shift = 2;
  augment.blur = BlurConfig{};
  const ImageTransform transform(grey(6, 9), augment);
  augment.blur.reset();
  augment.flip = false;
  augment.max_shift = 0;
  const ImageTransform plain(grey(6, 9), augment);
  for (int64_t position = 0; position < 20; ++position) {
    Bytes in = speckled(1, 6, 9), wanted = in;
    std::vector<float> found(54), expected(54), moved(54, 0.0F);
    CounterRng rng = augment_rng(1, 0, position), same = rng;
    transform(in.data(), rng, found.data());
    const bool flip = same.randint(2) == 1;
    blur({}, 1.1 + 1.1 * same.uniform(), {1, 6, 9, wanted.data()});
    const int64_t dy = static_cast<int64_t>(same.randint(5)) - 2;
    const int64_t dx = static_cast<int64_t>(same.randint(5)) - 2;
    plain(wanted.data(), same, expected.data());
    for (int64_t y = 0; y < 6; ++y) {
      for (int64_t x = 0; x < 9; ++x) {
        int64_t from_y = y - dy, from_x = x - dx;
        if (from_y < 0 || from_y >= 6 || from_x < 0 || from_x >= 9) continue;
        if (flip) from_x = 8 - from_x;
        moved[static_cast<size_t>(9 * y + x)] = expected[static_cast<size_t>(9 * from_y + from_x)];
      }
    }
    EXPECT_EQ(found, moved) << position;
  }
}

TEST(Blur, SettingsThatDoNotGoTogetherAreRefused) {
  const auto complaint = [](const std::string& text) {
    return usage_of(
        [&] { parse<AugmentConfig>(Document::from_text(text, "run.json").root(), "augment"); });
  };
  EXPECT_THAT(complaint(R"({"blur": {"width": 4}})"), HasSubstr("must be odd"));
  EXPECT_THAT(complaint(R"({"blur": {"min_sigma": 3}})"), HasSubstr("min_sigma is above"));
  EXPECT_THAT(complaint(R"({"blur": {"sigma": 3}})"), HasSubstr("sigma"));
  AugmentConfig augment;
  augment.blur = BlurConfig{};
  EXPECT_THAT(usage_of([&] { ImageTransform(grey(3, 9), augment); }),
              HasSubstr("kernel of 7 x 3, but images of 'grey' are 3 x 9"));
}

}  // namespace
}  // namespace moesaic
