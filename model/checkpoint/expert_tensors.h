#pragma once
// What the tensors of a checkpoint say about its mixtures of experts. The classes that write config.json have
// different defaults (0 or 2 shared experts, every layer or every second one), so a key that it leaves out is
// read off the tensors.
#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/checkpoint.h"

namespace troupe::model {

struct ExpertTensors {
  std::vector<int> layers;  ///< those with experts, ascending; empty: the checkpoint has none
  std::int64_t shared_width =
      0;  ///< of the MLP of the shared experts, in the first layer that has one; 0: none has
};

/// `hidden` is the model's width: it tells which side of a matrix is the other one.
ExpertTensors find_expert_tensors(const Checkpoint& checkpoint, int hidden);

/// The same of a model's directory; of a model that is cut for several ranks ("rank0" and so on), the whole
/// model's width. Without a checkpoint, nothing is found. An error if the files cannot be read.
Result<ExpertTensors> find_expert_tensors(const std::filesystem::path& directory, int hidden);

}  // namespace troupe::model
