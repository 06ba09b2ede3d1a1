#pragma once
// Inputs that differ a little from kept ones, for runs without a fuzzer.
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace troupe::fuzz {

using Input = std::vector<std::uint8_t>;

/// As libFuzzer is told in tools/test-fuzz.
inline constexpr std::size_t kMostBytes = 8192;

/// One of `kept`, which is not empty, with one to four changes: bits and bytes that differ, bytes less or
/// twice, the end of another one. At most kMostBytes. The same `random` gives the same mutant.
Input mutant_of(const std::vector<Input>& kept, std::mt19937_64& random);

/// While it lives, a death of this process leaves `input`, which has to live as long, in a file of the
/// working directory and says so. One at a time.
class KeptIfDeadly {
 public:
  KeptIfDeadly(const char* target, const Input& input);
  ~KeptIfDeadly();
  KeptIfDeadly(const KeptIfDeadly&) = delete;
  KeptIfDeadly& operator=(const KeptIfDeadly&) = delete;
};

}  // namespace troupe::fuzz
