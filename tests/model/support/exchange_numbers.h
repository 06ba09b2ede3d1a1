#pragma once
#include <cstddef>
#include <vector>

namespace troupe::model::test {

/// What a rank gives to an exchange. The sum of these depends on their order.
inline float number(int rank, std::size_t i, int round) {
  return (static_cast<float>((i * 7919 + static_cast<std::size_t>(round) * 131) % 10007) - 5000.0f) /
         (static_cast<float>(rank) + 1.3f);
}

inline std::vector<float> numbers(int rank, std::size_t count, int round) {
  std::vector<float> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = number(rank, i, round);
  return made;
}

/// In the order of the ranks.
inline std::vector<float> sums(int ranks, std::size_t count, int round) {
  std::vector<float> made = numbers(0, count, round);
  for (int r = 1; r < ranks; ++r) {
    for (std::size_t i = 0; i < count; ++i) made[i] += number(r, i, round);
  }
  return made;
}

}  // namespace troupe::model::test
