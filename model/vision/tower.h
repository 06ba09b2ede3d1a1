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
//
// Several ranks may encode an item together (item_cut.h). They exchange keys and values of each block, or
// embeddings, by writing into each other's inboxes, and no device waits for another: a rank runs a piece when
// its host knows that what the piece reads has come.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "base/patch_grid.h"
#include "base/status.h"
#include "gpu/buffer.h"
#include "kernels/linear_bias.h"
#include "model/vision/item_cut.h"
#include "model/vision/tower_memory.h"
#include "model/vision/vision_weights.h"

namespace troupe::model {

/// The ranks that encode an item together.
struct TowerRanks {
  int rank = 0;
  /// By rank, as this rank's device reaches them: tower_inbox_bytes() each. They outlive the encoding.
  std::span<std::byte* const> inboxes;
  std::size_t inbox_bytes = 0;
  int least_rows = kLeastRowsOfARank;
};

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
  /// than make() allowed, or has another number of patches. `ranks`: that begin it all, and have ended the
  /// pieces of what they encoded before; if there are several and cut_of() says so, each makes a part.
  Status begin(MediaKind kind, const PatchGrid& grid, std::span<const std::uint8_t> patches, void* out,
               const TowerRanks& ranks = {});

  /// Runs the next piece; false if it was the last, or there is none. All other ranks must have ended the
  /// pieces that made their exchanges() as many as this rank's.
  bool advance();
  /// How often this rank has sent a part of the item to the others.
  int exchanges() const { return exchanges_; }
  /// True if the next piece begins a frame, for which it uploads the patches.
  bool begins_frame() const { return layer_ == 0 && !packed_ && !collects_; }
  /// Useful multiplications and additions of the piece that ran last.
  double operations() const { return operations_; }
  /// From the next begin() on the attention of a piece has about so many at most. Infinite at first.
  void limit_attention(double operations) { most_attention_ = operations; }

  /// The tower's output for the frame that has just ended, (patches, padded(width)) of dtype: what tests
  /// compare. Valid when the piece that ended the last block has run and no other since. Of a frame whose
  /// rows are cut, this rank's.
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
  bool next_frame();
  void send(int to, const std::byte* from, const kernels::MemoryLines& lines);
  void send_keys_and_values(const kernels::FrameAttention& frame);
  void send_embeddings();
  void collect_embeddings();
  void merge(const MergeWeights& weights, int rows, void* out);
  void count_product(const kernels::Matrix& weight, int rows) {
    operations_ += 2.0 * rows * weight.inputs * weight.outputs;
  }
  int frame_rows() const { return grid_.rows * grid_.columns; }
  int frame_tokens() const { return frame_rows() / kTokenPatches; }
  int own_tokens() const { return own_.count / kTokenPatches; }
  int ranks() const { return static_cast<int>(ranks_.inboxes.size()); }
  std::byte* embedding(int token) const {
    return static_cast<std::byte*>(out_) + static_cast<std::size_t>(token) * row_bytes(hidden_);
  }
  // Embeddings that are exchanged together: the item's token with which they begin, and a rank's among them.
  int exchanged_from() const;
  kernels::MemoryLines embeddings_of(int rank) const;
  // Where exchange `number` is in a rank's inbox: two take turns. A rank that sends one has read the one
  // before the last, as all have sent the last.
  std::byte* inbox(int rank, int number) const {
    const std::size_t half = ranks_.inbox_bytes / 2;
    return ranks_.inboxes[static_cast<std::size_t>(rank)] + static_cast<std::size_t>(number % 2) * half;
  }
  // FrameAttention::packed of this frame and layer.
  void* packed() const;
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
  TowerRanks ranks_;
  ItemCut cut_ = ItemCut::whole;
  RowRange own_;  // of a frame's rows
  int frame_ = 0;
  int layer_ = 0;        // next piece of the frame: 0 … depth - 1 are blocks
  bool packed_ = false;  // the layer's queries, keys and values are
  int query_ = 0;        // of the layer, the first of the next piece among this rank's
  int queries_ = 0;      // of a piece, at most
  double most_attention_ = std::numeric_limits<double>::infinity();
  double operations_ = 0;
  int exchanges_ = 0;
  bool collects_ = false;  // the next piece reads the embeddings that other ranks have sent
  bool frame_has_ended_ = false;
};

}  // namespace troupe::model
