// What is said of GPUs that ranks cannot run on, and which of it makes --device auto take the CPU. The GPUs
// are imagined.
#include "model/ranks/gpus_of_ranks.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "kernels/exchange.h"
#include "model/cuda/executor.h"
#include "model/preflight.h"
#include "model/support/files.h"

namespace troupe::model {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

using test::TempDirectory;

class GpusOfRanksTest : public ::testing::Test {
 protected:
  GpusOfRanksTest() {
    std::filesystem::copy(test::golden_directory("gqa3_tied"), directory.path(),
                          std::filesystem::copy_options::recursive);
    test::write_text(directory.path() / "tokenizer.json", "{}");
    options.model.directory = directory.path().string();
    for (int i = 0; i < 2; ++i) add("NVIDIA H200");
  }

  void add(const std::string& name) {
    gpus.push_back({.name = name, .free = 70 * kGiB, .total = 80 * kGiB, .capability = 90, .reaches = ~0ull});
  }
  GpuProbes probes() const {
    return {.gpu = [this](int ordinal) -> Result<CudaProbe> {
              if (gpus.empty()) return failure(Code::unsupported, "No GPU is visible.");
              if (const auto found = broken.find(ordinal); found != broken.end()) return found->second;
              CudaProbe gpu = gpus.at(static_cast<std::size_t>(ordinal));
              gpu.devices = static_cast<int>(gpus.size());
              return gpu;
            },
            .nccl = [this] { return nccl; },
            .visible = [this] { return visible; }};
  }
  Result<Preflight> check() const { return preflight(options, probes()); }

  // With --device auto, the default, as with --device cuda.
  void refused(const std::string& sentence) {
    for (const auto device : {config::Device::automatic, config::Device::cuda}) {
      options.device.device = device;
      const auto checked = check();
      ASSERT_FALSE(checked.ok()) << sentence;
      EXPECT_EQ(checked.status().message, sentence);
    }
  }
  config::Device chosen() {
    options.device.device = config::Device::automatic;
    const auto checked = check();
    EXPECT_TRUE(checked.ok()) << checked.status().message;
    return checked.ok() ? checked->device : config::Device::automatic;
  }
  std::string notes() const {
    const auto checked = check();
    std::string all = checked.ok() ? "" : checked.status().message;
    if (checked.ok()) {
      for (const std::string& note : checked->notes) all += note + "\n";
    }
    return all;
  }

  TempDirectory directory;
  config::Options options;
  std::vector<CudaProbe> gpus;
  std::map<int, Status> broken;
  Result<std::string> nccl = std::string("2.28.9");
  std::string visible;
};

TEST_F(GpusOfRanksTest, TwoAlikeAreTaken) {
  options.parallel.tensor_parallel_size = 2;
  EXPECT_EQ(chosen(), config::Device::cuda);
  EXPECT_EQ(notes().find("NCCL"), std::string::npos) << notes();
}

TEST_F(GpusOfRanksTest, MoreRanksThanVisibleGpus) {
  options.parallel.tensor_parallel_size = 3;
  refused(
      "--tensor-parallel-size: got 3, expected at most 2, the number of visible GPUs (CUDA_VISIBLE_DEVICES)");
  options.parallel = {.tensor_parallel_size = 6, .ranks_per_gpu = 2};
  refused(
      "--tensor-parallel-size: got 6, expected at most 4, the visible GPUs times --ranks-per-gpu "
      "(CUDA_VISIBLE_DEVICES)");
}

TEST_F(GpusOfRanksTest, DevicesOfRanks) {
  options.parallel = {.tensor_parallel_size = 4, .rank_devices = {1, 1, 0, 1}};
  gpus[0].free = 40 * kGiB;
  gpus[1].free = 60 * kGiB;
  const auto found = find_gpus(options, probes());
  ASSERT_TRUE(found.ok()) << found.status().message;
  EXPECT_EQ(found->each.free, 20 * kGiB - peer_exchange_bytes(4)) << "a third of GPU 1";
  EXPECT_EQ(found->each.total, gpus[1].total / 3);
  EXPECT_FALSE(found->way.nccl);
  EXPECT_EQ(found->notes, (std::vector<std::string>{
                              "ranks take turns on GPUs that they share (2 on GPU 0; 0, 1, 3 on GPU 1): "
                              "that is slow, and for tests"}));
  options.parallel.rank_devices = {0, 1, 2, 1};
  EXPECT_EQ(find_gpus(options, probes()).status().message,
            "--rank-devices: got 0,1,2,1, expected numbers from 0 to 1, the visible GPUs "
            "(CUDA_VISIBLE_DEVICES)");
  options.parallel.rank_devices = {7, 7, 7, 7};
  gpus.pop_back();
  EXPECT_EQ(find_gpus(options, probes()).status().message,
            "--rank-devices: got 7,7,7,7, expected 0 alone, the one visible GPU (CUDA_VISIBLE_DEVICES)");
  options.parallel.rank_devices = {0, 0, 0, 0};
  EXPECT_TRUE(find_gpus(options, probes()).ok());
}

TEST_F(GpusOfRanksTest, ADeviceThatIsNamedTwice) {
  options.parallel.tensor_parallel_size = 2;
  for (const char* fine : {"0,1", "1, 0", "0,1,-1,1", "GPU-a,GPU-b", ""}) {
    visible = fine;
    EXPECT_EQ(chosen(), config::Device::cuda) << fine;
  }
  for (const std::string device : {"0", "GPU-a"}) {
    visible = device + ", 1," + device;
    refused("CUDA_VISIBLE_DEVICES is " + visible + ", which names device " + device +
            " twice; each rank has a GPU of its own, so name different ones, or let ranks share one with "
            "--rank-devices");
  }
  options.parallel.tensor_parallel_size = 1;
  EXPECT_EQ(chosen(), config::Device::cuda) << "one rank uses the first";
}

TEST_F(GpusOfRanksTest, EnginesHaveGpusOfTheirOwn) {
  options.parallel = {.data_parallel_size = 2};
  EXPECT_EQ(chosen(), config::Device::cuda);
  options.parallel = {.data_parallel_size = 2, .tensor_parallel_size = 2};
  refused(
      "--data-parallel-size: got 2 engines with 2 ranks each, expected at most 2 ranks, the number of "
      "visible GPUs "
      "(CUDA_VISIBLE_DEVICES)");
  options.parallel = {.data_parallel_size = 3};
  refused(
      "--data-parallel-size: got 3 engines with 1 rank each, expected at most 2 ranks, the number of visible "
      "GPUs "
      "(CUDA_VISIBLE_DEVICES)");
  options.parallel = {.data_parallel_size = 2};
  broken[1] = failure(Code::unavailable, "GPU 1 is full");
  refused("GPU 1 is full");
}

TEST_F(GpusOfRanksTest, GpusOfSeveralKinds) {
  options.parallel.tensor_parallel_size = 2;
  gpus[1].name = "NVIDIA L40";
  refused(
      "--tensor-parallel-size: GPU 0 is NVIDIA H200 and GPU 1 is NVIDIA L40, expected GPUs of one kind; "
      "CUDA_VISIBLE_DEVICES chooses them");
}

TEST_F(GpusOfRanksTest, WithoutPeerAccessNcclIsTakenAndSaid) {
  options.parallel.tensor_parallel_size = 2;
  gpus[0].reaches = 1;
  EXPECT_EQ(chosen(), config::Device::cuda);
  EXPECT_NE(notes().find("ranks exchange over NCCL 2.28.9, because GPU 0 cannot use the memory of GPU 1\n"),
            std::string::npos)
      << notes();
}

TEST_F(GpusOfRanksTest, NcclIsMissing) {
  options.parallel = {.tensor_parallel_size = 2, .disable_custom_all_reduce = true};
  nccl = failure(Code::unavailable, "libnccl.so.2 cannot be opened (no such file)");
  refused(
      "Ranks have to exchange over NCCL, because --disable-custom-all-reduce is given; libnccl.so.2 cannot "
      "be "
      "opened (no such file). LD_LIBRARY_PATH may name its folder.");
}

TEST_F(GpusOfRanksTest, OneOfTwoCannotBeUsed) {
  options.parallel.tensor_parallel_size = 2;
  broken[1] = failure(Code::unsupported, "GPU 1 has compute capability 7.0; 8.0 or higher is needed.");
  refused(broken[1].message);
  broken = {{0, failure(Code::unsupported, "GPU 0 has compute capability 7.0; 8.0 or higher is needed.")}};
  refused(broken[0].message);
  broken = {{0, failure(Code::unavailable, "GPU 0 cannot be used.")},
            {1, failure(Code::unavailable, "GPU 1 cannot be used.")}};
  refused("GPU 0 cannot be used.");
}

TEST_F(GpusOfRanksTest, WithoutAnyGpuAutoIsTheCpu) {
  options.parallel.tensor_parallel_size = 2;
  broken = {{0, failure(Code::unsupported, "GPU 0 is old.")},
            {1, failure(Code::unsupported, "GPU 1 is old.")}};
  EXPECT_EQ(chosen(), config::Device::cpu);
  gpus.clear();
  EXPECT_EQ(chosen(), config::Device::cpu);
  options.device.device = config::Device::cuda;
  EXPECT_EQ(check().status().message, "No GPU is visible.");
}

TEST_F(GpusOfRanksTest, OneRankWhoseGpuIsFullRunsOnTheCpuAndSaysWhy) {
  broken[0] = failure(Code::unavailable, "GPU 0 cannot be used; another process may have all of its memory.");
  EXPECT_EQ(chosen(), config::Device::cpu);
  EXPECT_NE(notes().find("on the CPU: GPU 0 cannot be used"), std::string::npos) << notes();
}

TEST_F(GpusOfRanksTest, SumsOverNcclOfMoreThanTwoRanksAreNotBatchInvariant) {
  add("NVIDIA H200");
  options.device.batch_invariant = true;
  options.parallel.disable_custom_all_reduce = true;
  options.parallel.tensor_parallel_size = 2;
  EXPECT_TRUE(find_gpus(options, probes()).ok()) << "two numbers have one sum";
  options.parallel.tensor_parallel_size = 3;
  EXPECT_EQ(
      find_gpus(options, probes()).status().message,
      "--batch-invariant is not available with --tensor-parallel-size 3 here: ranks have to exchange over "
      "NCCL, because --disable-custom-all-reduce is given, and NCCL's order of a sum over more than two "
      "ranks "
      "may depend on the batch.");
  options.parallel.disable_custom_all_reduce = false;
  EXPECT_TRUE(find_gpus(options, probes()).ok()) << "memory of other GPUs: the ranks' order";
  options.device.batch_invariant = false;
  options.parallel.disable_custom_all_reduce = true;
  EXPECT_TRUE(find_gpus(options, probes()).ok());
}

TEST_F(GpusOfRanksTest, TheMemoryOfExchangesIsCounted) {
  gpus[1].free = 60 * kGiB;
  options.parallel.tensor_parallel_size = 2;
  EXPECT_EQ(find_gpus(options, probes())->each.free, 60 * kGiB - peer_exchange_bytes(2));
  if (peer_exchange_bytes(2) > 0) {  // else a build without CUDA
    EXPECT_GT(peer_exchange_bytes(2), 2 * sizeof(float) * kernels::most_in_pieces(2))
        << "two halves, of the other rank";
  }
  options.parallel.disable_custom_all_reduce = true;
  EXPECT_EQ(find_gpus(options, probes())->each.free, 60 * kGiB - kNcclBytes);
  options.parallel.ranks_per_gpu = 2;
  EXPECT_EQ(find_gpus(options, probes())->each.free, 35 * kGiB - kNcclBytes) << "both on GPU 0";
  options.parallel = {};
  EXPECT_EQ(find_gpus(options, probes())->each.free, 70 * kGiB);
}

}  // namespace
}  // namespace troupe::model
