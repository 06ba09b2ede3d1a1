#include "model/ranks/exchange_way.h"

#include <gtest/gtest.h>

#include "gpu/cuda.h"
#include "gpu/nccl.h"

namespace troupe::model {
namespace {

config::ParallelOptions ranks(int ranks, int sharing = 1) {
  config::ParallelOptions options;
  options.tensor_parallel_size = ranks;
  options.ranks_per_gpu = sharing;
  return options;
}

bool all(int, int) { return true; }
bool pairs(int from, int to) { return from / 2 == to / 2; }  // as where two sockets have two GPUs each

TEST(ExchangeWayTest, MemoryWhereAllReachEachOther) {
  EXPECT_FALSE(choose_exchange(ranks(4), all).nccl);
  EXPECT_FALSE(choose_exchange(ranks(8), all).nccl);
  EXPECT_FALSE(choose_exchange(ranks(2), pairs).nccl);
  EXPECT_FALSE(choose_exchange(ranks(4, 2), pairs).nccl) << "four ranks on two GPUs";
  EXPECT_EQ(gpus_of(ranks(4, 2)), (std::vector<int>{0, 1}));
  EXPECT_EQ(gpus_of(ranks(3, 2)), (std::vector<int>{0, 1}));
}

TEST(ExchangeWayTest, RanksOnNamedGpus) {
  config::ParallelOptions options = ranks(4);
  EXPECT_FALSE(share_gpus(options));
  options.rank_devices = {5, 5, 1, 1};
  EXPECT_EQ(gpus_of(options), (std::vector<int>{1, 5}));
  EXPECT_EQ(options.gpu_of(1), 5);
  EXPECT_EQ(ranks_on(5, options), 2);
  EXPECT_TRUE(share_gpus(options));
  EXPECT_TRUE(choose_exchange(options, pairs).nccl);
  options.rank_devices = {1, 0, 0, 1};
  EXPECT_FALSE(choose_exchange(options, pairs).nccl);
  options.rank_devices = {3, 2, 1, 0};
  EXPECT_FALSE(share_gpus(options));
}

TEST(ExchangeWayTest, NcclElsewhereAndWhyIsSaid) {
  const ExchangeWay apart = choose_exchange(ranks(4), pairs);
  EXPECT_TRUE(apart.nccl);
  EXPECT_EQ(apart.why, "GPU 0 cannot use the memory of GPU 2");
  const ExchangeWay many = choose_exchange(ranks(16), all);
  EXPECT_TRUE(many.nccl);
  EXPECT_EQ(many.why, "there are more than 8 ranks");
  config::ParallelOptions asked = ranks(2);
  asked.disable_custom_all_reduce = true;
  EXPECT_TRUE(choose_exchange(asked, all).nccl);
  EXPECT_EQ(choose_exchange(asked, all).why, "--disable-custom-all-reduce is given");
}

TEST(NcclTest, ALibraryThatCannotBeUsedIsNamed) {
  if (nccl_version().status().code == Code::unsupported) GTEST_SKIP() << "a build without CUDA";
  const auto absent = nccl_version("libabsent.so.7");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.status().code, Code::unavailable);
  EXPECT_EQ(absent.status().message.find("libabsent.so.7 cannot be opened (libabsent.so.7: "), 0u)
      << absent.status().message;
  const auto another = nccl_version("libc.so.6");
  ASSERT_FALSE(another.ok());
  EXPECT_EQ(another.status().message, "libc.so.6 has no function ncclGetVersion");
}

}  // namespace
}  // namespace troupe::model
