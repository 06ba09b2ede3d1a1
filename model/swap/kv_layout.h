#pragma once
// What is in a model's KV block, whatever the number of ranks that its heads are divided among: enough to
// find the parts of one instance's blocks in those of another, without the model.
#include <cstddef>
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "model/swap/kv_slices.h"

namespace troupe::model {

/// In each layer a block has the keys of all heads, then their values: pieces of one size.
struct KvLayout {
  int layers = 0;
  int kv_heads = 0;             ///< of the model
  std::size_t piece_bytes = 0;  ///< keys or values of one head in one layer
  std::size_t rest_bytes = 0;   ///< behind all layers, the same on every rank

  /// Of a block of each rank when `ranks` ranks, a number that divides_kv_heads(), hold the model.
  std::size_t block_bytes(int ranks) const;

  bool operator==(const KvLayout&) const = default;
};

KvLayout layout_of(const KvPart& part);

/// That of the model of these options on their device, which is `cpu` or `cuda`. Reads headers only.
Result<KvLayout> kv_layout_of(const config::Options& options);

/// As kv_slices() of a part, for the rank `to` of an instance with this layout.
std::vector<KvSlice> kv_slices(const KvLayout& layout, const Shard& to, int ranks);

}  // namespace troupe::model
