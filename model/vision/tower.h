#pragma once
// The vision tower and the resampler of ERNIE-4.5-VL: pixels of an image or a video to the embeddings of its
// tokens.
//
//   h = P · normalised patch                                                      per frame, (patches, width)
//   for every block:  h += Wo · attention(rope(Wqkv · norm1(h)))                  all patches of the frame
//                     h += W2 · quick_gelu(W1 · norm2(h))
//   s = norm(W2s · gelu(W1s · [four neighbours of norm(h)]))                      (patches / 4, 4 · width)
//   z = norm(W2t · gelu(W1t · [s of a frame, s of the next]))                     an image's frame stands for
//   both embedding = rms_norm(Wm · z)                                                  (tokens, hidden)
//
// Norms and sums are fp32, inputs of products have the model's dtype. Frames meet in the resampler alone, so
// memory is that of one frame.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "base/patch_grid.h"
#include "base/status.h"
#include "gpu/buffer.h"
#include "kernels/linear_bias.h"
#include "model/vision/tower_memory.h"
#include "model/vision/vision_weights.h"

namespace troupe::model {

/// For one thread. Device and weights outlive it. Items are encoded one after the other, each in pieces of a
/// layer of a frame, or of some of its queries, between which steps of the decoder may run. On a GPU a piece
/// is given to the device's stream, and nothing waits for it.
template <Device D>
class VisionTower {
 public:
  /// `hidden`, `eps`: the decoder's width and its norms' epsilon. `frame_patches`: of the largest frame;
  /// memory for it is taken once.
  static Result<VisionTower> make(D& device, const VisionSpec& spec, int hidden, float eps, DType dtype,
                                  const VisionWeights& weights, int frame_patches);

  /// Begins an item, and gives up one that has not ended. `patches`: host memory, kPatchBytes for each of the
  /// grid's. `out`: device memory for the grid's tokens in rows of padded(hidden) of dtype. Both stay until
  /// advance() has returned false. invalid_argument if the grid does not fit the kind of an item, is larger
  /// than make() allowed, or has another number of patches.
  Status begin(MediaKind kind, const PatchGrid& grid, std::span<const std::uint8_t> patches, void* out);

  /// Runs the next piece; false if it was the last, or there is none.
  bool advance();
  /// True if the next piece begins a frame, for which it uploads the patches.
  bool begins_frame() const { return layer_ == 0 && query_ == 0; }
  /// Useful multiplications and additions of the piece that ran last.
  double operations() const { return operations_; }
  /// From the next begin() on the attention of a piece has about so many at most. Infinite at first.
  void limit_attention(double operations) { most_attention_ = operations; }

  /// The tower's output for the frame that has just ended, (patches, padded(width)) of dtype: what tests
  /// compare. Valid when the piece that ended the last block has run and no other since.
  const void* frame_output() const { return memory_.x; }
  bool frame_has_ended() const { return frame_has_ended_; }

  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  VisionTower(D& device, const VisionSpec& spec, int hidden, float eps, DType dtype,
              const VisionWeights& weights, int frame_patches)
      : device_(&device),
        spec_(spec),
        hidden_(hidden),
        eps_(eps),
        dtype_(dtype),
        weights_(&weights),
        frame_patches_(frame_patches) {}

  void begin_frame();
  void run_blocks();
  void begin_block(const TowerBlock& block);
  void attend(int first, int count);
  void end_block(const TowerBlock& block);
  void norm(const NormWeights& weights);
  void product(const BiasedMatrix& matrix, const void* x, kernels::BiasEnding ending);
  void end_frame();
  void merge_frames();
  void merge(const MergeWeights& weights, int rows, void* out);
  void count_product(const kernels::Matrix& weight, int rows) {
    operations_ += 2.0 * rows * weight.inputs * weight.outputs;
  }
  int frame_rows() const { return grid_.rows * grid_.columns; }
  int frame_tokens() const { return frame_rows() / kTokenPatches; }
  std::size_t row_bytes(int columns) const {
    return static_cast<std::size_t>(kernels::padded(columns)) * size_of(dtype_);
  }
  std::byte* spatial(int frame) const;

  D* device_;
  VisionSpec spec_;
  int hidden_;
  float eps_;
  DType dtype_;
  const VisionWeights* weights_;
  int frame_patches_;

  Buffer<D> buffer_;
  TowerMemory memory_;

  // The item that is being encoded.
  MediaKind kind_{};
  PatchGrid grid_{};
  std::span<const std::uint8_t> patches_;
  void* out_ = nullptr;
  int frame_ = 0;
  int layer_ = 0;    // next piece of the frame: 0 … depth - 1 are blocks
  int query_ = 0;    // of the layer, the first of the next piece
  int queries_ = 0;  // of a piece, at most
  double most_attention_ = std::numeric_limits<double>::infinity();
  double operations_ = 0;
  bool frame_has_ended_ = false;
};

}  // namespace troupe::model
