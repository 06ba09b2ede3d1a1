#pragma once
// The small reference checkpoints with a draft layer and its logits (tools/generate/make_draft_goldens.py).
// The same body runs on all devices: functions take Decoder<D>, or DraftDecoder (draft_layer.h).
#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/support/golden.h"

namespace troupe::model::test {

struct DraftGolden {
  std::vector<TokenId> ids;
  std::vector<float> logits;     ///< (3, ids - 1, vocab)
  std::vector<TokenId> chained;  ///< (2, ids - 1)
};

inline DraftGolden load_draft_golden(const std::string& name) {
  const auto file = Checkpoint::open_file(golden_directory("draft_" + name) / "golden.safetensors");
  return {values<std::int32_t>(*file, "ids"), values<float>(*file, "logits"),
          values<std::int32_t>(*file, "chained")};
}

inline config::SpeculationOptions with_draft(const std::filesystem::path& directory = {}) {
  return {.method = config::DraftMethod::mtp, .tokens = 1, .mtp_steps = 1, .draft_model = directory.string()};
}

/// The golden `name` with its draft layer.
inline Result<ModelFiles> open_with_draft(const std::string& name, config::SpeculationOptions speculation) {
  return open_model({.directory = golden_directory(name).string()}, {}, speculation);
}
inline Result<ModelFiles> open_with_draft(const std::string& name) {
  return open_with_draft(name, with_draft(golden_directory("draft_" + name)));
}

/// A decoder whose `weights` come from the files, or from a rank's part of them.
template <Device D>
Result<std::unique_ptr<Decoder<D>>> make_decoder(D& device, const ModelSpec& spec,
                                                 const WeightFormats& formats, const TensorMap& map,
                                                 Collective<D>* ranks = nullptr) {
  auto weights = Weights<D>::load(device, spec, formats, map);
  if (!weights) return weights.status();
  DecoderLimits limits = kGoldenLimits;
  limits.kv_format = formats.kv;
  return Decoder<D>::make(device, spec, formats, std::move(*weights), limits, nullptr, ranks);
}

/// A sequence whose tokens are known, run in steps of any size. Its blocks and its slot are its own.
struct DraftSequence {
  std::vector<TokenId> ids;
  std::vector<BlockId> blocks;
  std::uint32_t slot = 0;
  std::int32_t done = 0;  ///< positions that have run

  /// Adds the next `count` positions to the batch.
  void add_to(StepBatch& batch, std::int32_t count) {
    batch.sequences.push_back({blocks.data(), done, count, batch.rows()});
    batch.slots.push_back(slot);
    batch.tokens.insert(batch.tokens.end(), ids.begin() + done, ids.begin() + done + count);
    done += count;
  }
  TokenId next() const { return ids[static_cast<std::size_t>(done)]; }
};

template <class AnyDecoder>
void run_layers(AnyDecoder& decoder, const StepBatch& batch) {
  decoder.begin(batch, {});
}

inline std::vector<kernels::SampleResult> results_of(std::size_t count) {
  return std::vector<kernels::SampleResult>(count);
}

/// Drafts for `tokens` and twice more on the drafts of the golden. Appends the logits of each run to
/// out[run].
template <class AnyDecoder>
void draft_three(AnyDecoder& decoder, const StepBatch& batch, std::span<const DraftRows> drafts,
                 const DraftGolden& golden, std::span<const std::int32_t> positions,
                 std::vector<float> (&out)[3]) {
  const auto vocab = static_cast<std::size_t>(decoder.spec().vocab);
  std::vector<float> logits(positions.size() * vocab);
  std::vector<kernels::SampleResult> results(positions.size());
  const std::size_t count = golden.ids.size() - 1;
  const auto append = [&](int run) { out[run].insert(out[run].end(), logits.begin(), logits.end()); };
  decoder.draft_rows(batch, drafts, results, logits);
  append(0);
  for (int run = 1; run < 3; ++run) {
    std::vector<DraftAgain> again;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto at = static_cast<std::size_t>(run - 1) * count + static_cast<std::size_t>(positions[i] - 1);
      again.push_back({static_cast<std::int32_t>(i), golden.chained[at], {.temperature = 0}});
    }
    decoder.draft_again(again, results, logits);
    append(run);
  }
}

/// Runs the golden's prompt token by token, and drafts three tokens behind each: every chained run writes
/// keys and values that the next first run has to overwrite.
template <class AnyDecoder>
void draft_token_by_token(AnyDecoder& decoder, const DraftGolden& golden, std::vector<float> (&out)[3]) {
  DraftSequence sequence{golden.ids, {6, 0, 3}, 5};
  while (sequence.done + 1 < static_cast<std::int32_t>(golden.ids.size())) {
    StepBatch batch;
    sequence.add_to(batch, 1);
    run_layers(decoder, batch);
    const DraftRows draft{
        .rows = 1, .blocks = sequence.blocks.data(), .next = sequence.next(), .sample = {.temperature = 0}};
    draft_three(decoder, batch, {&draft, 1}, golden, {&sequence.done, 1}, out);
  }
}

inline double draft_error(const std::vector<float>& logits, std::span<const float> expected) {
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(logits[i]) - expected[i]));
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return difference / largest;
}

/// Expects the errors of all three runs to be within the tolerance.
inline void check_draft(const std::vector<float> (&logits)[3], const DraftGolden& golden, double tolerance) {
  const std::size_t each = golden.logits.size() / 3;
  for (std::size_t run = 0; run < 3; ++run) {
    ASSERT_EQ(logits[run].size(), each);
    for (const float value : logits[run]) ASSERT_TRUE(std::isfinite(value));
    const double error = draft_error(logits[run], std::span(golden.logits).subspan(run * each, each));
    EXPECT_LE(error, tolerance) << "run " << run;
    ::testing::Test::RecordProperty("error" + std::to_string(run), std::to_string(error));
  }
}

/// The draft layers' names and orientations: see CASES in make_draft_goldens.py.
inline constexpr const char* kDraftCases[] = {"gqa3_tied", "gqa5_untied", "moe_shared2"};

template <Device D>
void check_draft_golden(D& device, const char* name, DType dtype) {
  const DraftGolden golden = load_draft_golden(name);
  const auto files = open_with_draft(name);
  ASSERT_TRUE(files.ok()) << files.status().message;
  const auto decoder = make_decoder(device, files->spec, dtype, files->map);
  ASSERT_TRUE(decoder.ok()) << decoder.status().message;
  std::vector<float> logits[3];
  draft_token_by_token(**decoder, golden, logits);
  check_draft(logits, golden, kTolerance[static_cast<int>(dtype)]);
}

/// Without the final norm on the hidden rows, or before the head.
template <Device D>
void check_draft_norms(D& device, const char* name) {
  const auto file =
      Checkpoint::open_file(golden_directory(std::string("draft_") + name) / "golden.safetensors");
  const auto files = open_with_draft(name);
  ASSERT_TRUE(files.ok()) << files.status().message;
  for (const DraftNorms norms : {DraftNorms{.hidden = false}, DraftNorms{.output = false}}) {
    DraftGolden golden = load_draft_golden(name);
    const std::size_t all = golden.ids.size() - 1;
    golden.logits = values<float>(*file, norms.hidden ? "output_as_it_is" : "hidden_as_it_is");
    const std::size_t rows = golden.logits.size() / 3 / static_cast<std::size_t>(files->spec.vocab);
    golden.ids.resize(rows + 1);
    std::copy_n(golden.chained.begin() + static_cast<std::ptrdiff_t>(all), rows,
                golden.chained.begin() + static_cast<std::ptrdiff_t>(rows));
    const auto decoder = make_decoder(device, files->spec, DType::f32, files->map);
    ASSERT_TRUE(decoder.ok()) << decoder.status().message;
    (*decoder)->set_draft_norms(norms);
    std::vector<float> logits[3];
    draft_token_by_token(**decoder, golden, logits);
    check_draft(logits, golden, kTolerance[static_cast<int>(DType::f32)]);
  }
}

}  // namespace troupe::model::test
