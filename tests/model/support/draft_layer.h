#pragma once
// Tests of the draft layer that run on several devices: draft_layer_test.cpp has the bodies, and each
// device's file names the cases that run there.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/support/draft.h"

namespace troupe::model::test {

/// Decoder<D> of any device.
class DraftDecoder {
 public:
  virtual ~DraftDecoder() = default;
  virtual const ModelSpec& spec() const = 0;
  virtual std::size_t hidden_bytes() const = 0;
  virtual void begin(const StepBatch& batch, std::span<kernels::SampleResult> scores) = 0;
  virtual void draft_rows(const StepBatch& batch, std::span<const DraftRows> drafts,
                          std::span<kernels::SampleResult> results, std::span<float> logits = {}) = 0;
  virtual void draft_again(std::span<const DraftAgain> drafts, std::span<kernels::SampleResult> results,
                           std::span<float> logits = {}) = 0;
  virtual void save_hidden(std::uint32_t slot, std::span<std::byte> to) = 0;
  virtual void load_hidden(std::uint32_t slot, std::span<const std::byte> from) = 0;
  virtual void copy_blocks(std::span<const kernels::BlockPair> pairs) = 0;
};

template <Device D>
class DraftDecoderOn final : public DraftDecoder {
 public:
  static Result<std::unique_ptr<DraftDecoder>> make(std::shared_ptr<D> device, const ModelFiles& files) {
    auto decoder = make_decoder(*device, files.spec, files.formats, files.map);
    if (!decoder) return decoder.status();
    return std::unique_ptr<DraftDecoder>(new DraftDecoderOn(std::move(device), std::move(*decoder)));
  }

  const ModelSpec& spec() const override { return decoder_->spec(); }
  std::size_t hidden_bytes() const override { return decoder_->hidden_bytes(); }
  void begin(const StepBatch& batch, std::span<kernels::SampleResult> scores) override {
    decoder_->begin(batch, scores);
  }
  void draft_rows(const StepBatch& batch, std::span<const DraftRows> drafts,
                  std::span<kernels::SampleResult> results, std::span<float> logits) override {
    decoder_->draft_rows(batch, drafts, results, logits);
  }
  void draft_again(std::span<const DraftAgain> drafts, std::span<kernels::SampleResult> results,
                   std::span<float> logits) override {
    decoder_->draft_again(drafts, results, logits);
  }
  void save_hidden(std::uint32_t slot, std::span<std::byte> to) override { decoder_->save_hidden(slot, to); }
  void load_hidden(std::uint32_t slot, std::span<const std::byte> from) override {
    decoder_->load_hidden(slot, from);
  }
  void copy_blocks(std::span<const kernels::BlockPair> pairs) override { decoder_->copy_blocks(pairs); }

 private:
  DraftDecoderOn(std::shared_ptr<D> device, std::unique_ptr<Decoder<D>> decoder)
      : device_(std::move(device)), decoder_(std::move(decoder)) {}

  std::shared_ptr<D> device_;
  std::unique_ptr<Decoder<D>> decoder_;
};

/// Where a case runs. A row's bits depend on that row alone there.
struct DraftDevice {
  config::Device device;
  Status (*usable)();
  Result<std::unique_ptr<DraftDecoder>> (*make)(const ModelFiles& files);
};

struct DraftLayerCase {
  const DraftDevice* on;
  kernels::KvFormat kv;
};

inline std::string draft_layer_name(const ::testing::TestParamInfo<DraftLayerCase>& info) {
  return to_string(info.param.kv);
}

/// Accept `rows` rows of the batch's sequence, after which `next` follows.
inline DraftRows after(const DraftSequence& sequence, std::int32_t rows, TokenId next,
                       std::int32_t index = 0) {
  return {.sequence = index,
          .rows = rows,
          .blocks = sequence.blocks.data(),
          .next = next,
          .sample = {.temperature = 0}};
}

class DraftLayer : public ::testing::TestWithParam<DraftLayerCase> {
 protected:
  void SetUp() override {
    if (const Status usable = GetParam().on->usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    auto files = open_with_draft("gqa3_tied");
    ASSERT_TRUE(files.ok()) << files.status().message;
    files_ = std::move(*files);
    files_.formats.kv = GetParam().kv;
    decoder_ = make();
  }
  std::unique_ptr<DraftDecoder> make() {
    auto decoder = GetParam().on->make(files_);
    EXPECT_TRUE(decoder.ok()) << decoder.status().message;
    return std::move(*decoder);
  }
  DraftSequence sequence(std::uint32_t slot = 2, std::vector<BlockId> blocks = {6, 0, 3}) const {
    return {golden_.ids, std::move(blocks), slot};
  }

  /// Runs the next `count` positions of the sequence alone, and the draft layer on them: with a draft behind
  /// the last, whose logits it returns, if `drafts`.
  std::vector<float> run(DraftSequence& sequence, std::int32_t count, bool carried, bool drafts) {
    StepBatch batch;
    sequence.add_to(batch, count);
    run_layers(*decoder_, batch);
    DraftRows rows = after(sequence, count, drafts ? sequence.next() : kNoToken);
    rows.carried = carried;
    std::vector<float> logits(drafts ? vocab() : 0);
    auto results = results_of(drafts ? 1 : 0);
    decoder_->draft_rows(batch, {&rows, 1}, results, logits);
    return logits;
  }
  /// The draft behind `count` positions that ran in one step, as a new decoder gives it.
  std::vector<float> straight(std::int32_t count) {
    decoder_ = make();
    DraftSequence one = sequence();
    std::vector<float> logits = run(one, count, false, true);
    decoder_ = make();
    return logits;
  }
  std::size_t vocab() const { return static_cast<std::size_t>(files_.spec.vocab); }

  DraftGolden golden_ = load_draft_golden("gqa3_tied");
  ModelFiles files_;
  std::unique_ptr<DraftDecoder> decoder_;
};

struct DraftQuantisation {
  const DraftDevice* on;
  const char* model;
  const char* method;  // of --quantization
  const char* draft;   // of the draft layer
  double tolerance;
};

inline std::string draft_quantisation_name(const ::testing::TestParamInfo<DraftQuantisation>& info) {
  return std::string(info.param.model) + "_" + info.param.method + "_" + info.param.draft;
}

class QuantisedDraft : public ::testing::TestWithParam<DraftQuantisation> {
 protected:
  void SetUp() override {
    if (const Status usable = GetParam().on->usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
};

}  // namespace troupe::model::test
