// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/features.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
#include "moesaic/checkpoint/tensors.h"

namespace moesaic {

void FeatureFile::add(const EvaluatedBatch& batch) {
  if (!batch.labels_B.defined()) {
    fail_usage("--features: '{}' has no classes to store beside features; leave it out",
               one_line(batch.dataset.info().name));
  }
  const at::Tensor features =
      batch.output.pre_logits.to(at::kCPU, at::kFloat).flatten(1).contiguous();
  num_rows_ += features.size(0);
  width_ = features.size(1);
  waiting_.write(
      std::span(static_cast<const std::byte*>(features.const_data_ptr()), features.nbytes()));
}

void FeatureFile::finish(const Predictions& predictions) {
  waiting_.sync();
  const MappedFile mapped(fmt::format("/proc/self/fd/{}", waiting_.fd()));
  const at::Tensor shape = at::empty({num_rows_, width_}, at::device(at::kMeta).dtype(at::kFloat));
  const auto make = [&](const std::string& name) {
    if (name == "labels") return predictions.label_N;
    if (name == "predictions") return predictions.predicted_N;
    auto* const bytes = const_cast<std::byte*>(mapped.bytes().data());  // Is read alone.
    return at::from_blob(bytes, shape.sizes(), at::kFloat);
  };
  write_tensors(path_,
                {{"pre_logits", shape},
                 {"labels", predictions.label_N},
                 {"predictions", predictions.predicted_N}},
                make);
}

}  // namespace moesaic
