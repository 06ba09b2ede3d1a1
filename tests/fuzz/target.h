#pragma once
// Targets of the fuzzer. Each is a function of bytes that must neither crash nor break what it states;
// libFuzzer calls it in a build with TROUPE_FUZZ (tools/test-fuzz), corpus_test.cpp with the inputs that are
// kept in corpus/.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace troupe::fuzz {

using Bytes = std::span<const std::uint8_t>;
using Target = void (*)(Bytes);

/// By name.
inline std::map<std::string, Target>& targets() {
  static std::map<std::string, Target> all;
  return all;
}

inline bool add(const char* name, Target target) { return targets().emplace(name, target).second; }

/// Defines target NAME as the function body that follows, of `input`.
#define FUZZ_TARGET(name)                                                                    \
  static void fuzz_##name(::troupe::fuzz::Bytes input);                                      \
  [[maybe_unused]] static const bool added_##name = ::troupe::fuzz::add(#name, fuzz_##name); \
  static void fuzz_##name(::troupe::fuzz::Bytes input)

/// Ends the process, which is what a fuzzer looks for.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

inline std::string_view text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Takes numbers from the front of an input; zeros when it is used up.
class Dice {
 public:
  explicit Dice(Bytes bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }

  template <class T>
  T take() {
    T value{};
    const std::size_t n = std::min(sizeof value, rest_.size());
    std::memcpy(&value, rest_.data(), n);
    rest_ = rest_.subspan(n);
    return value;
  }

  /// In [0, count), count at least 1.
  std::uint32_t below(std::uint32_t count) { return take<std::uint16_t>() % count; }

  Bytes rest() const { return rest_; }

 private:
  Bytes rest_;
};

}  // namespace troupe::fuzz
