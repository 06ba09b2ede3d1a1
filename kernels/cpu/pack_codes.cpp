// Pack of a source that is quantised already: codes and scales go to their places as they are.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/pack_quantised.h"
#include "kernels/cpu/quantiser.h"

namespace troupe::kernels {
namespace {

constexpr int kCodeRowsPerClaim = 32;

/// A thread's working memory for one output.
struct CodeBuffers {
  std::byte* packed = nullptr;
  std::byte* scales = nullptr;
  std::int8_t* codes = nullptr;
};

class Codes {
 public:
  explicit Codes(const Pack& op)
      : op_(op),
        bits_(op.into.format.bits()),
        packed_bytes_((static_cast<std::size_t>(op.into.inputs) * static_cast<std::size_t>(bits_) + 7) / 8),
        width_(static_cast<std::size_t>(padded_inputs(op.into.format, op.into.inputs))),
        groups_(op.into.format.group == 0
                    ? 1
                    : (op.into.inputs + op.into.format.group - 1) / op.into.format.group),
        scale_bytes_(static_cast<std::size_t>(groups_) * size_of(op.scales.dtype)) {}

  std::size_t lane_bytes() const { return width_ + packed_bytes_ + scale_bytes_ + 2 * kAlign; }

  CodeBuffers lane(void* memory) const {
    auto* at = static_cast<std::byte*>(memory);
    std::byte* packed = at + rounded(scale_bytes_);
    return {packed, at, reinterpret_cast<std::int8_t*>(packed + rounded(packed_bytes_))};
  }

  void put(int row, const CodeBuffers& lane) const {
    const auto r = static_cast<std::uint64_t>(row);
    const int output = placed_output(op_.place, op_.first, row);
    op_.file->read(op_.offset + r * static_cast<std::uint64_t>(op_.source_stride) *
                                    static_cast<std::uint64_t>(bits_) / 8,
                   lane.packed, packed_bytes_);
    unpack(lane);
    place_codes(op_.into, output, lane.codes);
    const DType type = op_.scales.dtype;
    op_.scales.file->read(
        op_.scales.offset + r * static_cast<std::uint64_t>(op_.scales.stride) * size_of(type), lane.scales,
        scale_bytes_);
    for (int group = 0; group < groups_; ++group) {
      const float scale = load_element(lane.scales, type, static_cast<std::size_t>(group));
      place_scale(op_.into, output, group,
                  std::isfinite(scale) ? scale : std::numeric_limits<float>::quiet_NaN());
    }
  }

 private:
  static constexpr std::size_t kAlign = 16;
  static std::size_t rounded(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  void unpack(const CodeBuffers& lane) const {
    const auto inputs = static_cast<std::size_t>(op_.into.inputs);
    if (bits_ == 8) {
      for (std::size_t i = 0; i < inputs; ++i)
        lane.codes[i] = static_cast<std::int8_t>(int(lane.packed[i]) - 128);
    } else {
      for (std::size_t i = 0; i < inputs; ++i) {
        const int both = int(lane.packed[i / 2]);
        lane.codes[i] = static_cast<std::int8_t>((i % 2 == 0 ? both & 15 : both >> 4) - 8);
      }
    }
    std::memset(lane.codes + inputs, 0, width_ - inputs);
  }

  const Pack& op_;
  const int bits_;
  const std::size_t packed_bytes_, width_;
  const int groups_;
  const std::size_t scale_bytes_;
};

}  // namespace

void pack_codes(Cpu& device, const Pack& op) {
  TROUPE_CHECK(op.file != nullptr && !op.transposed && op.source_stride > 0);
  const Codes codes(op);
  device.reserve_lanes(codes.lane_bytes());
  device.pool().for_each(op.outputs, kCodeRowsPerClaim, [&](int begin, int end, int index) {
    const CodeBuffers lane = codes.lane(device.lane(index));
    for (int row = begin; row < end; ++row) codes.put(row, lane);
  });
}

}  // namespace troupe::kernels
