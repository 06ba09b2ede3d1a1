// Reserved memory, graphs, events and pinned memory of a GPU; and the error message where there is no GPU.
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "gpu/cuda_event.h"
#include "gpu/cuda_graph.h"
#include "gpu/cuda_probe.h"
#include "gpu/pinned.h"
#include "gpu/reserved_memory.h"

namespace troupe {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class CudaMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    device = std::make_unique<Cuda>();
  }

  int word(const void* at) {
    int value = 0;
    device->download(&value, at, sizeof value);
    device->sync();
    return value;
  }
  void set_word(void* at, int value) {
    device->upload(at, &value, sizeof value);
    device->sync();
  }
  static std::byte* at(const ReservedMemory& memory, std::size_t offset) {
    return static_cast<std::byte*>(memory.data()) + offset;
  }

  std::unique_ptr<Cuda> device;
};

TEST_F(CudaMemoryTest, ReservedMemoryGrowsInPlace) {
  ReservedMemory memory(*device, 512 * kMiB);
  EXPECT_EQ(memory.mapped(), 0u);
  ASSERT_TRUE(memory.map(100));
  void* first = memory.data();
  EXPECT_EQ(memory.mapped(), memory.granule());
  set_word(first, 77);
  ASSERT_TRUE(memory.map(300 * kMiB));
  EXPECT_EQ(memory.data(), first);
  EXPECT_EQ(word(first), 77) << "the old content is kept";
  EXPECT_EQ(word(at(memory, 300 * kMiB - 4)), 0);
  ASSERT_TRUE(memory.map(100)) << "it never shrinks";
  EXPECT_GE(memory.mapped(), 300 * kMiB);
}

TEST_F(CudaMemoryTest, StagingIsTakenByALargeUploadAndReleased) {
  EXPECT_EQ(device->staging_bytes(), 0u);
  std::vector<int> values(kMiB);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i);
  auto* to = static_cast<int*>(device->alloc(2 * values.size() * sizeof(int)));
  device->upload(to, values.data(), values.size() * sizeof(int));
  EXPECT_GT(device->staging_bytes(), 0u);
  device->release_staging();  // behind the upload
  EXPECT_EQ(device->staging_bytes(), 0u);
  EXPECT_EQ(word(to + 777'777), 777'777);
  device->upload(to + values.size(), values.data(), values.size() * sizeof(int));
  EXPECT_EQ(word(to + values.size() + 123'456), 123'456);
  device->free(to);
}

TEST_F(CudaMemoryTest, ReservedMemoryIsReleased) {
  const std::size_t before = device->memory().free;
  {
    ReservedMemory memory(*device, 1024 * kMiB);
    ASSERT_TRUE(memory.map(1024 * kMiB));
    EXPECT_LE(device->memory().free, before - 1000 * kMiB);
  }
  EXPECT_GE(device->memory().free + 16 * kMiB, before);
}

TEST_F(CudaMemoryTest, RequestingTooMuchMemoryFailsAndChangesNothing) {
  const CudaMemory all = device->memory();
  ReservedMemory memory(*device, 2 * all.total);
  ASSERT_TRUE(memory.map(kMiB));
  set_word(memory.data(), 5);
  const std::size_t mapped = memory.mapped();
  EXPECT_FALSE(memory.map(all.free + 4096 * kMiB));
  EXPECT_FALSE(memory.map(3 * all.total)) << "more than the reserved addresses";
  EXPECT_EQ(memory.mapped(), mapped);
  EXPECT_EQ(word(memory.data()), 5);
}

TEST_F(CudaMemoryTest, AGraphReplaysOnTheCurrentContentOfMemory) {
  auto* words = static_cast<int*>(device->alloc(3 * sizeof(int)));
  const CudaGraph graph = CudaGraph::capture(*device, [&] {
    device->copy(words + 1, words, sizeof(int));
    device->copy(words + 2, words + 1, sizeof(int));
  });
  EXPECT_EQ(graph.nodes(), 2u);
  EXPECT_EQ(word(words + 2), 0) << "a capture runs nothing";
  for (const int value : {3, 4}) {
    set_word(words, value);
    graph.launch(*device);
    EXPECT_EQ(word(words + 2), value);
  }
  device->free(words);
}

TEST_F(CudaMemoryTest, AFailedCaptureLeavesTheDeviceUsable) {
  EXPECT_THROW((void)CudaGraph::capture(*device, [] { throw std::runtime_error("stop"); }),
               std::runtime_error);
  EXPECT_THROW((void)CudaGraph::capture(*device, [&] { device->sync(); }), CudaError);
  auto* words = device->alloc(sizeof(int));
  set_word(words, 9);
  EXPECT_EQ(word(words), 9);
  device->free(words);
}

TEST_F(CudaMemoryTest, EventsPassInOrder) {
  CudaEvent before(CudaEvent::Timing::on), after(CudaEvent::Timing::on);
  EXPECT_TRUE(before.passed()) << "an event that was never recorded counts as passed";
  auto* memory = static_cast<std::byte*>(device->alloc(512 * kMiB));
  before.record(*device);
  device->copy(memory, memory + 256 * kMiB, 256 * kMiB);
  after.record(*device);
  after.wait();
  EXPECT_TRUE(before.passed());
  EXPECT_TRUE(after.passed());
  EXPECT_GT(after.milliseconds_since(before), 0.01);
  device->free(memory);
}

TEST_F(CudaMemoryTest, PinnedMemoryIsZeroAndMoves) {
  PinnedMemory memory(kMiB);
  for (std::size_t i = 0; i < memory.bytes(); i += 4096) ASSERT_EQ(memory.data()[i], std::byte{0});
  std::byte* const data = memory.data();
  PinnedMemory moved = std::move(memory);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(memory.data(), nullptr);
}

TEST_F(CudaMemoryTest, TheProbeReportsTheDevice) {
  const auto probe = probe_cuda();
  ASSERT_TRUE(probe.ok()) << probe.status().message;
  EXPECT_TRUE(cuda_initialized());
  EXPECT_EQ(probe->name, device->describe());
  EXPECT_EQ(probe->total, device->memory().total);
  EXPECT_LE(probe->free, probe->total);
}

TEST(CudaProbe, SaysInOneSentenceWhyThereIsNone) {
  const Status usable = cuda_usable(99);
  ASSERT_FALSE(usable.ok());
  const auto probe = probe_cuda(99);
  ASSERT_FALSE(probe.ok());
  EXPECT_EQ(probe.status().code, Code::unsupported);
  EXPECT_EQ(probe.status().message, usable.message);
  EXPECT_EQ(usable.message.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace troupe
