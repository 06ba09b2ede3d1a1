#pragma once
// Logits of the quantised models of quantised_golden.h, to compare those of several ranks with those of one.
// The same body runs on all devices.
#include <numeric>
#include <vector>

#include "model/ranks/part.h"
#include "model/support/golden.h"
#include "model/support/quantised_golden.h"
#include "model/support/rank_processes.h"

namespace troupe::model::test {

inline constexpr int kRankPrompt = 40;
inline constexpr int kRankRows = 4;  // of which there are logits, the last ones

template <class D>
std::vector<float> last_logits(Decoder<D>& decoder, const ModelSpec& spec) {
  const std::vector<BlockId> blocks{6, 0, 3};
  std::vector<TokenId> ids(kRankPrompt);
  for (int i = 0; i < kRankPrompt; ++i) ids[static_cast<std::size_t>(i)] = (i * 7919 + 13) % spec.vocab;
  StepBatch batch;
  batch.tokens = ids;
  batch.sequences = {{blocks.data(), 0, kRankPrompt, 0}};
  batch.sample_rows.resize(kRankRows);
  std::iota(batch.sample_rows.begin(), batch.sample_rows.end(), kRankPrompt - kRankRows);
  std::vector<float> logits(static_cast<std::size_t>(kRankRows) * static_cast<std::size_t>(spec.vocab));
  decoder.logits(batch, logits);
  return logits;
}

/// The files of a case, with its formats.
inline Result<ModelFiles> quantised_files(const QuantisedCase& which, config::Device device) {
  const config::Options options = quantised_options(which);
  Result<ModelFiles> files = open_model(options.model);
  if (!files) return files;
  if (Status s = files->choose(device, options.quantization); !s.ok()) return s;
  return files;
}

/// The rank's logits; `ranks` is null for one alone.
template <class D>
Result<std::vector<float>> quantised_logits(D& device, const ModelFiles& files, const Shard& shard,
                                            Collective<D>* ranks, bool join = false) {
  const Result<ModelSpec> part = part_of(files.spec, shard);
  if (!part) return part.status();
  Result<Weights<D>> weights = Weights<D>::dummy(device, files.spec, files.formats, 0, shard);
  if (!weights) return weights.status();
  DecoderLimits limits = kGoldenLimits;
  limits.kv_format = files.formats.kv;
  auto decoder = Decoder<D>::make(device, *part, files.formats, std::move(*weights), limits, nullptr, ranks);
  if (!decoder) return decoder.status();
  if constexpr (requires { ranks->join(); }) {
    if (join && !test::join(*ranks)) return failure(Code::unavailable, "the other ranks have not come");
  }
  return last_logits(**decoder, files.spec);
}

/// Ranks round the same products at other places: the codes are the same, the activations differ in their
/// last bits, and where they are quantised by the step of a code, which is an eighth of a number in e4m3.
inline void check_against_one(const WeightFormats& formats, const std::vector<float>& several,
                              const std::vector<float>& one) {
  ASSERT_EQ(several.size(), one.size());
  double squares = 0, all = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    squares += std::pow(static_cast<double>(several[i]) - one[i], 2);
    all += std::pow(static_cast<double>(one[i]), 2);
  }
  EXPECT_LT(std::sqrt(squares / all), formats.fp8() ? 5e-2 : 2e-2);
  EXPECT_GT(all, 0);
}

}  // namespace troupe::model::test
