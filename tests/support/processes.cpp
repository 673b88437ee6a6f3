// SPDX-License-Identifier: Apache-2.0
#include "support/processes.h"

#include <torch/torch.h>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "moesaic/parallel/process_group.h"

namespace moesaic::test {

void run_processes(int64_t size, const ParallelConfig& config,
                   const std::function<void(const std::shared_ptr<const ProcessMesh>&)>& action) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size)), lost(errors);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      torch::set_num_threads(1);
      try {
        action(ProcessMesh::from_store(store, rank, size, config));
      } catch (const PeerFailure&) {
        lost[static_cast<size_t>(rank)] = std::current_exception();
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  errors.insert(errors.end(), lost.begin(), lost.end());
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace moesaic::test
