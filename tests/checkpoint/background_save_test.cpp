// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/save.h"

#include <torch/torch.h>

#include <cmath>
#include <future>

#include "base/support.h"
#include "moesaic/checkpoint/store.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;

/// Has checkpoints written to a folder.
AsyncSave::Write to(const std::filesystem::path& folder) {
  return [folder](const CheckpointShard& copy) {
    save_checkpoint(folder, {{{"model", "m"}}, {{"step", 1}}, copy.model, copy.optimizer});
  };
}

TEST(Snapshot, IsContiguousOnTheCpuAndOwnsItsMemory) {
  at::Tensor weight = at::arange(6, at::kFloat).view({2, 3});
  TensorMap copy;
  snapshot({{"t", weight.t()}, {"p", weight.clone().requires_grad_()}, {"s", at::tensor(7)}}, copy);
  weight.zero_();
  EXPECT_TRUE(at::equal(copy.at("t"), at::arange(6, at::kFloat).view({2, 3}).t()));
  EXPECT_TRUE(copy.at("t").is_contiguous());
  EXPECT_FALSE(copy.at("p").requires_grad());
  EXPECT_EQ(copy.at("s").item<int64_t>(), 7);
}

TEST(Snapshot, UsesTheMemoryOfTheLastOneWhereItFits) {
  TensorMap copy;
  snapshot({{"same", at::ones({3})}, {"wider", at::ones({3})}, {"gone", at::ones({3})}}, copy);
  const void* const memory = copy.at("same").data_ptr();
  snapshot({{"same", at::full({3}, 2.0F)}, {"wider", at::ones({4})}, {"new", at::ones({1})}}, copy);
  EXPECT_EQ(copy.at("same").data_ptr(), memory);
  EXPECT_TRUE(at::equal(copy.at("same"), at::full({3}, 2.0F)));
  EXPECT_EQ(copy.at("wider").numel(), 4);
  EXPECT_FALSE(copy.contains("gone"));
  snapshot({{"same", at::ones({3}, at::kDouble)}}, copy);
  EXPECT_EQ(copy.at("same").scalar_type(), at::kDouble);
  EXPECT_EQ(copy.size(), 1u);
}

TEST(Snapshot, NamesATensorThatIsNotFinite) {
  constexpr int64_t kMoreThanAPiece = 300000;
  TensorMap copy;
  TensorMap tensors = {{"a", at::ones({kMoreThanAPiece})},
                       {"b", at::rand({3, 5}).t()},
                       {"c", at::ones({2}, at::kLong)},
                       {"d", at::empty({0})}};
  EXPECT_EQ(snapshot(tensors, copy, true), "");
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(at::equal(copy.at(name), tensor)) << name;
  for (const int64_t place : {int64_t{0}, int64_t{200000}, kMoreThanAPiece - 1}) {
    tensors["a"].fill_(1.0F)[place] = INFINITY;
    EXPECT_EQ(snapshot(tensors, copy, true), "a") << place;
    EXPECT_EQ(snapshot(tensors, copy), "") << "nobody asked";
  }
  tensors["a"].fill_(1.0F);
  tensors["b"][4][2] = NAN;
  EXPECT_EQ(snapshot(tensors, copy, true), "b");
}

TEST(AsyncSave, WritesNothingThatIsNotFinite) {
  const test::TempDir folder;
  AsyncSave saves;
  saves.start({{{"w", at::ones({3})}}, {}}, to(folder / "good"));
  const CheckpointShard bad{{{"w", at::full({3}, NAN)}}, {}};
  EXPECT_TRUE(saves.start(bad, to(folder / "bad"))) << "the times of the save before";
  EXPECT_THROW(saves.wait_for_copy(), NonFiniteError);
  EXPECT_NO_THROW(saves.wait_for_copy());
  EXPECT_FALSE(saves.wait()) << "it was told";
  saves.start(bad, to(folder / "bad"));
  EXPECT_THROW(saves.wait(), NonFiniteError) << "nobody waited for the copy";
  EXPECT_TRUE(std::filesystem::exists(folder / "good"));
  EXPECT_FALSE(std::filesystem::exists(folder / "bad"));
}

TEST(AsyncSave, TrainingThatGoesOnChangesNothingOfTheFile) {
  const test::TempDir folder;
  const at::Tensor weight = at::ones({1000}), moment = at::ones({1000});
  const CheckpointShard part{{{"w", weight}}, {{"w.m", moment}}};
  save_checkpoint(folder / "wanted", {{{"model", "m"}}, {{"step", 1}}, part.model, part.optimizer});
  AsyncSave saves;
  std::promise<void> changed;
  saves.start(part, [&](const CheckpointShard& copy) {
    changed.get_future().wait();
    to(folder / "a")(copy);
  });
  EXPECT_FALSE(saves.poll());  // It has not ended.
  saves.wait_for_copy();
  weight.zero_();
  moment.zero_();
  changed.set_value();
  EXPECT_TRUE(saves.wait());
  EXPECT_FALSE(saves.wait());  // It was told.
  EXPECT_EQ(test::get(folder / "a/MANIFEST.json"), test::get(folder / "wanted/MANIFEST.json"));
}

TEST(AsyncSave, ASecondOneWaitsForTheFirstAndTellsItsTimes) {
  const test::TempDir folder;
  AsyncSave saves;
  std::vector<int> order;
  EXPECT_FALSE(saves.start({}, [&](const CheckpointShard&) { order.push_back(1); }));
  const auto first = saves.start({}, [&](const CheckpointShard&) { order.push_back(2); });
  ASSERT_TRUE(first);
  EXPECT_GE(first->write, 0.0);
  EXPECT_GE(first->pause(), first->copy);
  EXPECT_TRUE(saves.wait());
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(AsyncSave, AFullDiskIsReportedAtTheNextStepAndOnce) {
  const test::TempDir folder;
  to(folder / "a")({{{"w", at::ones({3})}}, {}});
  const std::string before = test::get(folder / "a/MANIFEST.json");
  AsyncSave saves;
  const test::FileSizeLimit limit(64);
  const CheckpointShard part{{{"w", at::zeros({1000})}}, {}};
  saves.start(part, to(folder / "a"));
  const auto step = [&] {
    while (!saves.poll()) {
    }
  };
  EXPECT_THAT(failure_of(step), AllOf(HasSubstr("model.safetensors"), HasSubstr("cannot write")));
  EXPECT_FALSE(saves.poll());
  EXPECT_FALSE(saves.wait());
  EXPECT_EQ(test::get(folder / "a/MANIFEST.json"), before);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});

  saves.start(part, to(folder / "a"));
  EXPECT_THAT(failure_of([&] { saves.start(part, to(folder / "b")); }), HasSubstr("cannot write"));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
}

TEST(AsyncSave, ErrorsKeepTheirKind) {
  const test::TempDir folder;
  AsyncSave saves;
  saves.start({}, [](const CheckpointShard&) { fail_usage("wrong use"); });
  EXPECT_EQ(test::usage_of([&] { saves.wait(); }), "wrong use");
  saves.start({}, [](const CheckpointShard&) { throw std::bad_alloc(); });
  EXPECT_THROW(saves.wait(), std::bad_alloc);
  saves.start({{{"bad", at::Tensor()}}, {}}, to(folder / "nowhere/at/all"));
  EXPECT_THAT(failure_of([&] { saves.wait(); }), HasSubstr("bad: the tensor is undefined"));
}

TEST(AsyncSave, ItsEndWaitsAndLosesNoError) {
  const test::TempDir folder;
  { AsyncSave().start({{{"w", at::ones({3})}}, {}}, to(folder / "a")); }
  EXPECT_NO_THROW(load_checkpoint(folder / "a"));
  const auto lose = [] {
    AsyncSave().start({}, [](const CheckpointShard&) { fail("the disk is gone"); });
  };
  EXPECT_THAT(test::said_by(lose), HasSubstr("the disk is gone"));
}

}  // namespace
}  // namespace moesaic
