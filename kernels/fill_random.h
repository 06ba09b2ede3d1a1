#pragma once
// Random weights made on the device, for a model that is only a shape.
#include <cstdint>

#include "gpu/device.h"
#include "kernels/pack.h"

namespace troupe::kernels {

/// Element (o, i) of `into` gets a draw of N(0, deviation) that depends on (seed, o, i) alone: not on the
/// layout, the device or the dtype (but for rounding). Draws are quantiles of 1/4096 steps.
struct FillRandom {
  Matrix into{};
  Place place = Place::rows;  ///< as for Pack
  int first = 0;              ///< as for Pack
  int outputs = 0;            ///< rows to fill; o counts from 0 within them
  std::uint64_t seed = 0;
  float deviation = 0.02f;
};

void run(Cpu& device, const FillRandom& op);
void run(Cuda& device, const FillRandom& op);

}  // namespace troupe::kernels
