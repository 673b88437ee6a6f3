// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/loader.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "moesaic/data/transforms.h"

namespace moesaic {
namespace {

LoaderOptions of_device(LoaderOptions options, const Dataset& dataset, at::Device device) {
  options.keeps_bytes = !device.is_cpu() && dataset.has_images();
  options.pin_memory = !device.is_cpu() && !device.is_meta();
  return options;
}

at::Tensor values_on(at::Device device, const std::vector<double>& values) {
  return at::tensor(values, at::kFloat).to(device);
}

}  // namespace

DeviceLoader::DeviceLoader(std::shared_ptr<const Dataset> dataset, LoaderOptions options,
                           at::Device device)
    : device_(device), loader_(dataset, of_device(std::move(options), *dataset, device)) {
  if (loader_.options().keeps_bytes) {
    mean_C_ = values_on(device, dataset->info().mean);
    std_C_ = values_on(device, dataset->info().std);
  }
  if (loader_.options().pin_memory) {
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
}

void DeviceLoader::seek(int64_t epoch, int64_t batch) {
  next_copy_.reset();
  loader_.seek(epoch, batch);
}

Batch DeviceLoader::next() {
  if (device_.is_cpu()) return loader_.next();
  BatchCopy sent = next_copy_ ? std::move(*next_copy_) : send(loader_.next());
  next_copy_.reset();
  if (loader_.is_ready()) next_copy_ = send(loader_.next());
  return receive(std::move(sent));
}

DeviceLoader::BatchCopy DeviceLoader::send(Batch batch) {
  const c10::OptionalStreamGuard guard(stream_);
  BatchCopy sent{std::move(batch), {}};
  if (source_.inputs.defined() && source_.inputs.is_same(sent.batch.inputs)) {
    kept_.epoch = sent.batch.epoch;
    kept_.position = sent.batch.position;
    sent.batch = kept_;
  } else {
    const Batch moved = prepared(sent.batch);
    const Batch source = std::exchange(sent.batch, moved);
    if (!loader_.options().keeps_bytes) source_ = source, kept_ = moved;
  }
  if (stream_) {
    sent.arrived.emplace(device_.type());
    sent.arrived->record(*stream_);
  }
  return sent;
}

Batch DeviceLoader::receive(BatchCopy sent) const {
  if (!sent.arrived) return sent.batch;
  const c10::Stream user = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  sent.arrived->block(user);
  Batch& batch = sent.batch;
  for (const at::Tensor* tensor :
       {&batch.inputs, &batch.labels, &batch.soft_labels, &batch.targets}) {
    if (tensor->defined()) tensor->record_stream(user);  // Its memory is of the other stream.
  }
  return batch;
}

Batch DeviceLoader::prepared(const Batch& batch) const {
  Batch moved = batch.to(device_);
  if (loader_.options().keeps_bytes) moved.inputs = normalised(moved.inputs, mean_C_, std_C_);
  if (moved.mixup_weight < 1.0) {
    apply_mixup(moved, moved.mixup_weight, std::ssize(loader_.dataset().info().classes));
  }
  return moved;
}

}  // namespace moesaic
