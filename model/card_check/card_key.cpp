#include "model/card_check/card_key.h"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "base/build_id.h"
#include "gpu/cards.h"

namespace troupe::model {
namespace {

/// Cards of docs/hardware.md on which all tests of a GPU ran.
constexpr std::string_view kVerifiedCards[] = {"H100-80G", "H200-141G"};

}  // namespace

std::string driver_version() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  if (file >> version) return version;
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  …": the first word of digits and points.
  std::ifstream told("/proc/driver/nvidia/version");
  while (told >> version) {
    if (version.find('.') != std::string::npos &&
        version.find_first_not_of("0123456789.") == std::string::npos)
      return version;
  }
  return "unknown";
}

CardKey key_of(const CudaProbe& gpu) {
  return {card_name(gpu), gpu.capability, driver_version(), build_id()};
}

bool is_verified(const CudaProbe& gpu) {
  const Card* const card = card_of_driver(card_name(gpu), gpu.total);
  return card != nullptr && gpu.accelerated &&
         std::ranges::find(kVerifiedCards, card->name) != std::end(kVerifiedCards);
}

}  // namespace troupe::model
