// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/calibrate.h"

#include <torch/torch.h>

#include <algorithm>

#include "evaluation_mode.h"
#include "moesaic/base/error.h"
#include "moesaic/data/loader.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

ExpertUse calibrate(Model& model, const std::shared_ptr<const Dataset>& dataset,
                    const CalibrateOptions& options) {
  check_takes(model, dataset->info());
  if (dataset->size() == 0) fail_usage("'{}' has no images to calibrate by", dataset->info().name);
  const EvaluationMode mode(model);
  const c10::InferenceMode inference;
  const int64_t total = std::min(options.images, dataset->size());
  LoaderOptions loading;
  loading.batch_size = std::min(options.batch_size, total);
  loading.threads = options.loader_threads;
  loading.seed = options.seed;
  loading.shuffle = true;
  Loader loader(dataset, loading);
  const ExpertUseMeter meter(model);
  for (int64_t done = 0; done < total;) {
    if (options.progress) options.progress(done, total);
    const at::Tensor images = loader.next().images;
    const int64_t count = std::min(images.size(0), total - done);
    model.set_first_sample_index(done);
    model.forward(images.narrow(0, 0, count).to(model.device()));
    done += count;
  }
  if (options.progress) options.progress(total, total);
  return meter.use();
}

std::string calibration_split(const std::vector<std::string>& splits) {
  const bool validates = std::find(splits.begin(), splits.end(), "validation") != splits.end();
  return validates ? "validation" : "train";
}

}  // namespace moesaic
