#include "actors/session/answer_ids.h"

namespace troupe {
namespace {

/// 64 well mixed bits.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

void append_hex(std::string& out, std::uint64_t value) {
  for (int shift = 60; shift >= 0; shift -= 4) out.push_back("0123456789abcdef"[(value >> shift) & 15]);
}

}  // namespace

std::string part_id(std::string_view prefix, const RequestKey& key, std::int32_t index) {
  const auto part = static_cast<std::uint64_t>(index) + 1;
  std::string id(prefix);
  append_hex(id, mixed(key.hi + part * 0x9E3779B97F4A7C15u));
  append_hex(id, mixed(key.lo ^ mixed(part)));
  return id;
}

}  // namespace troupe
