#pragma once
// How keys and values are stored, apart from the type of the activations that attention reads and writes.
#include <cstdint>

namespace troupe::kernels {

enum class KvFormat : std::uint8_t {
  plain,  ///< the activations' dtype
  int8,   ///< codes -127 … 127; an fp32 scale for each token and KV head, of K and of V
  fp8,    ///< e4m3, scales as int8
};

constexpr const char* to_string(KvFormat format) {
  return format == KvFormat::plain ? "plain" : format == KvFormat::int8 ? "int8" : "fp8";
}

}  // namespace troupe::kernels
