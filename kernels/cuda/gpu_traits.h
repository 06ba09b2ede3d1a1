#pragma once
// What the choosers know of a GPU. Plain numbers: a choice can be made, printed and tested where there is
// none, and tests can force any of them.
#include "gpu/architectures.h"
#include "gpu/cards.h"
#include "gpu/cuda.h"
#include "gpu/kernel_ways.h"

namespace troupe::kernels::cuda {

struct GpuTraits {
  GpuFeatures features;
  int multiprocessors = 0;
  int block_shared_bytes = 0;     ///< shared memory that one block may have: 99, 163 or 227 KiB
  double memory_bytes_per_s = 0;  ///< clock × bus width, not what a copy reaches
  double clock_hz = 0;            ///< of a multiprocessor
  bool batch_invariant = false;   ///< a row's bits may not depend on the other rows
  KernelWays avoided{};           ///< not to be chosen: they compute wrongly on this card

  constexpr bool may(KernelWay way) const { return !avoided.contains(way); }
};

/// An H200 as its driver describes it: 3,201 MHz × 6,016 bits, 132 multiprocessors at 1,980 MHz.
inline constexpr GpuTraits kH200{
    .features = {.clusters = true, .wgmma = true, .programmatic = true, .fp8 = true},
    .multiprocessors = 132,
    .block_shared_bytes = 227 << 10,
    .memory_bytes_per_s = 3201e6 * 2 * 6016 / 8,
    .clock_hz = 1980e6};

/// Of the device's GPU. Clocks that the driver does not tell are an H200's.
inline GpuTraits traits_of(const Cuda& device) {
  const bool known = device.memory_bytes_per_s() > 0 && device.clock_hz() > 0;
  return {.features = device.features(),
          .multiprocessors = device.multiprocessors(),
          .block_shared_bytes = device.block_shared_bytes(),
          .memory_bytes_per_s = known ? device.memory_bytes_per_s() : kH200.memory_bytes_per_s,
          .clock_hz = known ? device.clock_hz() : kH200.clock_hz,
          .batch_invariant = device.batch_invariant(),
          .avoided = device.avoided()};
}

/// Of a card that runs code of its own capability, "90a" on a Hopper. Its clock is taken to be an H200's.
inline GpuTraits traits_of(const Card& card) {
  const GpuCode code{.capability = card.capability, .accelerated = card.capability == 90};
  return {.features = features_of(code, card.capability),
          .multiprocessors = card.multiprocessors,
          .block_shared_bytes = card.block_shared_kib << 10,
          .memory_bytes_per_s = card.memory_tb_per_s * 1e12,
          .clock_hz = kH200.clock_hz};
}

}  // namespace troupe::kernels::cuda
