#pragma once
// Products that expand int8 or int4 weights to bf16 in working memory (LinearWay::expanded): how much of it.
#include <algorithm>
#include <cstddef>

#include "kernels/matrix.h"

namespace troupe::kernels::cuda {

/// Working memory that groups are expanded into, unless one alone needs more: enough that the last turn of
/// the multiprocessors, which have not all a tile then, is a small part of a product.
inline constexpr std::size_t kExpandedBytes = std::size_t{1} << 30;

/// Bytes of one group's weights as bf16.
inline std::size_t expanded_group_bytes(const Matrix& weight) {
  return matrix_bytes(DType::bf16, weight.outputs, weight.inputs);
}

/// Groups that are expanded, and then multiplied, at a time.
inline int groups_expanded_at_once(const Matrix& weight, int groups) {
  return std::clamp(static_cast<int>(kExpandedBytes / expanded_group_bytes(weight)), 1, groups);
}

/// Working memory of a product of `groups` such weights.
inline std::size_t expanded_bytes(const Matrix& weight, int groups) {
  return expanded_group_bytes(weight) * static_cast<std::size_t>(groups_expanded_at_once(weight, groups));
}

}  // namespace troupe::kernels::cuda
