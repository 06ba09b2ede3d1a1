// Ranks read disjoint pieces of a tensor: what lies between a rank's lines is left to the others.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "gpu/cpu.h"
#include "kernels/pack.h"

namespace troupe::model {
namespace {

using kernels::Matrix;
using kernels::Pack;

/// A file in memory that counts how often each byte is read.
class CountedBytes final : public ByteSource {
 public:
  explicit CountedBytes(const std::vector<std::uint16_t>& data) : data_(data), times_(2 * data.size()) {}

  void read(std::uint64_t offset, void* to, std::size_t bytes) const noexcept override {
    MemoryBytes(data_.data()).read(offset, to, bytes);
    for (std::size_t i = 0; i < bytes; ++i) ++times_[offset + i];
  }
  int most() const {
    int most = 0;
    for (const auto& times : times_) most = std::max<int>(most, times);
    return most;
  }
  std::size_t read_bytes() const {
    std::size_t sum = 0;
    for (const auto& times : times_) sum += times;
    return sum;
  }

 private:
  const std::vector<std::uint16_t>& data_;
  mutable std::vector<std::atomic<int>> times_;
};

struct Case {
  bool transposed;
  int outputs, inputs;  ///< of the tensor
};

class DisjointReads : public ::testing::TestWithParam<Case> {};

// The tensor is cut into columns of its lines: outputs of a transposed one, inputs of another.
TEST_P(DisjointReads, ByFourRanksAreTheWholeTensorOnce) {
  const auto& [transposed, outputs, inputs] = GetParam();
  const int ranks = 4, stride = transposed ? outputs : inputs;
  std::vector<std::uint16_t> data(static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs));
  for (std::size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<std::uint16_t>(i * 40503u >> 3 & 0x3fff);
  const CountedBytes file(data);
  Cpu device({.threads = 2, .pin = false});
  for (int rank = 0; rank < ranks; ++rank) {
    const int own_outputs = transposed ? outputs / ranks : outputs,
              own_inputs = transposed ? inputs : inputs / ranks;
    const std::size_t size = static_cast<std::size_t>(kernels::padded(own_outputs)) *
                             static_cast<std::size_t>(kernels::padded(own_inputs));
    std::vector<std::uint16_t> from_file(size), from_memory(size);
    const std::size_t first = static_cast<std::size_t>(rank * (transposed ? own_outputs : own_inputs));
    Pack pack{.file = &file,
              .offset = 2 * first,
              .source_dtype = DType::bf16,
              .transposed = transposed,
              .source_stride = stride,
              .outputs = own_outputs};
    pack.into = Matrix{from_file.data(), DType::bf16, own_outputs, own_inputs};
    kernels::run(device, pack);
    pack.file = nullptr;
    pack.source = data.data() + first;
    pack.into.data = from_memory.data();
    kernels::run(device, pack);
    EXPECT_EQ(from_file, from_memory) << "rank " << rank;
  }
  EXPECT_EQ(file.most(), 1);
  EXPECT_EQ(file.read_bytes(), 2 * data.size());
}

INSTANTIATE_TEST_SUITE_P(All, DisjointReads,
                         ::testing::Values(Case{true, 2048, 96}, Case{true, 4096, 33}, Case{false, 70, 2048}),
                         [](const auto& info) {
                           return std::string(info.param.transposed ? "Transposed" : "Rows") +
                                  std::to_string(info.param.outputs);
                         });

}  // namespace
}  // namespace troupe::model
