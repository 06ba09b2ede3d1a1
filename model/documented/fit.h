#pragma once
// Does a model fit a machine, what does it take there, and how fast can it be: `troupe fit`. The sizes are
// those of preflight(), of `serve --dry-run`; the speeds are measured ones where there are any, else the
// bound of model/roofline.h.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/options.h"
#include "gpu/cards.h"
#include "model/checkpoint/spec.h"
#include "model/documented/documented_models.h"
#include "model/documented/rank_steps.h"
#include "model/preflight.h"
#include "model/roofline.h"

namespace troupe::model {

/// What a model is to run on: GPUs of one kind, or the CPU.
struct FitMachine {
  std::string name;  ///< "H800-80G"
  config::Device device = config::Device::cuda;
  int cards = 1;                     ///< GPUs; 1 for the CPU
  std::string card;                  ///< Card::name, by which measured figures are found; empty: unknown
  std::uint64_t memory_bytes = 0;    ///< of one card
  std::optional<Ceilings> ceilings;  ///< of one card; none: no speed is computed
  double fp8_flops_per_s = 0;
  GpuProbes probes;
};

/// A machine with so many of a card. invalid_argument if `count` is not 1 … 64; unsupported for a card that
/// no kernel runs on.
Result<FitMachine> machine_with(const Card& card, int count);

struct FitQuestion {
  std::string name;   ///< of the model
  std::string shape;  ///< DocumentedModel::shape, by which measured figures are found; may be empty
  ModelSpec spec;
  config::Options options;  ///< quantization, limits, media; ranks and device are set by fit()
  std::uint64_t download_bytes = 0;
};

enum class FitVerdict { fits, does_not_fit, unknown };

/// "yes", "no", "unknown".
const char* to_string(FitVerdict verdict);

/// Tokens a second of a step in which each sequence decodes one token.
struct FitSpeed {
  int sequences = 1;
  int context = 0;  ///< tokens before the current one
  double tokens_per_s = 0;
  std::string measured;  ///< the date; empty: computed, and no more than this is possible
};

/// The answer. Sizes are of one card, that of the rank with the least room; they are 0 unless it fits.
struct Fit {
  FitVerdict verdict = FitVerdict::unknown;
  std::string reason;          ///< one sentence; empty if it fits
  int cards = 0;               ///< that were used
  bool experts_whole = false;  ///< it fits with --enable-expert-parallel alone
  std::uint64_t weight_bytes = 0;
  std::uint64_t kv_bytes = 0;
  std::uint64_t activation_bytes = 0;
  std::uint64_t other_bytes = 0;  ///< working memory of kernels, graphs, code
  std::int64_t kv_tokens = 0;
  int max_model_len = 0;
  int max_num_seqs = 0;
  int sequences_at_full_length = 0;
  std::vector<FitSpeed> speeds;      ///< of one sequence, and of max_num_seqs or as many as find KV blocks
  std::vector<RankStep> rank_steps;  ///< where steps of the model were measured on the card
};

/// The question for a documented model. On GPUs the limits that `options` leaves open are those of the page;
/// on the CPU, for which the pages have none, they stay open.
FitQuestion question_of(const DocumentedModel& model, const ModelSpec& spec, const FitMachine& machine,
                        config::Options options);

/// On exactly `cards` cards, as --tensor-parallel-size N would run it, and where that is refused with
/// --enable-expert-parallel; more of them than the machine has are
/// taken to be like its first.
Fit fit(const FitQuestion& question, const FitMachine& machine, int cards);

/// The answer for the least of 1, 2, 4, 8 … `most` cards on which it fits; if it fits on none of them, for
/// the most that can share the model.
Fit fit_least(const FitQuestion& question, const FitMachine& machine, int most);

/// Bytes of a checkpoint of that shape as it is published, in 16 bits.
std::uint64_t published_bytes(const ModelSpec& spec);

}  // namespace troupe::model
