// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/device_agreement.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "base/support.h"
#include "moesaic/base/error.h"
#include "moesaic/ops/device.h"

namespace moesaic {
namespace {

using test::ScopedEnv;

/// A case whose device is `apart` from what is exact, unless the part is turned off.
DeviceCase lying(double apart, const std::string& part = "combine") {
  return {"lying", 1e-3, {"dispatch", "combine"}, [=](at::Device, bool uses_float64) {
            const bool lies = !uses_float64 && !is_cuda_feature_disabled(part);
            return std::vector<at::Tensor>{torch::ones({3}),
                                           torch::tensor({1.0, 8.0 + (lies ? apart : 0.0)})};
          }};
}

TEST(DeviceAgreement, TheCpuAgreesWithItselfInEveryCase) {
  const ScopedEnv nothing("MOESAIC_CUDA_OFF", std::nullopt);
  const auto cases = device_cases();
  EXPECT_TRUE(std::ranges::any_of(
      cases, [](const DeviceCase& item) { return item.name.starts_with("training step of "); }));
  for (const DeviceCase& item : cases) {
    const Agreement found = compare_devices(item, at::kCPU);
    EXPECT_TRUE(found.agrees()) << item.name << ": " << found.text();
  }
}

TEST(DeviceAgreement, CasesTurnOffPartsThatThereAre) {
  for (const DeviceCase& item : device_cases()) {
    for (const std::string& part : item.cuda_features) {
      EXPECT_EQ(std::ranges::count(cuda_features(), part), 1) << part;
    }
  }
}

TEST(DeviceAgreement, ADifferenceIsRelativeToTheTensor) {
  const ScopedEnv nothing("MOESAIC_CUDA_OFF", std::nullopt);
  EXPECT_TRUE(compare_devices(lying(0.004), at::kCPU).agrees());
  const Agreement found = compare_devices(lying(0.08), at::kCPU);
  EXPECT_FALSE(found.agrees());
  EXPECT_NEAR(found.difference, 0.01, 1e-6);
  EXPECT_EQ(found.text(), "differs by 0.01, at most 0.001");
}

TEST(DeviceAgreement, NanAnIndexAShapeAndAThrowAreFound) {
  const auto agrees = [](const at::Tensor& found, const at::Tensor& wanted) {
    const DeviceCase item{"one", 1e-3, {}, [=](at::Device, bool uses_float64) {
                            return std::vector<at::Tensor>{uses_float64 ? wanted : found};
                          }};
    return compare_devices(item, at::kCPU).agrees();
  };
  const at::Tensor index = torch::tensor({5000, 1});
  EXPECT_TRUE(agrees(index, index));
  EXPECT_FALSE(agrees(index + torch::tensor({0, 1}), index));
  EXPECT_FALSE(agrees(torch::full({2}, std::numeric_limits<double>::quiet_NaN()), torch::ones(2)));
  EXPECT_FALSE(agrees(torch::ones({3}), torch::ones({2})));
  const DeviceCase thrower{
      "one", 1, {}, [](at::Device, bool) -> std::vector<at::Tensor> { fail("no such kernel"); }};
  EXPECT_EQ(compare_devices(thrower, at::kCPU).text(), "no such kernel");
}

TEST(DeviceAgreement, FailingFeaturesAreDisabledUntilTheCaseAgrees) {
  const ScopedEnv before("MOESAIC_CUDA_OFF", "grouped_mm");
  const auto found = disable_failing_features({lying(0.004), lying(1.0), lying(1.0)}, at::kCPU);
  EXPECT_TRUE(found[0].agrees() && found[0].disabled_features.empty());
  EXPECT_FALSE(found[1].agrees());
  EXPECT_EQ(found[1].disabled_features, (std::vector<std::string>{"dispatch", "combine"}));
  EXPECT_TRUE(found[2].agrees()) << "what the case before turned off stays off";
  EXPECT_EQ(disabled_cuda_features(),
            (std::vector<std::string>{"grouped_mm", "dispatch", "combine"}));
}

TEST(DeviceAgreement, FeaturesThatDoNotHelpAreEnabledAgain) {
  const ScopedEnv before("MOESAIC_CUDA_OFF", "grouped_mm");
  const auto found = disable_failing_features({lying(1.0, "route_expert_choice")}, at::kCPU);
  EXPECT_FALSE(found[0].agrees());
  EXPECT_TRUE(found[0].disabled_features.empty());
  EXPECT_EQ(disabled_cuda_features(), std::vector<std::string>{"grouped_mm"});
}

}  // namespace
}  // namespace moesaic
