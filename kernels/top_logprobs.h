#pragma once
// The most likely tokens of rows that want more of them than a SampleResult holds, up to the whole
// vocabulary.
#include <cstdint>

#include "kernels/sample.h"

namespace troupe::kernels {

/// A row that wants its `count` most likely tokens.
struct TopRow {
  std::int32_t logits_row = 0;  ///< -1: a padding row; nothing is written for it
  std::int32_t count = 0;       ///< 1 … vocab
  std::int32_t first = 0;       ///< index of the first in TopLogprobs::top; rows do not overlap there
};

/// Log-softmax of raw logits at the most likely tokens of each row: most likely first, lowest id first among
/// equals. Bit for bit the log-probabilities that Sample and Score give. Of a row with a logit that is not
/// finite nothing is written.
struct TopLogprobs {
  TopLogprob* top = nullptr;      ///< aligned to 8 bytes
  const TopRow* rows = nullptr;   ///< (count)
  const float* logits = nullptr;  ///< (…, stride); only read
  int count = 0;
  int vocab = 0;
  int stride = 0;
};

void run(Cpu& device, const TopLogprobs& op);
void run(Cuda& device, const TopLogprobs& op);

}  // namespace troupe::kernels
