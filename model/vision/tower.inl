#pragma once
// VisionTower<D>. Included where a device's tower is instantiated.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/add_rms_norm.h"
#include "kernels/frame_attention.h"
#include "kernels/join_rows.h"
#include "kernels/layer_norm.h"
#include "kernels/linear_bias.h"
#include "kernels/normalise_patches.h"
#include "kernels/rope_table.h"
#include "model/vision/tower.h"

namespace troupe::model {

using kernels::BiasEnding;

/// Copies to the same places of another rank's memory.
void copy_lines(Cpu& device, std::byte* to, const std::byte* from, const kernels::MemoryLines& lines);
void copy_lines(Cuda& device, std::byte* to, const std::byte* from, const kernels::MemoryLines& lines);

template <Device D>
Result<VisionTower<D>> VisionTower<D>::make(D& device, const VisionSpec& spec, int hidden, float eps,
                                            DType dtype, const VisionWeights& weights, int frame_patches) {
  VisionTower made(device, spec, hidden, eps, dtype, weights, frame_patches);
  const kernels::FrameAttention largest = frame_attention_of(spec, dtype, frame_patches);
  const std::size_t packed = packs_in_place(device, largest) ? 0 : packed_bytes(device, largest);
  const std::size_t bytes = TowerMemory::make(spec, hidden, dtype, frame_patches, packed, {}).bytes;
  Result<Buffer<D>> memory = Buffer<D>::make(device, bytes, "the vision tower");
  if (!memory) return memory.status();
  made.buffer_ = std::move(*memory);
  made.memory_ = TowerMemory::make(spec, hidden, dtype, frame_patches, packed, made.buffer_.view());

  // Pairs of a head turn by the row first, then by the column, both with the same frequencies.
  const auto pairs = static_cast<std::size_t>(spec.head_dim() / 2), half = pairs / 2;
  std::vector<float> frequencies(pairs), table(kernels::kPixelTable);
  std::vector<std::uint8_t> axes(pairs);
  kernels::rope_inverse_frequencies(frequencies.data(), static_cast<int>(pairs), kTowerRopeTheta);
  std::copy_n(frequencies.begin(), half, frequencies.begin() + static_cast<std::ptrdiff_t>(half));
  std::fill(axes.begin() + static_cast<std::ptrdiff_t>(half), axes.end(), std::uint8_t{1});
  kernels::fill_pixel_table(table.data());
  device.upload(made.memory_.frequencies, frequencies.data(), pairs * sizeof(float));
  device.upload(made.memory_.axes, axes.data(), pairs);
  device.upload(made.memory_.pixel_table, table.data(), table.size() * sizeof(float));
  device.sync();
  return made;
}

template <Device D>
Status VisionTower<D>::begin(MediaKind kind, const PatchGrid& grid, std::span<const std::uint8_t> patches,
                             void* out, const TowerRanks& ranks) {
  const auto even = [](std::int32_t n, int unit) { return n >= unit && n % unit == 0; };
  const bool frames = kind == MediaKind::image ? grid.frames == 1 : even(grid.frames, kMergeFrames);
  const std::string text = std::to_string(grid.frames) + " × " + std::to_string(grid.rows) + " × " +
                           std::to_string(grid.columns) + " patches";
  if (!frames || !even(grid.rows, kMergeSide) || !even(grid.columns, kMergeSide)) {
    return invalid("An item has " + text + "; allowed are one frame of an image, an even number of a video, and " +
                   "even numbers of rows and columns.");
  }
  if (std::int64_t{grid.rows} * grid.columns > frame_patches_) {
    return invalid("An item has " + text + "; a frame may have " + std::to_string(frame_patches_) + ".");
  }
  if (patches.size() != static_cast<std::size_t>(grid.patches()) * kPatchBytes) {
    return invalid("An item of " + text + " came with " + std::to_string(patches.size()) + " bytes; it has " +
                   std::to_string(grid.patches() * kPatchBytes) + ".");
  }
  kind_ = kind;
  grid_ = grid;
  patches_ = patches;
  out_ = out;
  ranks_ = ranks;
  cut_ = cut_of(grid, this->ranks(), ranks.least_rows);
  own_ = cut_ == ItemCut::rows ? rows_of_rank(frame_rows(), ranks.rank, this->ranks())
                               : RowRange{0, frame_rows()};
  frame_ = cut_ == ItemCut::frames ? kMergeFrames * ranks.rank : 0;
  layer_ = query_ = exchanges_ = 0;
  packed_ = collects_ = false;
  const double of_query = 4.0 * frame_rows() * spec_.width;
  queries_ = own_.count;
  if (most_attention_ < of_query * queries_) {
    const int units = static_cast<int>(most_attention_ / (of_query * kernels::kFrameQueries));
    queries_ = std::max(units, 1) * kernels::kFrameQueries;
  }

  // All frames have the same positions, in the order in which patches lie.
  std::vector<std::int32_t> positions;
  positions.reserve(static_cast<std::size_t>(frame_rows()) * 2);
  for (int row = 0; row < grid.rows; row += kMergeSide) {
    for (int column = 0; column < grid.columns; column += kMergeSide) {
      for (int inner = 0; inner < kTokenPatches; ++inner) {
        positions.push_back(row + inner / kMergeSide);
        positions.push_back(column + inner % kMergeSide);
      }
    }
  }
  device_->upload(memory_.positions, positions.data() + 2 * static_cast<std::size_t>(own_.first),
                  2 * static_cast<std::size_t>(own_.count) * sizeof(std::int32_t));
  device_->sync();
  run(*device_, kernels::RopeTable{.out = memory_.rope,
                                   .positions = memory_.positions,
                                   .inverse_frequencies = memory_.frequencies,
                                   .axis = memory_.axes,
                                   .axes = 2,
                                   .rows = own_.count,
                                   .head_dim = spec_.head_dim()});
  return {};
}

template <Device D>
bool VisionTower<D>::advance() {
  frame_has_ended_ = false;
  operations_ = 0;
  if (frame_ >= grid_.frames && !collects_) return false;
  if (collects_) {
    collect_embeddings();
    collects_ = false;
    return next_frame();
  }
  if (layer_ < spec_.depth) {
    run_blocks();
    return true;
  }
  end_frame();
  layer_ = 0;
  const bool has_embeddings = kind_ == MediaKind::image || frame_ % kMergeFrames == kMergeFrames - 1;
  if (has_embeddings) merge_frames();
  if (!has_embeddings || cut_ == ItemCut::whole) return ++frame_ < grid_.frames;
  send_embeddings();
  collects_ = true;
  return true;
}

/// Behind an exchange of embeddings. A rank without a pair among the last ones takes part in their exchange.
template <Device D>
bool VisionTower<D>::next_frame() {
  if (cut_ == ItemCut::rows) return ++frame_ < grid_.frames;
  const int next_round = (exchanged_from() / frame_tokens() + ranks()) * kMergeFrames;
  frame_ = next_round + kMergeFrames * ranks_.rank;
  if (next_round >= grid_.frames) return false;
  if (frame_ >= grid_.frames) {
    ++exchanges_;
    collects_ = true;
  }
  return true;
}

template <Device D>
void VisionTower<D>::run_blocks() {
  if (!packed_) {  // a frame's first piece
    begin_frame();
    begin_block(weights_->blocks.front());
    if (cut_ == ItemCut::rows) return;  // the attention waits for the other ranks' keys and values
  }
  const int count = std::min(queries_, own_.count - query_);
  attend(query_, count);
  query_ += count;
  if (query_ < own_.count) return;
  query_ = 0;
  end_block(weights_->blocks[static_cast<std::size_t>(layer_)]);
  if (++layer_ < spec_.depth) return begin_block(weights_->blocks[static_cast<std::size_t>(layer_)]);
  packed_ = false;
  norm(weights_->norm);
  frame_has_ended_ = true;
}

template <Device D>
void VisionTower<D>::begin_frame() {
  count_product(weights_->patch, own_.count);
  const std::size_t first = static_cast<std::size_t>(frame_) * static_cast<std::size_t>(frame_rows()) +
                            static_cast<std::size_t>(own_.first);
  device_->upload(memory_.pixels, patches_.data() + first * kPatchBytes,
                  static_cast<std::size_t>(own_.count) * kPatchBytes);
  run(*device_, kernels::NormalisePatches{.out = memory_.wide,
                                          .patches = memory_.pixels,
                                          .table = memory_.pixel_table,
                                          .dtype = dtype_,
                                          .rows = own_.count});
  run(*device_, kernels::LinearBias{.sum = memory_.residual,
                                    .x = memory_.wide,
                                    .weight = weights_->patch,
                                    .rows = own_.count,
                                    .ending = BiasEnding::set});
}

template <Device D>
void VisionTower<D>::norm(const NormWeights& weights) {
  run(*device_, kernels::LayerNorm{.out = memory_.x,
                                   .x = memory_.residual,
                                   .weight = weights.weight,
                                   .bias = weights.bias,
                                   .dtype = dtype_,
                                   .rows = own_.count,
                                   .cols = spec_.width,
                                   .eps = kTowerEps});
}

template <Device D>
void VisionTower<D>::product(const BiasedMatrix& matrix, const void* x, BiasEnding ending) {
  count_product(matrix.weight, own_.count);
  run(*device_, kernels::LinearBias{.out = memory_.wide,
                                    .sum = memory_.residual,
                                    .x = x,
                                    .weight = matrix.weight,
                                    .bias = matrix.bias,
                                    .rows = own_.count,
                                    .ending = ending});
}

template <Device D>
void VisionTower<D>::begin_block(const TowerBlock& block) {
  norm(block.norm1);
  product(block.qkv, memory_.x, BiasEnding::store);
  if (cut_ == ItemCut::rows) ++exchanges_;
  const kernels::FrameAttention frame = frame_attention_of(spec_, dtype_, frame_rows());
  run(*device_, kernels::PackFrame{.packed = packed(),
                                   .qkv = memory_.wide,
                                   .rope = memory_.rope,
                                   .dtype = dtype_,
                                   .rows = frame.rows,
                                   .heads = frame.heads,
                                   .head_dim = frame.head_dim,
                                   .first = own_.first,
                                   .count = own_.count});
  packed_ = true;
  if (cut_ == ItemCut::rows) send_keys_and_values(frame);
}

template <Device D>
void* VisionTower<D>::packed() const {
  if (cut_ == ItemCut::rows) return inbox(ranks_.rank, exchanges_);
  return memory_.packed != nullptr ? memory_.packed : memory_.wide;
}

template <Device D>
void VisionTower<D>::attend(int first, int count) {
  kernels::FrameAttention op = frame_attention_of(spec_, dtype_, frame_rows());
  op.out = static_cast<std::byte*>(memory_.x) + static_cast<std::size_t>(first) * row_bytes(spec_.width);
  op.packed = packed();
  op.first = own_.first + first;
  op.count = count;
  operations_ += 4.0 * count * frame_rows() * spec_.width;
  run(*device_, op);
}

template <Device D>
void VisionTower<D>::end_block(const TowerBlock& block) {
  product(block.out, memory_.x, BiasEnding::add);
  norm(block.norm2);
  product(block.fc1, memory_.x, BiasEnding::quick_gelu);
  product(block.fc2, memory_.wide, BiasEnding::add);
}

template <Device D>
std::byte* VisionTower<D>::spatial(int frame) const {
  const std::size_t rows = static_cast<std::size_t>(frame % kMergeFrames) * static_cast<std::size_t>(own_tokens());
  return static_cast<std::byte*>(memory_.spatial) + rows * row_bytes(spec_.merged_width());
}

/// What `memory_.wide` holds goes through two linears and a norm to `out`.
template <Device D>
void VisionTower<D>::merge(const MergeWeights& weights, int rows, void* out) {
  count_product(weights.fc1.weight, rows);
  count_product(weights.fc2.weight, rows);
  run(*device_, kernels::LinearBias{.out = memory_.x,
                                    .x = memory_.wide,
                                    .weight = weights.fc1.weight,
                                    .bias = weights.fc1.bias,
                                    .rows = rows,
                                    .ending = BiasEnding::gelu});
  run(*device_, kernels::LinearBias{.sum = memory_.residual,
                                    .x = memory_.x,
                                    .weight = weights.fc2.weight,
                                    .bias = weights.fc2.bias,
                                    .rows = rows,
                                    .ending = BiasEnding::set});
  run(*device_, kernels::LayerNorm{.out = out,
                                   .x = memory_.residual,
                                   .weight = weights.norm.weight,
                                   .bias = weights.norm.bias,
                                   .dtype = dtype_,
                                   .rows = rows,
                                   .cols = spec_.merged_width(),
                                   .eps = kTowerEps});
}

template <Device D>
void VisionTower<D>::end_frame() {
  const int rows = own_tokens();
  run(*device_,
      kernels::JoinRows{
          .out = memory_.wide, .x = memory_.x, .dtype = dtype_, .rows = rows, .cols = spec_.width, .parts = kTokenPatches, .step = kTokenPatches, .stride = 1});
  merge(weights_->spatial, rows, spatial(frame_));
}

template <Device D>
void VisionTower<D>::merge_frames() {
  const int rows = own_tokens();
  run(*device_, kernels::JoinRows{.out = memory_.wide,
                                  .x = memory_.spatial,
                                  .dtype = dtype_,
                                  .rows = rows,
                                  .cols = spec_.merged_width(),
                                  .parts = kMergeFrames,
                                  .step = 1,
                                  .stride = kind_ == MediaKind::image ? 0 : rows});
  merge(weights_->temporal, rows, memory_.wide);
  count_product(weights_->project.weight, rows);
  run(*device_, kernels::LinearBias{.sum = memory_.residual,
                                    .x = memory_.wide,
                                    .weight = weights_->project.weight,
                                    .bias = weights_->project.bias,
                                    .rows = rows,
                                    .ending = BiasEnding::set});
  const int done = frame_ / kMergeFrames * frame_tokens() + own_.first / kTokenPatches;
  run(*device_, kernels::AddRmsNorm{.out = embedding(done),
                                    .residual = memory_.residual,
                                    .weight = weights_->after_norm,
                                    .dtype = dtype_,
                                    .rows = rows,
                                    .cols = hidden_,
                                    .eps = eps_});
}

// ---- Exchanges between ranks

template <Device D>
void VisionTower<D>::send(int to, const std::byte* from, const kernels::MemoryLines& lines) {
  if (lines.bytes > 0) copy_lines(*device_, inbox(to, exchanges_) + lines.offset, from, lines);
}

template <Device D>
void VisionTower<D>::send_keys_and_values(const kernels::FrameAttention& frame) {
  const kernels::MemoryLines own = keys_and_values(*device_, frame, own_.first, own_.count);
  for (int other = 1; other < ranks(); ++other)
    send((ranks_.rank + other) % ranks(), static_cast<const std::byte*>(packed()) + own.offset, own);
}

template <Device D>
int VisionTower<D>::exchanged_from() const {
  const int pair = frame_ / kMergeFrames;
  return (cut_ == ItemCut::frames ? pair - ranks_.rank : pair) * frame_tokens();
}

template <Device D>
kernels::MemoryLines VisionTower<D>::embeddings_of(int rank) const {
  RowRange tokens{rank * frame_tokens(), frame_tokens()};
  if (cut_ == ItemCut::rows) {
    const RowRange rows = rows_of_rank(frame_rows(), rank, ranks());
    tokens = {rows.first / kTokenPatches, rows.count / kTokenPatches};
  } else if (exchanged_from() / frame_tokens() + rank >= grid_.frames / kMergeFrames) {
    tokens.count = 0;  // there are fewer pairs left than ranks
  }
  const std::size_t row = row_bytes(hidden_);
  return {.offset = static_cast<std::size_t>(tokens.first) * row,
          .bytes = static_cast<std::size_t>(tokens.count) * row,
          .stride = static_cast<std::size_t>(tokens.count) * row,
          .count = 1};
}

template <Device D>
void VisionTower<D>::send_embeddings() {
  ++exchanges_;
  const kernels::MemoryLines own = embeddings_of(ranks_.rank);
  for (int other = 1; other < ranks(); ++other)
    send((ranks_.rank + other) % ranks(), embedding(exchanged_from()) + own.offset, own);
}

template <Device D>
void VisionTower<D>::collect_embeddings() {
  for (int other = 1; other < ranks(); ++other) {
    const kernels::MemoryLines lines = embeddings_of((ranks_.rank + other) % ranks());
    if (lines.bytes == 0) continue;
    copy_lines(*device_, embedding(exchanged_from()) + lines.offset,
               inbox(ranks_.rank, exchanges_) + lines.offset, lines);
  }
}

}  // namespace troupe::model
