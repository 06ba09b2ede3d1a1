#pragma once
// A small model that sees: its tower, its decoder and what it makes of the prompts of vision_golden.h. The
// same on all devices.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "gpu/cpu.h"
#include "model/ranks/part.h"
#include "model/support/vision_golden.h"
#include "model/vision/tower.h"

namespace troupe::model::test {

inline constexpr int kFramePatches = 24;  // of the largest frame among the prompts

/// A model with its tower, and encoded items.
template <Device D>
class VisionModelOn {
 public:
  /// `ranks`: null for one rank alone. Throws what a test should not meet.
  VisionModelOn(D& device, const ModelFiles& files, const WeightFormats& formats, const Shard& shard = {},
                Collective<D>* ranks = nullptr)
      : device_(device), dtype_(formats.activations), spec_(got(part_of(files.spec, shard))) {
    Weights<D> weights = got(Weights<D>::load(device, spec_, formats, got(files.map_of(shard))));
    DecoderLimits limits = kGoldenLimits;
    limits.kv_format = formats.kv;
    decoder_ = got(Decoder<D>::make(device, spec_, formats, std::move(weights), limits, nullptr, ranks));
    tower_ = std::make_unique<VisionTower<D>>(
        got(VisionTower<D>::make(device, *spec_.vision, spec_.hidden, spec_.rms_norm_eps, dtype_,
                                 decoder_->vision_weights(), kFramePatches)));
  }

  /// From device memory.
  std::vector<float> rows(const void* device_rows, int count, int columns) const {
    std::vector<float> out;
    std::vector<std::byte> from(static_cast<std::size_t>(count * kernels::padded(columns)) * size_of(dtype_));
    device_.download(from.data(), device_rows, from.size());
    device_.sync();
    for (int r = 0; r < count; ++r) {
      for (int c = 0; c < columns; ++c)
        out.push_back(
            load_element(from.data(), dtype_, static_cast<std::size_t>(r * kernels::padded(columns) + c)));
    }
    return out;
  }

  /// Encodes all items; what the tower gave is added to `towers`.
  void encode(const VisionGolden& golden, std::vector<float>* towers = nullptr) {
    embeddings_.clear();
    for (std::size_t i = 0; i < golden.items.size(); ++i) {
      const MediaItem& item = golden.items[i];
      const auto bytes = static_cast<std::size_t>(item.grid.tokens()) *
                         static_cast<std::size_t>(kernels::padded(spec_.hidden)) * size_of(dtype_);
      embeddings_.push_back(*Buffer<D>::make(device_, bytes, "embeddings"));
      const Status begun =
          tower_->begin(item.kind, item.grid, golden.patches_of(i), embeddings_.back().data());
      ASSERT_TRUE(begun.ok()) << begun.message;
      while (true) {
        const bool more = tower_->advance();
        if (towers != nullptr && tower_->frame_has_ended()) {
          const auto frame =
              rows(tower_->frame_output(), item.grid.rows * item.grid.columns, spec_.vision->width);
          towers->insert(towers->end(), frame.begin(), frame.end());
        }
        if (!more) break;
      }
    }
  }

  /// Takes the reference's embeddings of all items instead, rounded to the model's dtype.
  void place(const VisionGolden& golden) {
    embeddings_.clear();
    std::size_t at = 0;
    for (const MediaItem& item : golden.items) {
      const auto tokens = static_cast<std::size_t>(item.grid.tokens()),
                 columns = static_cast<std::size_t>(spec_.hidden),
                 width = static_cast<std::size_t>(kernels::padded(spec_.hidden));
      embeddings_.push_back(*Buffer<D>::make(device_, tokens * width * size_of(dtype_), "embeddings"));
      std::vector<std::byte> rows(tokens * width * size_of(dtype_));
      for (std::size_t row = 0; row < tokens; ++row) {
        for (std::size_t c = 0; c < columns; ++c)
          store_element(rows.data(), dtype_, row * width + c, golden.embeddings[at++]);
      }
      device_.upload(embeddings_.back().data(), rows.data(), rows.size());
    }
  }

  /// Tokens [first, first + count) of the prompt and its continuation as a step.
  StepBatch step(const VisionGolden& golden, std::span<const TokenId> ids, int first, int count) const {
    const MediaPositions positions(golden.items);
    StepBatch batch;
    batch.sequences = {{kBlocks.data(), first, count, 0}};
    for (int i = first; i < first + count; ++i) {
      batch.tokens.push_back(ids[static_cast<std::size_t>(i)]);
      batch.sample_rows.push_back(i - first);
      if (golden.items.empty()) continue;
      batch.positions.push_back(positions.at(i));
      batch.kinds.push_back(
          i < static_cast<int>(golden.kinds.size()) ? golden.kinds[static_cast<std::size_t>(i)] : kTextRow);
    }
    if (std::ranges::count(batch.kinds, kVisionRow) == 0) batch.kinds.clear();
    for (std::size_t i = 0; i < golden.items.size(); ++i) {
      const MediaItem& item = golden.items[i];
      const int begin = std::max(item.first, first), end = std::min(item.end(), first + count);
      if (begin >= end) continue;
      const std::size_t row = static_cast<std::size_t>(kernels::padded(spec_.hidden)) * size_of(dtype_);
      batch.embedded.push_back({.item = static_cast<int>(i),
                                .first = begin - item.first,
                                .row = begin - first,
                                .count = end - begin,
                                .rows = static_cast<const std::byte*>(embeddings_[i].data()) +
                                        static_cast<std::size_t>(begin - item.first) * row});
    }
    return batch;
  }

  std::vector<float> logits(const VisionGolden& golden, std::span<const TokenId> ids, int first, int count) {
    std::vector<float> out(static_cast<std::size_t>(count * spec_.vocab));
    decoder_->logits(step(golden, ids, first, count), out);
    return out;
  }

  /// Of the rows `reads` of the same step alone.
  std::vector<float> logits(const VisionGolden& golden, std::span<const TokenId> ids, int first, int count,
                            const std::vector<std::int32_t>& reads) {
    StepBatch batch = step(golden, ids, first, count);
    batch.sample_rows = reads;
    std::vector<float> out(reads.size() * static_cast<std::size_t>(spec_.vocab));
    decoder_->logits(batch, out);
    return out;
  }

  const ModelSpec& spec() const { return spec_; }
  VisionTower<D>& tower() { return *tower_; }
  std::vector<float> embeddings(const VisionGolden& golden) const {
    std::vector<float> all;
    for (std::size_t i = 0; i < golden.items.size(); ++i) {
      const auto some =
          rows(embeddings_[i].data(), static_cast<int>(golden.items[i].grid.tokens()), spec_.hidden);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

 private:
  template <class T>
  static T got(Result<T> result) {
    if (!result.ok()) throw std::runtime_error(result.status().message);
    return std::move(*result);
  }

  inline static const std::vector<BlockId> kBlocks{6, 0, 3};
  D& device_;
  DType dtype_;
  ModelSpec spec_;
  std::unique_ptr<Decoder<D>> decoder_;
  std::unique_ptr<VisionTower<D>> tower_;
  std::vector<Buffer<D>> embeddings_;
};

using VisionModel = VisionModelOn<Cpu>;

}  // namespace troupe::model::test
