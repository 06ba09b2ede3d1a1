#include <algorithm>

#include "model/ranks/collective.h"

namespace troupe::model {
namespace {

constexpr std::size_t kSlotFloats = RankMeeting::kSlotBytes / sizeof(float);
constexpr int kFloatsPerClaim = 4096;

const float* floats(const std::byte* bytes) { return reinterpret_cast<const float*>(bytes); }

}  // namespace

Result<std::unique_ptr<Collective<Cpu>>> Collective<Cpu>::attach(int fd, const Shard& shard) {
  Result<RankMeeting> meeting = RankMeeting::attach(fd, shard);
  if (!meeting) return meeting.status();
  return std::unique_ptr<Collective>(new Collective(std::move(*meeting)));
}

bool Collective<Cpu>::meet(Cpu& device) {
  return meeting_.meet([&] { device.pool().progressed(); });
}

void Collective<Cpu>::clear(Cpu& device, float* memory, std::size_t count) {
  device.pool().for_each(static_cast<int>(count), 16 * kFloatsPerClaim, [&](int begin, int end, int) {
    std::memset(memory + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

void Collective<Cpu>::all_reduce(Cpu& device, const float* in, float* out, std::size_t count) {
  for (std::size_t at = 0; at < count; at += kSlotFloats) {
    const std::size_t part = std::min(kSlotFloats, count - at);
    std::memcpy(meeting_.mine(), in + at, part * sizeof(float));
    if (!meet(device)) return;
    device.pool().for_each(static_cast<int>(part), kFloatsPerClaim, [&](int begin, int end, int) {
      std::memcpy(out + at + begin, floats(meeting_.message_of(0)) + begin,
                  static_cast<std::size_t>(end - begin) * sizeof(float));
      for (int rank = 1; rank < shard().ranks; ++rank) {
        const float* const add = floats(meeting_.message_of(rank));
        for (int i = begin; i < end; ++i) out[at + static_cast<std::size_t>(i)] += add[i];
      }
    });
  }
}

bool Collective<Cpu>::all_reduce(Cpu& device, const float* in, const kernels::AddRmsNorm& norm) {
  all_reduce(device, in, norm.residual, kernels::numbers_in(norm));
  return false;
}

void Collective<Cpu>::all_gather(Cpu& device, const float* in, std::size_t in_stride, float* out,
                                 std::size_t out_stride, int rows, std::span<const int> first) {
  const auto width = [&](int rank) {
    return static_cast<std::size_t>(first[static_cast<std::size_t>(rank) + 1] -
                                    first[static_cast<std::size_t>(rank)]);
  };
  std::size_t widest = 1;
  for (int rank = 0; rank < shard().ranks; ++rank) widest = std::max(widest, width(rank));
  const int at_once = static_cast<int>(std::max<std::size_t>(1, kSlotFloats / widest));
  TROUPE_CHECK(widest <= kSlotFloats);
  const std::size_t own = width(shard().rank);
  for (int row = 0; row < rows; row += at_once) {
    const int count = std::min(at_once, rows - row);
    auto* const mine = reinterpret_cast<float*>(meeting_.mine());
    for (int i = 0; i < count; ++i) {
      std::memcpy(mine + static_cast<std::size_t>(i) * own,
                  in + static_cast<std::size_t>(row + i) * in_stride, own * sizeof(float));
    }
    if (!meet(device)) return;
    device.pool().for_each(count, 1, [&](int begin, int end, int) {
      for (int i = begin; i < end; ++i) {
        for (int rank = 0; rank < shard().ranks; ++rank) {
          std::memcpy(
              out + static_cast<std::size_t>(row + i) * out_stride + first[static_cast<std::size_t>(rank)],
              floats(meeting_.message_of(rank)) + static_cast<std::size_t>(i) * width(rank),
              width(rank) * sizeof(float));
        }
      }
    });
  }
}

}  // namespace troupe::model
