#pragma once
// Ranks of one model have to be of one build and to have read the same files: a rank that starts again, after
// a death or when it was asked to, must not compute with other numbers than those that went on.
//
// The ranks' memory ends with a table of sums, which lives as long as the server. Whoever comes first leaves
// what it has found; the others compare.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/build_id.h"
#include "base/status.h"
#include "model/checkpoint/model_files.h"
#include "model/ranks/shard.h"

namespace troupe::model {

inline constexpr std::size_t kRankSums = 65'536;  ///< of the build, and of tensors
inline constexpr std::size_t kRankSumBytes = kRankSums * sizeof(std::uint64_t);

/// Compares the build, and the type, the shape, and the first and the last 4 KiB of each tensor of the
/// checkpoint that the rank has a part of. Of a checkpoint with more tensors than the table has room for, the
/// first are compared. Call it when the weights are loaded: then these bytes are in the page cache.
/// `memory_fd` is that of create_rank_memory(). invalid_argument names the rank and the tensor; errors of
/// reading as ShardFile::status().
Status compare_with_ranks(int memory_fd, const Shard& shard, const ModelFiles& files,
                          const std::string& build = build_id());

}  // namespace troupe::model
