#pragma once
// Goldens of quantised formats (tools/generate/make_quantised_goldens.py), and the comparison of an
// executor's log-probabilities with them. The same body runs on all devices. Prompts and continuations are
// those of the tuned goldens.
//
// The bound: numpy computes each quantised model exactly, and once more with the device's rounding of
// activations. An executor rounds at the same places in another order of sums, so its errors are another
// sample of the same noise. Samples made in numpy by changing activations by one part in a million before
// they are rounded differ by 3 % in their rms; kMostOfRounding leaves room for three times that.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "model/support/tuned_golden.h"

namespace troupe::model::test {

inline constexpr double kMostOfRounding = 1.1;

/// A case of the tool, and the flags that ask for it.
struct QuantisedCase {
  const char* shape;
  const char* name;
  config::QuantizationOptions flags;
};

inline std::vector<QuantisedCase> quantised_cases() {
  using config::KvCacheDType, config::LmHeadDType;
  return {
      {"dense_gqa8", "wint8", {.method = "wint8"}},
      {"dense_gqa8", "wint4", {.method = "wint4"}},
      {"dense_gqa8", "wint4_group32", {.method = "wint4", .group = 32}},
      {"dense_gqa8", "wint4_group128", {.method = "wint4", .group = 128}},
      {"dense_gqa8", "fp8", {.method = "block_wise_fp8"}},
      {"dense_gqa8", "kv_int8", {.kv_cache = KvCacheDType::int8}},
      {"dense_gqa8", "kv_fp8", {.kv_cache = KvCacheDType::fp8}},
      {"dense_gqa8",
       "wint8_head_int8_kv_int8",
       {.method = "wint8", .lm_head = LmHeadDType::int8, .kv_cache = KvCacheDType::int8}},
      {"dense_gqa8", "wint4_head_int4", {.method = "wint4", .lm_head = LmHeadDType::int4}},
      {"moe_gqa5", "wint8", {.method = "wint8"}},
      {"moe_gqa5", "wint4", {.method = "wint4"}},
      {"moe_gqa5", "wint4_group64", {.method = "wint4", .group = 64}},
      {"moe_gqa5", "fp8", {.method = "block_wise_fp8"}},
      {"moe_gqa5", "wint4_kv_int8", {.method = "wint4", .kv_cache = KvCacheDType::int8}},
      {"moe_gqa5", "wint8_kv_fp8", {.method = "wint8", .kv_cache = KvCacheDType::fp8}},
  };
}

inline std::string case_name(const QuantisedCase& c) { return c.shape + std::string("_") + c.name; }

inline config::Options quantised_options(const QuantisedCase& c) {
  config::Options options = tuned_options(c.shape);
  options.model.dtype = config::DTypeOption::bfloat16;
  options.quantization = c.flags;
  return options;
}

/// Arrays of tests/data/quantised/SHAPE.safetensors, by name.
class QuantisedFile {
 public:
  explicit QuantisedFile(const std::string& shape) {
    auto file = Checkpoint::open_file(std::filesystem::path(TROUPE_TEST_DATA) / "quantised" /
                                      (shape + ".safetensors"));
    TROUPE_CHECK(file.ok());
    file_ = std::make_unique<Checkpoint>(std::move(*file));
  }
  bool has(const std::string& name) const { return file_->find(name) != nullptr; }
  template <class T>
  std::vector<T> read(const std::string& name) const {
    const FileTensor* found = file_->find(name);
    TROUPE_CHECK(found != nullptr);
    const auto bytes = read_tensor(*found);
    TROUPE_CHECK(bytes.ok());
    std::vector<T> values(bytes->size() / sizeof(T));
    std::memcpy(values.data(), bytes->data(), bytes->size());
    return values;
  }

 private:
  std::unique_ptr<Checkpoint> file_;
};

/// Errors of an executor, and of numpy with the device's rounding, against the exact reference on the same
/// tokens.
struct QuantisedReport {
  SquaredErrors outputs, prompts;
  double beside_rounding = 0;  ///< sum of squares of (ours - numpy's with the device's rounding), outputs
  int missing = 0;  ///< tokens of the golden that are not among our most likely ones; each counts as
                    ///< if it were the last of them

  void print(const std::string& what) const {
    std::printf(
        "%s: %d outputs, rms error %.4f (rounding alone %.4f, ratio %.3f), from numpy's rounding %.4f; "
        "%d of prompts %.4f (%.4f, ratio %.3f); %d missing\n",
        what.c_str(), outputs.count, outputs.our_rms(), outputs.their_rms(),
        outputs.our_rms() / outputs.their_rms(), std::sqrt(beside_rounding / std::max(outputs.count, 1)),
        prompts.count, prompts.our_rms(), prompts.their_rms(), prompts.our_rms() / prompts.their_rms(),
        missing);
    std::fflush(stdout);
  }
};

/// Runs the case's sequences on the executor, all together. `arithmetic`: the device's in the tool, "cpu" or
/// "cuda".
inline void run_quantised(Executor& executor, const QuantisedCase& c, const std::string& arithmetic,
                          int chunk, QuantisedReport& report) {
  const TunedGolden tuned(c.shape);
  const QuantisedFile file(c.shape);
  const std::string prefix = c.name + std::string(".");
  ASSERT_TRUE(file.has(prefix + "top." + arithmetic));
  const auto sequences = file.read<std::int32_t>("sequences");
  const auto ids = file.read<std::int32_t>(prefix + "top_ids");
  const auto exact = file.read<float>(prefix + "top.reference"),
             rounded = file.read<float>(prefix + "top." + arithmetic);
  const auto prompts = file.read<float>(prefix + "prompts.reference"),
             rounded_prompts = file.read<float>(prefix + "prompts." + arithmetic);
  constexpr std::size_t kTop = 4;
  constexpr int kMostScored = 140;  // tokens of a prompt that the tool scores
  const TunedPart part{.sequences = {sequences.begin(), sequences.end()},
                       .steps = static_cast<int>(ids.size() / kTop / sequences.size())};
  std::vector<Lesson> lessons = lessons_of(tuned, part, executor.capacity().vocab_size);
  for (Lesson& lesson : lessons)
    lesson.scores_prompt = lesson.prompt.size() > 1 && lesson.prompt.size() <= kMostScored;

  executor.reset(1);
  const auto recitals = Teacher(executor, chunk).run(lessons, 1);
  std::size_t at = 0, scored = 0;
  for (std::size_t s = 0; s < recitals.size(); ++s) {
    ASSERT_EQ(recitals[s].top.size(), static_cast<std::size_t>(part.steps));
    for (const auto& top : recitals[s].top) {
      for (std::size_t k = 0; k < kTop; ++k, ++at) {
        const auto found = std::find_if(top.begin(), top.end(), [&](auto& l) { return l.token == ids[at]; });
        report.missing += found == top.end();
        const float ours = found != top.end() ? found->logprob : top.back().logprob;
        report.outputs.add(exact[at], ours, rounded[at]);
        report.beside_rounding += std::pow(double(ours) - double(rounded[at]), 2);
      }
    }
    ASSERT_EQ(recitals[s].prompt.size(), lessons[s].scores_prompt ? lessons[s].prompt.size() - 1 : 0);
    for (const float logprob : recitals[s].prompt) {
      report.prompts.add(prompts[scored], logprob, rounded_prompts[scored]);
      ++scored;
    }
  }
  ASSERT_EQ(scored, prompts.size());
  report.print(case_name(c) + " " + arithmetic);
  // Rounding x to fp8 moves some tokens out of the list, in numpy too: others than in an executor, but about
  // as many. Their number varies like that of rare events.
  const std::string beyond = prefix + "beyond." + arithmetic;
  const int moved = file.has(beyond) ? file.read<std::int32_t>(beyond).front() : 0;
  EXPECT_LE(report.missing, moved + 3 * std::sqrt(moved));
  EXPECT_LE(report.outputs.our_rms(), kMostOfRounding * report.outputs.their_rms());
  EXPECT_LE(report.prompts.our_rms(), kMostOfRounding * report.prompts.their_rms());
}

/// Blocks, slots and lengths for run_quantised().
inline int quantised_blocks(const QuantisedCase& c) {
  const auto sequences = QuantisedFile(c.shape).read<std::int32_t>("sequences");
  return blocks_of(TunedGolden(c.shape), {.sequences = {sequences.begin(), sequences.end()}, .steps = 32});
}

}  // namespace troupe::model::test
