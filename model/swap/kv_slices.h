#pragma once
// Where the parts of a rank's KV block lie in the blocks of another instance, which may divide the KV heads
// among another number of ranks.
#include <cstddef>
#include <vector>

#include "kernels/batch.h"
#include "model/ranks/shard.h"

namespace troupe::model {

/// The KV memory of one rank of a model.
struct KvPart {
  kernels::KvCache shape;  ///< with the heads of this rank; `data` means nothing
  int kv_heads = 0;        ///< of the model
  Shard shard{};
};

/// `rows` pieces of `bytes` bytes each, in a block of the other instance's rank and in one of this rank. They
/// lie a pitch apart.
struct KvSlice {
  int rank = 0;          ///< of the other instance
  std::size_t from = 0;  ///< of the first piece, in bytes from the beginning of that rank's block
  std::size_t to = 0;    ///< likewise in this rank's block
  std::size_t bytes = 0;
  std::size_t rows = 1;
  std::size_t from_pitch = 0;  ///< bytes from the beginning of a piece to that of the next; 0 with one row
  std::size_t to_pitch = 0;    ///< likewise

  bool operator==(const KvSlice&) const = default;
};

/// True if a model of so many KV heads can be divided among so many ranks.
constexpr bool divides_kv_heads(int kv_heads, int ranks) {
  return ranks >= 1 && ranks <= kMostRanks && (kv_heads % ranks == 0 || ranks % kv_heads == 0);
}

/// Bytes of a KV block of each rank when `ranks` ranks hold the model of `part`.
std::size_t kv_block_bytes(const KvPart& part, int ranks);

/// The slices that fill a block of `part` from blocks of an instance of `ranks` ranks; each byte is in one.
/// They are one slice, all of a block, where one rank of the other instance has the same heads. Of several
/// ranks with the same head one is read: the ranks here that need it share them out among them. Requires
/// divides_kv_heads(part.kv_heads, ranks).
std::vector<KvSlice> kv_slices(const KvPart& part, int ranks);

/// Copies a slice from the block at `from` to the block at `to`; host memory.
void copy_slice(const KvSlice& slice, const std::byte* from, std::byte* to);

}  // namespace troupe::model
