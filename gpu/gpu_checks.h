#pragma once
// Why a GPU cannot be used, as functions of plain numbers. Each failure is Code::unsupported with one
// sentence.
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe {

/// The lowest compute capability that any kernel is written for: 8.0.
inline constexpr int kLeastCapability = 80;

/// "9.0" for 90.
std::string capability_text(int capability);

/// Whether the driver is new enough for the runtime that the program was built with. Versions as CUDA gives
/// them, 13000 for 13.0; a driver of 0 is none at all. Within a major version any driver will do.
Status check_driver(int driver, int runtime);

/// Whether the GPU `ordinal` of that capability runs the code in this build. `architectures`: as code_for().
Status check_capability(int ordinal, int capability, std::string_view architectures);

}  // namespace troupe
