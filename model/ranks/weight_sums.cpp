#include "model/ranks/weight_sums.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "model/ranks/rank_memory.h"

namespace troupe::model {
namespace {

constexpr std::size_t kBlock = 4096;

/// The table at the end of the ranks' memory. Place 0 is the build's.
class RankSums : public RankMemory {
 public:
  explicit RankSums(RankMemory memory) : RankMemory(std::move(memory)) {}

  /// False if somebody has left another sum there. Zero means that nobody has left one.
  bool agrees(std::size_t place, std::uint64_t sum) {
    std::byte* const table = reinterpret_cast<std::byte*>(header_) + bytes_ - kRankSumBytes;
    auto& word = reinterpret_cast<std::atomic<std::uint64_t>*>(table)[place];
    const std::uint64_t ours = sum == 0 ? 1 : sum;
    std::uint64_t found = 0;
    return word.compare_exchange_strong(found, ours) || found == ours;
  }
};

/// FNV-1a.
constexpr std::uint64_t kSeed = 0xcbf29ce484222325u;

std::uint64_t add(std::uint64_t hash, const void* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i)
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
  return hash;
}

Result<std::uint64_t> sum_of(const std::string& name, const FileTensor& tensor) {
  std::uint64_t hash = add(kSeed, name.data(), name.size());
  hash = add(hash, &tensor.type, sizeof tensor.type);
  hash = add(hash, tensor.shape.data(), tensor.shape.size() * sizeof tensor.shape[0]);
  std::array<std::byte, kBlock> block;
  const std::size_t size = std::min<std::uint64_t>(kBlock, tensor.bytes);
  tensor.file->read(tensor.offset, block.data(), size);
  hash = add(hash, block.data(), size);
  tensor.file->read(tensor.offset + tensor.bytes - size, block.data(), size);
  hash = add(hash, block.data(), size);
  if (Status s = tensor.file->status(); !s.ok()) return s;
  return hash;
}

std::set<const FileTensor*> tensors_of(const TensorMap& map) {
  std::set<const FileTensor*> found;
  for (const WeightSource& source : map.sources) {
    found.insert({source.tensor, source.scales, source.input_scale, source.wint2.super_scales,
                  source.wint2.code_scales, source.wint2.code_zps});
  }
  return found;
}

}  // namespace

Status compare_with_ranks(int memory_fd, const Shard& shard, const ModelFiles& files,
                          const std::string& build) {
  Result<RankMemory> memory = RankMemory::attach(memory_fd);
  if (!memory) return memory.status();
  RankSums sums(*std::move(memory));
  const std::string rank = "Rank " + std::to_string(shard.rank) + " of " + std::to_string(shard.ranks);
  if (!sums.agrees(0, add(kSeed, build.data(), build.size()))) {
    return invalid(rank +
                   " is of another build than the ranks that came before it; put the program back, or "
                   "restart the whole server.");
  }
  if (!files.checkpoint) return {};
  const Result<TensorMap> map = files.map_of(shard);
  if (!map) return map.status();
  const std::set<const FileTensor*> held = tensors_of(*map);
  // Ranks with files of their own have places of their own.
  const std::size_t room = (kRankSums - 1) / (files.of_rank ? static_cast<std::size_t>(shard.ranks) : 1);
  std::size_t place = 1 + (files.of_rank ? room * static_cast<std::size_t>(shard.rank) : 0);
  const std::size_t end = place + room;
  for (const auto& [name, tensor] : files.checkpoint->tensors()) {
    if (place == end) break;
    const std::size_t its = place++;
    if (!held.contains(&tensor)) continue;
    const Result<std::uint64_t> sum = sum_of(name, tensor);
    if (!sum) return sum.status();
    if (sums.agrees(its, *sum)) continue;
    return invalid(
        rank + " finds other weights in the tensor '" + name + "' of " + tensor.file->path().string() +
        " than have been loaded before; put the files back that the server was started with, or restart the "
        "whole server.");
  }
  return {};
}

}  // namespace troupe::model
