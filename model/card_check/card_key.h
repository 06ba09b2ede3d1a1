#pragma once
// Which GPU, driver and build a check of the kernels (`troupe check-gpu`) is true of.
#include <string>

#include "base/status.h"
#include "gpu/cuda_probe.h"

namespace troupe::model {

struct CardKey {
  std::string card;    ///< as the driver calls it: "NVIDIA H200"
  int capability = 0;  ///< 90 for compute capability 9.0
  std::string driver;  ///< version: "580.159.04"
  std::string build;   ///< of this very binary; another build has other kernels

  bool operator==(const CardKey&) const = default;
};

/// Of a GPU of this machine and the program that runs.
CardKey key_of(const CudaProbe& gpu);

/// Version of the NVIDIA kernel driver that is loaded, "unknown" if the system does not say.
std::string driver_version();

/// True if every test that needs a GPU has passed on such a card (docs/hardware.md), and the build has the
/// code for it that was tested. Its kernels are not checked at the start.
bool is_verified(const CudaProbe& gpu);

}  // namespace troupe::model
