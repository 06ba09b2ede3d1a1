#pragma once
// Checkpoints with one fault each, and the numbers that a map of tensors finds in them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint/tensor_map.h"
#include "model/support/files.h"

namespace troupe::model::test {

/// A golden's tensors, to be spoiled one at a time.
class SpoiledCheckpoint : public ::testing::Test {
 protected:
  void take(const std::string& golden) {
    spec_ = *read_spec(golden_directory(golden));
    tensors_ = tensors_of(*Checkpoint::open(golden_directory(golden)));
  }
  TestTensor& tensor(const std::string& name) {
    return *std::ranges::find_if(tensors_, [&](const TestTensor& t) { return t.name == name; });
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const TestTensor& t) { return t.name == name; });
  }
  void add(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape,
           std::size_t bytes) {
    tensors_.push_back({name, dtype, std::move(shape), std::string(bytes, '\0')});
  }
  Result<TensorMap> map() {
    write_safetensors(directory_.path() / "model.safetensors", tensors_);
    checkpoint_ = *Checkpoint::open(directory_.path());
    return map_tensors(spec_, checkpoint_);
  }
  void refused(const std::string& part) {
    const auto mapped = map();
    ASSERT_FALSE(mapped.ok());
    EXPECT_NE(mapped.status().message.find(part), std::string::npos) << mapped.status().message;
  }

  TempDirectory directory_;
  ModelSpec spec_;
  std::vector<TestTensor> tensors_;
  Checkpoint checkpoint_;
};

/// The numbers that a source stands for, by outputs.
inline std::vector<float> values(const WeightSource& source) {
  const DType type = source.tensor->type == FileType::f32   ? DType::f32
                     : source.tensor->type == FileType::f16 ? DType::f16
                                                            : DType::bf16;
  const auto bytes = read_tensor(*source.tensor);
  std::vector<float> out;
  for (std::int64_t o = 0; o < source.outputs; ++o) {
    for (std::int64_t i = 0; i < source.inputs; ++i) {
      const std::int64_t at = source.transposed ? i * source.stride + o : o * source.stride + i;
      std::uint32_t element = 0;
      const std::size_t size = size_of(type);
      std::memcpy(&element, bytes->data() + static_cast<std::size_t>(source.first + at) * size, size);
      out.push_back(load_element(&element, type, 0));
    }
  }
  return out;
}

}  // namespace troupe::model::test
