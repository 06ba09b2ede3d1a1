#include "model/swap/kv_slices.h"

#include <algorithm>
#include <cstring>

namespace troupe::model {
namespace {

kernels::KvCache shape_of(const KvPart& part, int ranks) {
  kernels::KvCache shape = part.shape;
  shape.kv_heads = kv_heads_of(part.kv_heads, {.ranks = ranks}).count;
  return shape;
}

/// The rank among `ranks` from which this rank reads a head that it holds.
int holder_of(int head, const KvPart& part, int ranks) {
  const int first = ranks * head / part.kv_heads;
  const int holders = std::max(1, ranks / part.kv_heads);
  const int readers = std::max(1, part.shard.ranks / part.kv_heads);
  const int reader = readers == 1 ? 0 : part.shard.rank % readers;
  return first + reader * holders / readers;
}

}  // namespace

std::size_t kv_block_bytes(const KvPart& part, int ranks) { return shape_of(part, ranks).block_bytes(); }

std::vector<KvSlice> kv_slices(const KvPart& part, int ranks) {
  const kernels::KvCache& to = part.shape;
  const kernels::KvCache from = shape_of(part, ranks);
  const KvHeads own = kv_heads_of(part.kv_heads, part.shard);
  std::vector<KvSlice> slices;
  for (int head = own.first; head < own.first + own.count;) {
    const int rank = holder_of(head, part, ranks);
    const KvHeads theirs = kv_heads_of(part.kv_heads, {rank, ranks});
    const int end = std::min(own.first + own.count, theirs.first + theirs.count);
    if (own.count == theirs.count && end - head == own.count) return {{rank, 0, 0, to.block_bytes()}};
    slices.push_back({rank, from.key_offset(0, 0, head - theirs.first), to.key_offset(0, 0, head - own.first),
                      static_cast<std::size_t>(end - head) * to.piece_bytes(),
                      2 * static_cast<std::size_t>(to.layers),
                      static_cast<std::size_t>(from.kv_heads) * from.piece_bytes(),
                      static_cast<std::size_t>(to.kv_heads) * to.piece_bytes()});
    head = end;
  }
  // Ids and the draft layer's row are the same on all ranks.
  if (const std::size_t rest = to.block_bytes() - to.id_offset(); rest > 0)
    slices.push_back({slices.front().rank, from.id_offset(), to.id_offset(), rest});
  return slices;
}

void copy_slice(const KvSlice& slice, const std::byte* from, std::byte* to) {
  for (std::size_t row = 0; row < slice.rows; ++row) {
    std::memcpy(to + slice.to + row * slice.to_pitch, from + slice.from + row * slice.from_pitch,
                slice.bytes);
  }
}

}  // namespace troupe::model
