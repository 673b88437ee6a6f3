// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/confusion.h"

#include <torch/torch.h>

namespace moesaic {

void Confusion::add(const at::Tensor& labels_B, const at::Tensor& predicted_B) {
  const at::Tensor labels = labels_B.contiguous(), predicted = predicted_B.contiguous();
  const auto* label = labels.const_data_ptr<int64_t>();
  const auto* found = predicted.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) ++counts_[label[i]][found[i]];
}

int64_t Confusion::count(int64_t label, int64_t predicted) const {
  const auto row = counts_.find(label);
  if (row == counts_.end()) return 0;
  const auto entry = row->second.find(predicted);
  return entry == row->second.end() ? 0 : entry->second;
}

int64_t Confusion::images(int64_t label) const {
  int64_t sum = 0;
  const auto row = counts_.find(label);
  if (row == counts_.end()) return sum;
  for (const auto& [unused, count] : row->second) sum += count;
  return sum;
}

}  // namespace moesaic
