// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "moesaic/data/loader.h"

namespace moesaic {

/// Batches of a Loader on a device; on the CPU they are the Loader's own. To another device images
/// travel as bytes and are normalised (to the same bits) and mixed there. To an accelerator they
/// travel from pinned memory on a stream of their own, and the next batch, if it is ready, while
/// one is used; the current stream waits for a batch, the host does not. Inputs that are the whole
/// dataset travel once. Not thread-safe.
class DeviceLoader {
 public:
  /// Throws as Loader does. The options `bytes` and `pinned` are the device's.
  DeviceLoader(std::shared_ptr<const Dataset> dataset, LoaderOptions options, at::Device device);

  int64_t batches_per_epoch() const { return loader_.batches_per_epoch(); }
  /// As Loader::seek().
  void seek(int64_t epoch, int64_t batch);
  /// As Loader::next().
  Batch next();
  /// Returns the loader that makes the batches, for Loader::count_damaged().
  Loader& loader() { return loader_; }

 private:
  /// A batch on its way.
  struct Sent {
    Batch batch;
    std::optional<c10::Event> arrived;
  };

  Sent send(Batch batch);
  /// Lets the current stream wait for a batch and use it.
  Batch receive(Sent sent) const;
  /// Moves a batch and makes of it what the network takes.
  Batch prepared(const Batch& batch) const;

  at::Device device_;
  Loader loader_;
  int64_t classes_;
  at::Tensor mean_C_, std_C_;          ///< Of images, on the device.
  std::optional<c10::Stream> stream_;  ///< Of the copies.
  std::optional<Sent> ahead_;
  Batch source_, kept_;  ///< Last inputs that are no images: as the loader made them, and sent.
};

}  // namespace moesaic
