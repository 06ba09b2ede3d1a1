#pragma once
// The checks of `troupe check-gpu`: each runs one op of kernels/ on a GPU, by the way that the choosers pick
// there, and compares its result with the same op on the CPU, or with numbers worked out on the host where
// the CPU has no such op.
//
// Inputs are small, and the same each time. A check that computes with weights of few bits chooses numbers
// that the format holds exactly, so that the CPU's 16-bit weights are the same numbers.
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "gpu/cpu.h"
#include "gpu/cuda.h"
#include "gpu/kernel_ways.h"
#include "kernels/cuda/gpu_traits.h"

namespace troupe::kernels::check {

/// The way that a check's op takes on a GPU.
struct TakenWay {
  std::string name = "one kernel";  ///< as the choosers name it
  std::optional<KernelWay>
      avoidable{};  ///< what to avoid so that another way is taken; absent: there is none
};

struct KernelCheck {
  std::string_view op;  ///< the struct of arguments in kernels/X.h: "LinearAdd"; two that only work together
                        ///< are "PackFrame, FrameAttention"
  std::string what;     ///< "bfloat16, 1024 × 2048, 4 rows"
  std::string_view needs;  ///< op without which this one cannot be judged; empty: none
  std::function<TakenWay(const cuda::GpuTraits&)> way;
  /// ok, or one sentence that says what differs by how much. Throws CudaError.
  std::function<Status(Cpu&, Cuda&)> run;
};

/// All checks, an op behind those that it needs. Empty in a build without CUDA.
const std::vector<KernelCheck>& kernel_checks();

}  // namespace troupe::kernels::check
