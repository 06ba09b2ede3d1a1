#pragma once
// Which of the GPU code in a build a GPU runs.
#include <cstddef>
#include <string_view>

namespace troupe {

/// The code of a build that a GPU runs.
struct GpuCode {
  int capability = 0;        ///< it was compiled for this one, 90 for 9.0; 0: there is none for this GPU
  bool accelerated = false;  ///< compiled for "90a": has instructions of this capability alone (wgmma)
};

/// `architectures` as in CMAKE_CUDA_ARCHITECTURES, separated by commas: "90a", "80-real,86-virtual". Machine
/// code (anything but -virtual) runs on its own capability and later ones of the same major number, that of
/// an "a" on its own alone. PTX (anything but -real) is translated for every later one, unless it is of an
/// "a". Of several the GPU takes that of the highest capability, accelerated if there is such.
constexpr GpuCode code_for(std::string_view architectures, int capability) {
  GpuCode best;
  while (!architectures.empty()) {
    const std::size_t comma = architectures.find(',');
    std::string_view one = architectures.substr(0, comma);
    architectures.remove_prefix(comma == std::string_view::npos ? architectures.size() : comma + 1);
    int built = 0;
    while (!one.empty() && one.front() >= '0' && one.front() <= '9') {
      built = built * 10 + (one.front() - '0');
      one.remove_prefix(1);
    }
    if (built == 0 && !one.empty()) built = capability;  // "native", "all": taken on trust, never of an "a"
    const bool alone = one.starts_with('a') && !one.starts_with("all");
    const bool machine_code = !one.ends_with("-virtual"), ptx = !one.ends_with("-real") && !alone;
    const bool runs = capability == built || (!alone && capability > built &&
                                              (ptx || (machine_code && capability / 10 == built / 10)));
    if (!runs || built < best.capability) continue;
    best = {built, alone || (built == best.capability && best.accelerated)};
  }
  return best;
}

/// What kernels may use on a GPU. All of it is there only as far as the build has code that uses it.
struct GpuFeatures {
  bool clusters = false;      ///< clusters of thread blocks, and bulk copies; their code is in "90a" alone
  bool wgmma = false;         ///< products of warpgroups, capability 9.0 alone
  bool programmatic = false;  ///< a kernel may start while the one before it still runs; from 9.0 on
  bool fp8 = false;           ///< tensor core products of e4m3; from 8.9 on

  bool operator==(const GpuFeatures&) const = default;
};

/// Of a GPU of that capability which runs that code.
constexpr GpuFeatures features_of(const GpuCode& code, int capability) {
  const bool hopper = capability == 90 && code.accelerated;
  return {.clusters = hopper,
          .wgmma = hopper,
          .programmatic = code.capability >= 90,
          .fp8 = code.capability >= 89};
}

}  // namespace troupe
