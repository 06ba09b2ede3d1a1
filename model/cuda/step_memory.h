#pragma once
// What a GPU keeps of its sequences, and of the step that runs. Addresses in device memory: host code hands
// them on and never follows them.
#include <cstddef>
#include <cstdint>

#include "gpu/buffer.h"
#include "ipc/wire.h"
#include "kernels/step_inputs.h"

namespace troupe::model {

/// The sequences' state, a line per slot.
struct SequenceMemory {
  TokenId* ids = nullptr;  ///< prompt and output, and a place for the token after
  std::size_t ids_per_slot = 0;
  BlockId* blocks = nullptr;
  std::size_t blocks_per_slot = 0;
  std::byte* lists = nullptr;  ///< kMaxSamplingBytes per slot: logit biases, behind them the stop ids
  kernels::ScoreRow* scores = nullptr;  ///< (rows of a step) prompt tokens to score in it
  std::int32_t* score_picks = nullptr;  ///< beside them
};

struct StepMemory {
  SequenceMemory sequences{};
  kernels::StepArrays arrays{};
  kernels::StepClock* clock = nullptr;
  std::size_t bytes = 0;

  /// Without memory (a null View) only the size is meaningful.
  static StepMemory make(const wire::Capacity& capacity, View memory);
};

}  // namespace troupe::model
