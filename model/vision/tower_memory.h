#pragma once
// Working memory of a vision tower.
#include <cstddef>
#include <cstdint>

#include "gpu/buffer.h"
#include "gpu/dtype.h"
#include "kernels/frame_attention.h"
#include "model/checkpoint/vision_spec.h"

namespace troupe::model {

/// For one frame; columns are padded, and what they hold there is zero.
struct TowerMemory {
  float* residual = nullptr;  ///< (patches, width), and the sums of what merges a frame's patches
  void* x = nullptr;          ///< (patches, width) of dtype, and a merge's activations
  void* wide = nullptr;  ///< (patches, …): pixels, queries with keys and values, activations, joined rows
  void* spatial = nullptr;            ///< (frames of a token · patches / 4, merged width) of dtype
  float* rope = nullptr;              ///< (patches, head_dim / 2, 2)
  std::int32_t* positions = nullptr;  ///< (patches, 2) row and column
  std::uint8_t* pixels = nullptr;     ///< (patches, kPatchBytes)
  float* frequencies = nullptr;       ///< (head_dim / 2), constant
  std::uint8_t* axes = nullptr;       ///< (head_dim / 2), constant
  float* pixel_table = nullptr;       ///< kernels::kPixelTable, constant
  void* packed = nullptr;             ///< FrameAttention::packed; null where `wide` is packed in place
  std::size_t bytes = 0;  ///< all of the above; correct even if they were laid out in an empty View

  /// `hidden` is the decoder's width. `packed`: kernels::packed_bytes() of frame_attention_of(), or 0 where
  /// the device packs in place.
  static TowerMemory make(const VisionSpec& spec, int hidden, DType dtype, int frame_patches,
                          std::size_t packed, View memory);
};

/// What other ranks write to a rank's memory while they encode an item together, at most: of two exchanges,
/// which is kernels::packed_bytes() of the largest frame or the embeddings that all make at a time.
std::size_t tower_inbox_bytes(int hidden, DType dtype, int frame_patches, std::size_t packed, int ranks);

/// The attention of a frame without its memory.
kernels::FrameAttention frame_attention_of(const VisionSpec& spec, DType dtype, int rows);

}  // namespace troupe::model
