#include "model/vision/tower_memory.h"

#include <algorithm>
#include <cmath>

#include "base/patch_grid.h"
#include "kernels/matrix.h"
#include "kernels/normalise_patches.h"

namespace troupe::model {

kernels::FrameAttention frame_attention_of(const VisionSpec& spec, DType dtype, int rows) {
  return {.dtype = dtype,
          .rows = rows,
          .heads = spec.heads,
          .head_dim = spec.head_dim(),
          .scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim()))};
}

std::size_t tower_inbox_bytes(int hidden, DType dtype, int frame_patches, std::size_t packed, int ranks) {
  const auto tokens = static_cast<std::size_t>(frame_patches / (kMergeSide * kMergeSide));
  const std::size_t embeddings = static_cast<std::size_t>(ranks) * tokens *
                                 static_cast<std::size_t>(kernels::padded(hidden)) * size_of(dtype);
  constexpr std::size_t kUnit = std::size_t{1} << 20;
  return 2 * ((std::max(packed, embeddings) + kUnit - 1) / kUnit * kUnit);
}

TowerMemory TowerMemory::make(const VisionSpec& spec, int hidden, DType dtype, int frame_patches,
                              std::size_t packed, View memory) {
  Arena arena(memory);
  const auto rows = static_cast<std::size_t>(frame_patches), tokens = rows / (kMergeSide * kMergeSide);
  const auto pairs = static_cast<std::size_t>(spec.head_dim() / 2);
  const auto columns = [](int count) { return static_cast<std::size_t>(kernels::padded(count)); };
  const std::size_t merged = tokens * columns(spec.merged_width());
  TowerMemory made;
  made.residual = arena.take<float>(std::max({rows * columns(spec.width), merged, tokens * columns(hidden)}));
  made.x = arena.take_bytes(std::max(rows * columns(spec.width), merged) * size_of(dtype));
  made.wide = arena.take_bytes(
      std::max({rows * columns(kPatchBytes), rows * columns(3 * spec.width),
                rows * columns(spec.intermediate), tokens * columns(kMergeFrames * spec.merged_width())}) *
      size_of(dtype));
  made.spatial = arena.take_bytes(kMergeFrames * merged * size_of(dtype));
  made.rope = arena.take<float>(rows * pairs * 2);
  made.positions = arena.take<std::int32_t>(rows * 2);
  made.pixels = arena.take<std::uint8_t>(rows * kPatchBytes);
  made.frequencies = arena.take<float>(pairs);
  made.axes = arena.take<std::uint8_t>(pairs);
  made.pixel_table = arena.take<float>(kernels::kPixelTable);
  if (packed > 0) made.packed = arena.take_bytes(packed);
  made.bytes = arena.used();
  return made;
}

}  // namespace troupe::model
