#pragma once
// The batch sizes for which a GPU prepares decode steps (graphs). A batch is padded to the next larger size.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace troupe::model {

/// Every size up to 8, then steps of an eighth to a quarter of the size, from 512 on of a sixteenth to an
/// eighth. The last one is `most`.
inline std::vector<int> decode_buckets(int most) {
  std::vector<int> sizes;
  for (int size = 1; size < most;) {
    sizes.push_back(size);
    size += size < 8     ? 1
            : size < 16  ? 2
            : size < 32  ? 4
            : size < 64  ? 8
            : size < 128 ? 16
            : size < 256 ? 32
                         : 64;
  }
  sizes.push_back(most);
  return sizes;
}

/// Rows of a sequence for which decode steps are prepared, where rows verify up to `drafts` draft tokens:
/// none, half and all of them, as plans ask for (actors/scheduler/draft_control.h).
inline std::vector<std::int32_t> decode_widths(std::int32_t drafts) {
  std::vector<std::int32_t> widths{1, 1 + (drafts + 1) / 2, 1 + drafts};
  widths.erase(std::unique(widths.begin(), widths.end()), widths.end());
  return widths;
}

/// Index of the smallest size that holds `rows`, which is at most the largest.
inline std::size_t bucket_of(const std::vector<int>& sizes, int rows) {
  return static_cast<std::size_t>(std::lower_bound(sizes.begin(), sizes.end(), rows) - sizes.begin());
}

}  // namespace troupe::model
