#pragma once
// What speculation has drafted, and how much of it the model confirmed.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace troupe::metrics {

/// Of some rows that may draft. A position is the index of a draft token in its row.
struct DraftCounts {
  static constexpr std::size_t kPositions = 8;  ///< most draft tokens of a row
  using ByPosition = std::array<std::int64_t, kPositions>;

  std::int64_t rows = 0;         ///< those with and those without drafts
  std::int64_t with_drafts = 0;  ///< rows that verified at least one draft token
  std::int64_t drafted = 0;      ///< draft tokens that were verified,
  std::int64_t accepted = 0;     ///< and those of them that are what the model sampled
  std::int64_t emitted = 0;      ///< tokens that the rows yielded
  ByPosition drafted_at{};       ///< `drafted` and
  ByPosition accepted_at{};      ///< `accepted`, by position
  ByPosition reached_at{};       ///< of drafted_at, those before which no draft token of the row failed

  /// A row that verified `drafts` draft tokens, of which the first `accepted_drafts` were accepted, and that
  /// yielded `tokens` tokens, fewer than accepted_drafts + 1 if its sequence ended among them.
  void add_row(std::int32_t drafts, std::int32_t accepted_drafts, std::int32_t tokens) {
    ++rows;
    with_drafts += drafts > 0 ? 1 : 0;
    drafted += drafts;
    accepted += accepted_drafts;
    emitted += tokens;
    const auto end = std::min(kPositions, static_cast<std::size_t>(std::max(drafts, 0)));
    for (std::size_t i = 0; i < end; ++i) {
      ++drafted_at[i];
      accepted_at[i] += static_cast<std::int32_t>(i) < accepted_drafts ? 1 : 0;
      reached_at[i] += static_cast<std::int32_t>(i) <= accepted_drafts ? 1 : 0;
    }
  }

  DraftCounts& operator+=(const DraftCounts& other) {
    rows += other.rows;
    with_drafts += other.with_drafts;
    drafted += other.drafted;
    accepted += other.accepted;
    emitted += other.emitted;
    for (std::size_t i = 0; i < kPositions; ++i) {
      drafted_at[i] += other.drafted_at[i];
      accepted_at[i] += other.accepted_at[i];
      reached_at[i] += other.reached_at[i];
    }
    return *this;
  }

  friend bool operator==(const DraftCounts&, const DraftCounts&) = default;
};

}  // namespace troupe::metrics
