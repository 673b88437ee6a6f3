// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/tensors.h"

#include <torch/torch.h>

#include <array>
#include <cstring>

#include "base/support.h"
#include "checkpoint/mapping.h"
#include "moesaic/formats/safetensors.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using testing::lies_in_file;
using Tensors = test::InFolder;
using MappedTensors = test::InFolder;

constexpr std::array kTypes = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                               at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

at::Tensor random_tensor(at::IntArrayRef shape, at::ScalarType type) {
  if (type == at::kBool) return at::randint(2, shape, at::kByte).to(at::kBool);
  return at::isFloatingType(type) ? at::randn(shape).to(type) : at::randint(100, shape).to(type);
}

TEST_F(Tensors, RoundTripIsEqualToTheBit) {
  torch::manual_seed(1);
  TensorMap tensors;
  for (const at::ScalarType type : kTypes) {
    const std::string name = c10::toString(type);
    tensors[name + ".matrix"] = random_tensor({3, 5}, type);
    tensors[name + ".scalar"] = random_tensor({}, type);
    tensors[name + ".empty"] = random_tensor({0}, type);
    tensors[name + ".none_of_4"] = random_tensor({2, 0, 4}, type);
  }
  tensors["nan"] = at::full({2}, std::nan(""));
  tensors["minus zero"] = at::full({2}, -0.0);
  write_tensors(folder / "t.safetensors", tensors);
  const TensorMap read = read_tensors(folder / "t.safetensors");
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(same_bits(read.at(name), tensor)) << name;
    EXPECT_TRUE(read.at(name).is_contiguous()) << name;
  }
}

TEST_F(MappedTensors, AreThoseOfTheFileToTheBitAndLieInIt) {
  torch::manual_seed(1);
  TensorMap tensors;
  for (const at::ScalarType type : kTypes) {
    const std::string name = c10::toString(type);
    tensors[name + ".matrix"] = random_tensor({4, 6}, type);
    tensors[name + ".scalar"] = random_tensor({}, type);
    tensors[name + ".empty"] = random_tensor({2, 0, 4}, type);
  }
  write_tensors(folder / "t", tensors);
  const TensorMap mapped = read_weights(folder / "t", /*in_file=*/true);
  ASSERT_EQ(mapped.size(), tensors.size());
  for (const auto& [name, tensor] : mapped) {
    const at::Tensor& written = tensors.at(name);
    const bool half = written.scalar_type() == at::kHalf || written.scalar_type() == at::kBFloat16;
    EXPECT_TRUE(same_bits(tensor, half ? written.to(at::kFloat) : written)) << name;
    EXPECT_TRUE(tensor.is_contiguous()) << name;
    EXPECT_EQ(lies_in_file(tensor, folder / "t"),
              !half && (name.ends_with(".matrix") || name.ends_with(".scalar")))
        << name;
  }
  EXPECT_FALSE(lies_in_file(read_tensors(folder / "t").at("Float.matrix"), folder / "t"));
}

TEST_F(MappedTensors, KeepTheFileMapped) {
  const at::Tensor tensor = at::randn({1000});
  write_tensors(folder / "t", {{"t", tensor}, {"u", at::ones({3})}});
  at::Tensor last;
  {
    TensorMap mapped = read_weights(folder / "t", /*in_file=*/true);
    last = mapped.at("t");
  }
  EXPECT_TRUE(at::equal(last, tensor));
  EXPECT_TRUE(lies_in_file(last, folder / "t"));
  std::filesystem::remove(folder / "t");  // The name goes; what is mapped stays.
  EXPECT_TRUE(at::equal(last, tensor));
}

TEST_F(MappedTensors, NumbersThatDoNotLieAsATensorsAreCopied) {
  std::string header = R"({"byte":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("odd":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  const float numbers[] = {1.5F, -2.0F};
  const std::string bytes(reinterpret_cast<const char*>(numbers), sizeof numbers);
  test::put(folder / "t", file + header + "\7" + bytes);
  const TensorMap mapped = read_weights(folder / "t", /*in_file=*/true);
  EXPECT_TRUE(at::equal(mapped.at("odd"), torch::tensor({1.5F, -2.0F})));
  EXPECT_FALSE(lies_in_file(mapped.at("odd"), folder / "t"));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapped.at("odd").const_data_ptr()) % sizeof(float), 0U);
  EXPECT_EQ(mapped.at("byte").item<uint8_t>(), 7);
  EXPECT_TRUE(lies_in_file(mapped.at("byte"), folder / "t"));
}

TEST_F(Tensors, WritesWhatIsSeenOfAView) {
  const at::Tensor whole = at::arange(12, at::kFloat).view({3, 4}).requires_grad_();
  write_tensors(
      folder / "t",
      {{"t", whole.t()}, {"s", whole.slice(1, 1, 4, 2)}, {"e", at::ones({1}).expand({3})}});
  const TensorMap read = read_tensors(folder / "t");
  EXPECT_TRUE(at::equal(read.at("t"), whole.t()));
  EXPECT_TRUE(at::equal(read.at("s"), whole.slice(1, 1, 4, 2)));
  EXPECT_TRUE(at::equal(read.at("e"), at::ones({3})));
  EXPECT_FALSE(read.at("t").requires_grad());
}

TEST_F(Tensors, OutliveTheFile) {
  const at::Tensor tensor = at::randn({1000});
  write_tensors(folder / "t", {{"t", tensor}});
  const TensorMap read = read_tensors(folder / "t");
  std::filesystem::resize_file(folder / "t", 0);
  EXPECT_TRUE(at::equal(read.at("t"), tensor));
}

TEST_F(Tensors, EqualTensorsGiveEqualFiles) {
  const TensorMap tensors = {{"b", at::ones({2})}, {"a", at::zeros({3}, at::kLong)}};
  write_tensors(folder / "1", tensors, {{"k", "v"}});
  write_tensors(folder / "2", tensors, {{"k", "v"}});
  EXPECT_EQ(test::get(folder / "1"), test::get(folder / "2"));
  EXPECT_EQ(safetensors::File(folder / "1").metadata().at("k"), "v");
  write_tensors(folder / "none", {});
  EXPECT_TRUE(read_tensors(folder / "none").empty());
}

TEST_F(Tensors, RefuseWhatCannotBeStored) {
  const auto write = [&](const at::Tensor& tensor) {
    return failure_of([&] { write_tensors(folder / "t", {{"bad", tensor}}); });
  };
  EXPECT_THAT(write(at::zeros({2}, at::kComplexFloat)), HasSubstr("bad: dtype ComplexFloat"));
  EXPECT_THAT(write(at::Tensor()), HasSubstr("bad: the tensor is undefined"));
  EXPECT_THAT(write(at::eye(3).to_sparse()), HasSubstr("only dense"));
  EXPECT_TRUE(folder.names().empty());
}

TEST_F(Tensors, RefuseWhatCannotBeRead) {
  const std::array<std::byte, 8> bytes = {std::byte{1}, std::byte{2}};
  const auto read = [&](const char* dtype, std::vector<int64_t> shape, size_t size) {
    safetensors::write_streamed(folder / "t", {{"bad", dtype, shape}},
                                [&](const auto&) { return std::span(bytes).first(size); });
    const std::string failure = failure_of([&] { read_tensors(folder / "t"); });
    EXPECT_EQ(failure_of([&] { read_weights(folder / "t", /*in_file=*/true); }), failure);
    return failure;
  };
  EXPECT_THAT(read("U64", {1}, 8), HasSubstr("bad: dtype U64 is not supported"));
  EXPECT_THAT(read("BOOL", {2}, 2), HasSubstr("neither 0 nor 1"));
  EXPECT_THAT(failure_of([&] { read_tensors(folder / "absent"); }), HasSubstr("absent"));
  test::put(folder / "text", "hello, this is no such file");
  EXPECT_THAT(failure_of([&] { read_tensors(folder / "text"); }), HasSubstr("text"));
  // No bytes, but strides that overflow.
  const std::string header =
      R"({"bad":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],)"
      R"("data_offsets":[0,0]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  test::put(folder / "huge", file + header);
  EXPECT_THAT(failure_of([&] { read_tensors(folder / "huge"); }), HasSubstr("huge"));
}

}  // namespace
}  // namespace moesaic
