#pragma once
// Goldens for shapes that take the GPU's tuned kernels (tools/generate/make_tuned_goldens.py), and the
// comparison of an executor's log-probabilities with them. The same body runs on all devices. The loader
// draws the weights, as with --load-choices dummy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/batch.h"
#include "kernels/fill_random.h"
#include "model/checkpoint/model_files.h"
#include "model/support/files.h"
#include "model/support/teacher.h"

namespace troupe::model::test {

inline constexpr const char* kTunedShapes[] = {"dense_gqa8", "moe_gqa5"};
inline constexpr int kTunedModelLen = 3264;
inline constexpr std::uint64_t kPromptSeed = 1000;

inline std::filesystem::path tuned_directory(const std::string& name) {
  return std::filesystem::path(TROUPE_TEST_DATA) / "tuned" / name;
}

inline config::Options tuned_options(const std::string& name) {
  config::Options options;
  options.model.directory = tuned_directory(name).string();
  options.model.load_choices = config::LoadChoice::dummy;
  options.scheduler.max_model_len = kTunedModelLen;
  return options;
}

/// The arrays of golden.safetensors; tools/generate/make_tuned_goldens.py describes them.
struct TunedGolden {
  int steps = 0;
  int top = 0;        ///< tokens per row of top_*
  int top_every = 0;  ///< steps per row of top_*
  std::vector<std::int32_t> lengths, tokens, top_ids, scored;
  std::vector<float> reference, bf16, top_reference, top_bf16, prompt_reference, prompt_bf16;
  std::vector<std::uint8_t> bf16_agrees, near_tie, weight_names;
  std::vector<std::int64_t> weight_sums;

  explicit TunedGolden(const std::string& name) {
    const auto file = Checkpoint::open_file(tuned_directory(name) / "golden.safetensors");
    TROUPE_CHECK(file.ok());
    const auto read = [&](const char* tensor, auto& into) {
      const FileTensor* found = file->find(tensor);
      TROUPE_CHECK(found != nullptr);
      const auto bytes = read_tensor(*found);
      TROUPE_CHECK(bytes.ok());
      into.resize(bytes->size() / sizeof into[0]);
      std::memcpy(into.data(), bytes->data(), bytes->size());
      return found->shape;
    };
    read("lengths", lengths);
    steps = static_cast<int>(read("tokens", tokens)[1]);
    const std::vector<std::int64_t> shape = read("top_ids", top_ids);
    top_every = steps / static_cast<int>(shape[1]);
    top = static_cast<int>(shape[2]);
    read("scored", scored);
    read("reference", reference);
    read("bf16", bf16);
    read("top_reference", top_reference);
    read("top_bf16", top_bf16);
    read("prompt_reference", prompt_reference);
    read("prompt_bf16", prompt_bf16);
    read("bf16_agrees", bf16_agrees);
    read("near_tie", near_tie);
    read("weight_names", weight_names);
    read("weight_sums", weight_sums);
  }

  int sequences() const { return static_cast<int>(lengths.size()); }
};

/// The sequences, and the first steps of their continuations, that one run covers.
struct TunedPart {
  std::vector<int> sequences;
  int steps = 0;
};

inline std::vector<Lesson> lessons_of(const TunedGolden& golden, const TunedPart& part, int vocab) {
  std::vector<Lesson> lessons;
  BlockId next_block = 0;
  for (const int s : part.sequences) {
    Lesson lesson;
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(golden.lengths[static_cast<std::size_t>(s)]);
         ++i) {
      const std::uint64_t bits = kernels::draw_bits(kPromptSeed + static_cast<std::uint64_t>(s), 0, i);
      lesson.prompt.push_back(static_cast<TokenId>(3 + bits % static_cast<std::uint64_t>(vocab - 3)));
    }
    const auto first = golden.tokens.begin() + std::ptrdiff_t{s} * golden.steps;
    lesson.continuation.assign(first, first + part.steps);
    const auto tokens = static_cast<int>(lesson.prompt.size()) + part.steps;
    for (int at = 0; at < tokens; at += kernels::kBlockTokens) lesson.blocks.push_back(next_block++);
    lesson.scores_prompt = std::find(golden.scored.begin(), golden.scored.end(), s) != golden.scored.end();
    lessons.push_back(std::move(lesson));
  }
  return lessons;
}

/// KV blocks that all of the part's sequences need together.
inline int blocks_of(const TunedGolden& golden, const TunedPart& part) {
  int blocks = 0;
  for (const int s : part.sequences) {
    blocks += (golden.lengths[static_cast<std::size_t>(s)] + part.steps) / kernels::kBlockTokens + 1;
  }
  return blocks;
}

inline TunedPart all_of(const TunedGolden& golden) {
  TunedPart part{.sequences = std::vector<int>(static_cast<std::size_t>(golden.sequences())),
                 .steps = golden.steps};
  std::iota(part.sequences.begin(), part.sequences.end(), 0);
  return part;
}

struct SquaredErrors {
  double ours = 0, theirs = 0;
  int count = 0;

  void add(float reference, float our, float their) {
    ours += (our - reference) * static_cast<double>(our - reference);
    theirs += (their - reference) * static_cast<double>(their - reference);
    ++count;
  }
  void add(const SquaredErrors& more) {
    ours += more.ours;
    theirs += more.theirs;
    count += more.count;
  }
  double our_rms() const { return std::sqrt(ours / std::max(count, 1)); }
  double their_rms() const { return std::sqrt(theirs / std::max(count, 1)); }
};

/// Errors against the fp32 reference, ours and those of transformers' bf16, on the same positions and tokens.
struct TunedReport {
  SquaredErrors outputs, near_ties, prompts;
  int steps = 0, ours_agree = 0, theirs_agree = 0, restarts = 0;
  int missing = 0;  ///< tokens of the golden that are not among our most likely ones, so have no error

  void add(const TunedGolden& golden, int s, const Recital& recital) {
    for (std::size_t j = 0; j < recital.sampled.size(); ++j) {
      const std::size_t at = static_cast<std::size_t>(s * golden.steps) + j;
      ++steps;
      ours_agree += recital.sampled[j].token == golden.tokens[at];
      theirs_agree += golden.bf16_agrees[at];
      const auto compare = [&](TokenId token, float reference, float their) {
        const auto& top = recital.top[j];
        const auto found = std::find_if(top.begin(), top.end(), [&](auto& l) { return l.token == token; });
        if (found == top.end()) {
          ++missing;
          return;
        }
        outputs.add(reference, found->logprob, their);
        if (golden.near_tie[at]) near_ties.add(reference, found->logprob, their);
      };
      compare(golden.tokens[at], golden.reference[at], golden.bf16[at]);
      if (j % static_cast<std::size_t>(golden.top_every) != 0) continue;
      const std::size_t row =
          at / static_cast<std::size_t>(golden.top_every) * static_cast<std::size_t>(golden.top);
      for (std::size_t k = row; k < row + static_cast<std::size_t>(golden.top); ++k) {
        compare(golden.top_ids[k], golden.top_reference[k], golden.top_bf16[k]);
      }
    }
    restarts += recital.restarts;
    std::size_t first = 0;
    for (const int scored : golden.scored) {
      const auto count = static_cast<std::size_t>(golden.lengths[static_cast<std::size_t>(scored)] - 1);
      if (scored == s) {
        ASSERT_EQ(recital.prompt.size(), count);
        for (std::size_t i = 0; i < count; ++i) {
          prompts.add(golden.prompt_reference[first + i], recital.prompt[i], golden.prompt_bf16[first + i]);
        }
      }
      first += count;
    }
  }

  void add(const TunedReport& more) {
    outputs.add(more.outputs);
    near_ties.add(more.near_ties);
    prompts.add(more.prompts);
    steps += more.steps;
    ours_agree += more.ours_agree;
    theirs_agree += more.theirs_agree;
    restarts += more.restarts;
    missing += more.missing;
  }

  void print(const std::string& what) const {
    std::printf(
        "%s: %d steps, rms error %.5f (transformers' bf16 %.5f, ratio %.3f), argmax %d (%d), %d restarts; "
        "near routing "
        "ties: %d values, rms %.5f (%.5f); prompts: %d values, rms %.5f (%.5f, ratio %.3f)\n",
        what.c_str(), steps, outputs.our_rms(), outputs.their_rms(), outputs.our_rms() / outputs.their_rms(),
        ours_agree, theirs_agree, restarts, near_ties.count, near_ties.our_rms(), near_ties.their_rms(),
        prompts.count, prompts.our_rms(), prompts.their_rms(),
        prompts.our_rms() / std::max(prompts.their_rms(), 1e-30));
    std::fflush(stdout);
  }
};

/// Runs the part on the executor, all sequences together, and adds it to the report.
inline void run_tuned(Executor& executor, const TunedGolden& golden, const TunedPart& part, int chunk,
                      int stagger, TunedReport& report) {
  executor.reset(1);
  Teacher teacher(executor, chunk);
  const auto recitals = teacher.run(lessons_of(golden, part, executor.capacity().vocab_size), stagger);
  for (std::size_t i = 0; i < recitals.size(); ++i) {
    ASSERT_EQ(recitals[i].sampled.size(), static_cast<std::size_t>(part.steps));
    report.add(golden, part.sequences[i], recitals[i]);
  }
}

/// Largest allowed ratio of our rms error to that of transformers' bf16.
inline constexpr double kMostOfTheirError = 1.1;

}  // namespace troupe::model::test
