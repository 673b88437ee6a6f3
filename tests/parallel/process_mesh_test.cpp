// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/process_mesh.h"

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/support.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/parallel/process_group.h"
#include "support/matchers.h"
#include "support/processes.h"

namespace moesaic {
namespace {

using test::run_processes;

std::shared_ptr<const ProcessGroup> world_of(const std::shared_ptr<const ProcessMesh>& processes) {
  return {processes, &processes->world()};
}

std::string meeting_error(int64_t size, const ParallelConfig& config) {
  return test::usage_of([&] { run_processes(size, config, [](const auto&) {}); });
}

TEST(ProcessMesh, FormAMeshOfReplicasAndExpertGroups) {
  run_processes(4, {.expert_parallel_size = 2}, [](const auto& processes) {
    EXPECT_EQ(processes->expert_group().size(), 2);
    EXPECT_EQ(processes->expert_group().rank(), processes->rank() % 2);
    EXPECT_EQ(processes->replica_group().size(), 2);
    EXPECT_EQ(processes->replica_group().rank(), processes->rank() / 2);
    const at::Tensor rank = at::full({1}, processes->rank(), at::kLong);
    const at::Tensor in_experts = processes->expert_group().all_gather(rank, Traffic::other);
    EXPECT_EQ(in_experts[0].template item<int64_t>(), processes->rank() / 2 * 2);
    const at::Tensor in_replicas = processes->replica_group().all_gather(rank, Traffic::other);
    EXPECT_EQ(in_replicas[1].template item<int64_t>(), processes->rank() % 2 + 2);
  });
}

TEST(ProcessMesh, RefuseAMeshThatIsNotTheirNumber) {
  EXPECT_THAT(
      meeting_error(3, {.expert_parallel_size = 2}),
      HasSubstr("3 processes cannot be divided into groups of 2 that share experts; choose 1"));
  EXPECT_THAT(
      meeting_error(4, {.num_replicas = 4, .expert_parallel_size = 2}),
      HasSubstr("4 x 2 (parallel.expert_parallel_size) is 8 processes, but there are 4; choose "
                "parallel.num_replicas=2"));
}

TEST(ProcessMesh, MayBeThreadsThatWaitForEachOtherOften) {
  std::atomic<int> waiting = 0;
  run_processes(4, {}, [&](const auto& processes) {
    for (int round = 1; round <= 500; ++round) {
      ++waiting;
      processes->world().barrier();
      EXPECT_GE(waiting, 4 * round);
    }
  });
}

TEST(ProcessMesh, SayWhichOneDiffers) {
  run_processes(3, {}, [](const auto& processes) {
    processes->check_same("recipe", "abc");
    EXPECT_EQ(test::usage_of(
                  [&] { processes->check_same("recipe", processes->rank() == 2 ? "def" : "abc"); }),
              "process 2 has another recipe than process 0 (def and abc)");
  });
}

TEST(ProcessMesh, AgreeOnTheLargestValue) {
  run_processes(3, {}, [](const auto& processes) {
    EXPECT_EQ(processes->all_reduce_max(processes->rank() == 1 ? 15 : 0), 15);
  });
}

TEST(ProcessMesh, SayWhyAnotherOneEnded) {
  std::atomic<int> silent = 0, first = 0;
  run_processes(3, {.timeout = 5}, [&](const auto& processes) {
    if (processes->rank() == 2) {
      first += processes->publish_failure("no space left on device");
      return;  // Its end breaks the collectives of the others.
    }
    EXPECT_THROW(processes->world().barrier(), PeerFailure);
    silent += processes->describe_failure("broken").empty();
  });
  EXPECT_EQ(first, 1);
  EXPECT_EQ(silent, 2);
}

TEST(ProcessMesh, OneNamesTheProcessThatWasLost) {
  std::atomic<int> said = 0;
  run_processes(3, {.timeout = 5}, [&](const auto& processes) {
    processes->set_activity("step 7");
    if (processes->rank() == 1) return;
    EXPECT_THROW(processes->world().barrier(), PeerFailure);
    const std::string text = processes->describe_failure("broken");
    if (text.empty()) return;
    ++said;
    EXPECT_THAT(text, AllOf(HasSubstr("process 1 ("), HasSubstr("failed near ")));
  });
  EXPECT_EQ(said, 1);
}

TEST(ProcessMesh, AllErrorsAreSaidAndEqualOnesOnce) {
  std::atomic<int> said = 0, alike = 0;
  run_processes(3, {}, [&](const auto& processes) {
    said += processes->publish_failure("no space left, says " + std::to_string(processes->rank()));
    alike += processes->publish_failure("the same");
  });
  EXPECT_EQ(said, 3);
  EXPECT_EQ(alike, 1);
}

TEST(ProcessMesh, OneThatIsLostBeforeTheEndIsNamed) {
  std::atomic<int> said = 0;
  run_processes(3, {}, [&](const auto& processes) {
    if (processes->rank() == 2) return;
    EXPECT_THROW(processes->finish(), PeerFailure);
    const std::string text = processes->describe_failure("broken");
    if (text.empty()) return;
    ++said;
    EXPECT_THAT(text, HasSubstr("process 2 ("));
  });
  EXPECT_EQ(said, 1);
}

TEST(ProcessMesh, NameTheFirstOfManyThatDidNotCome) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THAT(
      test::failure_of([&] { ProcessMesh::from_store(store, 0, 20, {.init_timeout = 1}); }),
      HasSubstr("of 20 processes, number 1, 2, 3, 4, 5, 6, 7, 8 and others did not connect within "
                "1 second"));
}

TEST(ProcessMesh, RememberOnlyTheLastWarnings) {
  c10d::TCPStoreOptions options;
  options.port = 0;  // A free one.
  options.isServer = true;
  options.waitWorkers = false;
  c10d::TCPStore store("127.0.0.1", options);
  const Launch launch{.address = "127.0.0.1", .port = store.getPort(), .has_external_store = true};
  const auto processes = ProcessMesh::connect(launch, {});
  const int64_t before = store.getNumKeys();
  const std::string said = test::said_by([] {
    for (int i = 0; i < 200; ++i) log_warning("image {} is corrupt", i);
  });
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 200);
  EXPECT_LE(store.getNumKeys(), before + 100);
}

TEST(ProcessMesh, GathersTheTextsOfAllProcesses) {
  run_processes(3, {}, [](const auto& processes) {
    std::vector<at::Tensor> parts;
    for (int64_t rank = 0; rank < 3; ++rank) {
      parts.push_back(at::full({2 * rank}, processes->rank(), at::kFloat));  // 0, 2 and 4 numbers.
    }
    processes->world().broadcast_each(parts, Traffic::parameters);
    for (int64_t rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(
          at::equal(parts[static_cast<size_t>(rank)], at::full({2 * rank}, rank, at::kFloat)));
    }
    const double sent = 4.0 * 2.0 * static_cast<double>(processes->rank()) * 2.0;
    EXPECT_EQ(processes->counter().take()[Traffic::parameters].bytes, sent);
  });
}

TEST(ProcessMesh, OneThatMakesNoProgressIsNamedAlthoughItLives) {
  std::promise<void> noticed;
  run_processes(2, {}, [&](const auto& processes) {
    if (processes->rank() == 1) return noticed.get_future().wait();
    try {
      processes->all_gather_text("written", std::chrono::seconds(1));
      ADD_FAILURE() << "it waited for nothing";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("process 1 ("));
      EXPECT_THAT(error.what(), HasSubstr(") made no progress in a save for 1 second; "));
    }
    noticed.set_value();
  });
}

TEST(ProcessMesh, OneThatMakesProgressIsWaitedFor) {
  using std::chrono_literals::operator""ms;
  constexpr std::chrono::seconds kFailureTimeout(16);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto exchange = [&](const auto& processes, const char* own) {
    return processes->all_gather_text(own, kFailureTimeout);
  };
  auto leader = std::async(std::launch::async,
                           [&] { return exchange(ProcessMesh::from_store(store, 0, 2, {}), "0"); });
  const auto other = ProcessMesh::from_store(store, 1, 2, {});
  // Process 0 counts as progress of its own that it heard of the other's: first in the beginning.
  const auto heard = [&] {
    const std::vector<uint8_t> bytes = store->get("doing/0");
    return std::stoll(std::string(bytes.begin(), bytes.end())) >= 3;
  };
  while (leader.wait_for(10ms) != std::future_status::ready && !heard()) other->report_progress();
  EXPECT_THAT(exchange(other, "1"), ElementsAre("0", "1"));
  EXPECT_THAT(leader.get(), ElementsAre("0", "1"));
}

TEST(Collectives, GradientsOfGatheredRowsAreThoseOfAllLosses) {
  const at::Tensor all = torch::randn({6, 3}, at::kDouble),
                   weight = torch::randn({2, 6, 3}, at::kDouble);
  at::Tensor whole = all.clone().requires_grad_();
  ((whole * weight[0]).square().sum() + (whole * weight[1]).square().sum()).backward();
  run_processes(2, {}, [&](const auto& processes) {
    const int64_t rank = processes->rank();
    at::Tensor own = all.narrow(0, rank * 3, 3).clone().requires_grad_();
    const at::Tensor rows = all_gather_rows(own, world_of(processes));
    EXPECT_TRUE(at::equal(rows, all));
    (rows * weight[rank]).square().sum().backward();
    EXPECT_TRUE(at::allclose(own.grad(), whole.grad().narrow(0, rank * 3, 3), 1e-12, 1e-12));
  });
}

TEST(Collectives, ExchangedRowsComeBackWithTheirGradients) {
  run_processes(2, {}, [](const auto& processes) {
    const int64_t rank = processes->rank();
    // Process 0 has 3 rows and sends 1 to itself and 2 to process 1, whose 2 rows go to process 0.
    using Rows = std::vector<int64_t>;
    const Rows send = rank == 0 ? Rows{1, 2} : Rows{2, 0}, receive = send;
    const int64_t rows = rank == 0 ? 3 : 2;
    // A row more than is sent, as the unused rows of a routing's buffer.
    at::Tensor x =
        (at::arange(2 * (rows + 1), at::kDouble).view({-1, 2}) + 100 * rank).requires_grad_();
    const auto group = world_of(processes);
    const at::Tensor there = all_to_all_rows(x, send, receive, group);
    EXPECT_EQ(there.size(0), rank == 0 ? 3 : 2);
    EXPECT_EQ(there[0][0].template item<double>(), rank == 0 ? 0.0 : 2.0);
    const at::Tensor back = all_to_all_rows(there * 2, receive, send, group);
    EXPECT_TRUE(at::equal(back, 2 * x.narrow(0, 0, rows)));
    (back * 3).sum().backward();
    EXPECT_TRUE(at::equal(x.grad().narrow(0, 0, rows), at::full({rows, 2}, 6.0, at::kDouble)));
    EXPECT_EQ(x.grad()[rows].abs().sum().template item<double>(), 0.0);
  });
}

TEST(ProcessMesh, OnPaperOnlyCountWhatTheyWouldSend) {
  const auto processes = ProcessMesh::make_fake(8, {.expert_parallel_size = 2});
  const ProcessGroup &world = processes->world(), &experts = processes->expert_group();
  EXPECT_EQ(processes->rank(), 0);
  EXPECT_EQ(processes->replica_group().size(), 4);
  const at::Tensor x = at::empty({6, 5}, at::device(at::kMeta).dtype(at::kFloat));
  world.all_reduce(x, Traffic::metrics);
  EXPECT_EQ(world.all_gather(x, Traffic::logits).sizes(), at::IntArrayRef({48, 5}));
  world.broadcast_each({x, x, x, x, x, x, x, x.narrow(0, 0, 2)}, Traffic::parameters);
  EXPECT_EQ(experts.all_to_all(x, {4, 2}, {4, 3}, Traffic::rows).sizes(), at::IntArrayRef({7, 5}));
  GradientReducer reducer({x.clone().requires_grad_()}, processes->gradient_group(),
                          Traffic::gradients);
  reducer.prepare({});
  const double bytes = 6 * 5 * 4.0;
  std::map<Traffic, TrafficTotal> sent = world.counter().take();
  EXPECT_EQ(sent.at(Traffic::metrics).bytes, all_reduce_bytes(bytes, 8));
  EXPECT_EQ(sent.at(Traffic::logits).bytes, 7 * bytes);
  EXPECT_EQ(sent.at(Traffic::logits).calls, 1);
  EXPECT_EQ(sent.at(Traffic::parameters).bytes, 7 * (7 * bytes + bytes / 3) / 8) << "their mean";
  EXPECT_EQ(sent.size(), 3U) << "each group counts for itself";
  EXPECT_EQ(experts.counter().take().at(Traffic::rows).bytes, 2 * 5 * 4.0);
  EXPECT_EQ(processes->gradient_group().counter().take().at(Traffic::gradients).bytes,
            all_reduce_bytes(bytes, 8));
}

TEST(Gradients, AreMeansOverProcessesOfWhatPassesAccumulated) {
  run_processes(2, {}, [](const auto& processes) {
    const double own = static_cast<double>(processes->rank() + 1);
    at::Tensor used = at::ones({3}).requires_grad_(), unused = at::ones({2}).requires_grad_();
    GradientReducer reducer({used, unused}, processes->gradient_group(), Traffic::gradients);
    for (int step = 0; step < 2; ++step) {
      used.mutable_grad().reset();
      (used * own).sum().backward();
      const at::Tensor loss = (used * 10 * own).sum();
      reducer.prepare(loss);
      loss.backward();
      EXPECT_TRUE(at::allclose(used.grad(), at::full({3}, 16.5)));
    }
    EXPECT_FALSE(unused.grad().defined());
    const TrafficTotal sent = processes->counter().take().at(Traffic::gradients);
    EXPECT_EQ(sent.bytes, 2 * 20.0);
    EXPECT_EQ(sent.calls, 2) << "one bucket, twice";
  });
}

}  // namespace
}  // namespace moesaic
