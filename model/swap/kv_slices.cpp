#include "model/swap/kv_slices.h"

#include <algorithm>
#include <cstring>

#include "model/checkpoint/model_files.h"
#include "model/swap/kv_layout.h"

namespace troupe::model {
namespace {

int heads_of_rank(const KvLayout& layout, int ranks) {
  return kv_heads_of(layout.kv_heads, {.ranks = ranks}).count;
}

/// Of the keys and values of one layer.
std::size_t layer_bytes(const KvLayout& layout, int ranks) {
  return 2 * static_cast<std::size_t>(heads_of_rank(layout, ranks)) * layout.piece_bytes;
}

/// Of the keys and values of all layers: where the rest begins.
std::size_t heads_bytes(const KvLayout& layout, int ranks) {
  return static_cast<std::size_t>(layout.layers) * layer_bytes(layout, ranks);
}

/// The rank among `ranks` from which rank `to` reads a head that it holds.
int holder_of(int head, const KvLayout& layout, const Shard& to, int ranks) {
  const int first = ranks * head / layout.kv_heads;
  const int holders = std::max(1, ranks / layout.kv_heads);
  const int readers = std::max(1, to.ranks / layout.kv_heads);
  const int reader = readers == 1 ? 0 : to.rank % readers;
  return first + reader * holders / readers;
}

}  // namespace

std::size_t KvLayout::block_bytes(int ranks) const { return heads_bytes(*this, ranks) + rest_bytes; }

KvLayout layout_of(const KvPart& part) {
  const kernels::KvCache& kv = part.shape;
  return {kv.layers, part.kv_heads, kv.piece_bytes(), kv.block_bytes() - kv.id_offset()};
}

Result<KvLayout> kv_layout_of(const config::Options& options) {
  const Shard shard{0, options.parallel.tensor_parallel_size, options.parallel.enable_expert_parallel};
  Result<ModelFiles> files = open_model(options.model, shard, options.speculation);
  if (!files) return files.status();
  const config::Device device = options.device.device;
  if (Status s = files->choose(device, options.quantization); !s.ok()) return s;
  const kernels::KvCache shape = device == config::Device::cuda ? cuda_kv_shape(files->spec, files->formats)
                                                                : kv_shape(files->spec, files->formats);
  return layout_of({shape, files->spec.kv_heads, {}});
}

std::size_t kv_block_bytes(const KvPart& part, int ranks) { return layout_of(part).block_bytes(ranks); }

std::vector<KvSlice> kv_slices(const KvPart& part, int ranks) {
  return kv_slices(layout_of(part), part.shard, ranks);
}

std::vector<KvSlice> kv_slices(const KvLayout& layout, const Shard& to, int ranks) {
  const KvHeads own = kv_heads_of(layout.kv_heads, to);
  const auto offset = [&](int heads) { return static_cast<std::size_t>(heads) * layout.piece_bytes; };
  std::vector<KvSlice> slices;
  for (int head = own.first; head < own.first + own.count;) {
    const int rank = holder_of(head, layout, to, ranks);
    const KvHeads theirs = kv_heads_of(layout.kv_heads, {rank, ranks});
    const int end = std::min(own.first + own.count, theirs.first + theirs.count);
    if (own.count == theirs.count && end - head == own.count)
      return {{rank, 0, 0, layout.block_bytes(to.ranks)}};
    slices.push_back({rank, offset(head - theirs.first), offset(head - own.first), offset(end - head),
                      2 * static_cast<std::size_t>(layout.layers), offset(theirs.count), offset(own.count)});
    head = end;
  }
  // Ids and the draft layer's row are the same on all ranks.
  if (layout.rest_bytes > 0) {
    slices.push_back(
        {slices.front().rank, heads_bytes(layout, ranks), heads_bytes(layout, to.ranks), layout.rest_bytes});
  }
  return slices;
}

void copy_slice(const KvSlice& slice, const std::byte* from, std::byte* to) {
  for (std::size_t row = 0; row < slice.rows; ++row) {
    std::memcpy(to + slice.to + row * slice.to_pitch, from + slice.from + row * slice.from_pitch,
                slice.bytes);
  }
}

}  // namespace troupe::model
