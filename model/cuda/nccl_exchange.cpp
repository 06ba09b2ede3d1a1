#include "model/cuda/nccl_exchange.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace troupe::model {
namespace {

constexpr std::size_t kMostGathered = std::size_t{2} << 20;  // floats of a rank in one call

}  // namespace

NcclExchange::NcclExchange(Cuda& device, const Shard& shard, bool shares_gpu)
    : device_(device), shard_(shard) {
  set_nccl_defaults(shares_gpu ? "rank-" + std::to_string(shard.rank) : std::string());
  const std::size_t bytes = (static_cast<std::size_t>(shard.ranks) + 1) * kMostGathered * sizeof(float);
  Result<Buffer<Cuda>> columns = Buffer<Cuda>::make(device, bytes, "columns of all ranks");
  if (!columns) throw CudaError(columns.status().message);
  columns_ = std::move(*columns);
}

void NcclExchange::tell(std::byte* to) const {
  if (shard_.rank > 0) return;
  const NcclId id = NcclGroup::make_id();
  std::memcpy(to, id.data(), id.size());
}

Status NcclExchange::connect(const std::function<const std::byte*(int)>& message_of) {
  NcclId id;
  std::memcpy(id.data(), message_of(0), id.size());
  group_.emplace(device_, id, shard_.rank, shard_.ranks);
  return {};
}

void NcclExchange::disconnect() {
  if (group_ && !group_->settled()) throw CudaError("another rank has gone while NCCL looked for it");
  group_.reset();
}

void NcclExchange::all_reduce(float* in, float* out, std::size_t count) {
  if (group_) {
    group_->sum(in, out, count);
  } else if (in != out) {
    device_.copy(out, in, count * sizeof(float));
  }
  if (in != out) device_.zero(in, count * sizeof(float));
}

bool NcclExchange::all_reduce(float* in, const kernels::AddRmsNorm& norm) {
  all_reduce(in, norm.residual, kernels::numbers_in(norm));
  return false;
}

void NcclExchange::all_gather(const float* in, std::size_t in_stride, float* out, std::size_t out_stride,
                              int rows, std::span<const int> first) {
  TROUPE_CHECK(first.size() == static_cast<std::size_t>(shard_.ranks) + 1);
  const auto columns = [&](int rank) {
    return static_cast<std::size_t>(first[static_cast<std::size_t>(rank) + 1] -
                                    first[static_cast<std::size_t>(rank)]);
  };
  std::size_t widest = 0;
  for (int rank = 0; rank < shard_.ranks; ++rank) widest = std::max(widest, columns(rank));
  TROUPE_CHECK(widest > 0 && widest <= kMostGathered);
  auto* const all = reinterpret_cast<float*>(columns_.data());
  float* const own = all + static_cast<std::size_t>(shard_.ranks) * kMostGathered;
  const auto at_once = static_cast<int>(kMostGathered / widest);
  constexpr std::size_t kFloat = sizeof(float);
  for (int row = 0; row < rows; row += at_once) {
    const auto count = static_cast<std::size_t>(std::min(at_once, rows - row));
    const float* const from = in + static_cast<std::size_t>(row) * in_stride;
    float* const to = out + static_cast<std::size_t>(row) * out_stride;
    device_.copy_rows(own, widest * kFloat, from, in_stride * kFloat, columns(shard_.rank) * kFloat, count);
    if (group_) group_->gather(own, all, count * widest);
    for (int rank = 0; rank < shard_.ranks; ++rank) {
      if (!group_ && rank != shard_.rank) continue;
      const float* const part = group_ ? all + static_cast<std::size_t>(rank) * count * widest : own;
      device_.copy_rows(to + first[static_cast<std::size_t>(rank)], out_stride * kFloat, part,
                        widest * kFloat, columns(rank) * kFloat, count);
    }
  }
}

}  // namespace troupe::model
