#pragma once
#include <memory>
#include <vector>

#include "gpu/cuda.h"
#include "model/ranks/collective.h"
#include "model/support/rank_processes.h"

namespace troupe::model::test {

/// One rank's device and its collective. What the process is asked for may end in "nccl"; in "one step" or
/// "two steps", as all sums then go; or in "measures": which way they go is measured, as if no GPU were
/// shared.
struct Party {
  explicit Party(const RankProcess& process, bool overlap = true)
      : shard(process.shard), device({.ordinal = process.shard.rank % cuda_devices(), .overlap = overlap}) {
    const bool nccl = process.what.ends_with("nccl");
    const bool shares = cuda_devices() < process.shard.ranks && !process.what.ends_with("measures");
    auto attached = Collective<Cuda>::attach(process.memory, shard, device, nccl, shares);
    EXPECT_TRUE(attached.ok()) << attached.status().message;
    ranks = std::move(*attached);
    if (process.what.ends_with("one step")) ranks->set_two_steps_from(kernels::kNeverInTwoSteps);
    if (process.what.ends_with("two steps")) ranks->set_two_steps_from(0);
  }
  bool join() { return test::join(*ranks); }
  float* put(const std::vector<float>& values) {
    auto* memory = static_cast<float*>(device.alloc(values.size() * sizeof(float)));
    device.upload(memory, values.data(), values.size() * sizeof(float));
    return memory;
  }
  std::vector<float> get(const float* memory, std::size_t count) {
    std::vector<float> values(count);
    device.download(values.data(), memory, count * sizeof(float));
    device.sync();
    return values;
  }

  Shard shard;
  Cuda device;
  std::unique_ptr<Collective<Cuda>> ranks;
};

}  // namespace troupe::model::test
