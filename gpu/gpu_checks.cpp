#include "gpu/gpu_checks.h"

#include <string>

#include "gpu/architectures.h"

namespace troupe {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

Status check_driver(int driver, int runtime) {
  if (driver == 0) {
    return failure(Code::unsupported,
                   "No NVIDIA driver is loaded on this machine, so there is no GPU to use.");
  }
  if (driver / 1000 >= runtime / 1000) return {};
  return failure(Code::unsupported, "The NVIDIA driver is too old: it offers CUDA " + version_text(driver) +
                                        ", and CUDA " + version_text(runtime / 1000 * 1000) +
                                        " or newer is needed.");
}

Status check_capability(int ordinal, int capability, std::string_view architectures) {
  const std::string gpu =
      "GPU " + std::to_string(ordinal) + " has compute capability " + capability_text(capability);
  if (capability < kLeastCapability)
    return failure(Code::unsupported,
                   gpu + "; " + capability_text(kLeastCapability) + " or higher is needed.");
  if (code_for(architectures, capability).capability != 0) return {};
  return failure(Code::unsupported, gpu + ", for which this build has no code: it was made for " +
                                        std::string(architectures) +
                                        " (TROUPE_CUDA_ARCHITECTURES of cmake).");
}

}  // namespace troupe
