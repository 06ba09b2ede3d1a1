#pragma once
// Angles of the rotary position embedding, once per step for all layers.
#include <cstdint>

#include "gpu/device.h"

namespace troupe::kernels {

/// out[r][i] = {cos a, sin a} with a = positions[r][axis[i]] * inverse_frequencies[i], product, cosine and
/// sine in fp32. A row has one position, or one on each of several axes.
struct RopeTable {
  float* out = nullptr;                        ///< (rows, head_dim / 2, 2)
  const std::int32_t* positions = nullptr;     ///< (rows, axes)
  const float* inverse_frequencies = nullptr;  ///< (head_dim / 2)
  const std::uint8_t* axis = nullptr;          ///< (head_dim / 2) below `axes`; null: 0
  int axes = 1;
  int rows = 0;
  int head_dim = 0;
};

/// out[i] = theta^(-2i / head_dim) for i < head_dim / 2, rounded once to fp32. Host memory.
void rope_inverse_frequencies(float* out, int head_dim, double theta);

void run(Cpu& device, const RopeTable& op);
void run(Cuda& device, const RopeTable& op);

}  // namespace troupe::kernels
