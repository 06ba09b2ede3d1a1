#pragma once
// Measured times of decode steps, as docs/performance.md has them; a test compares the two.
#include <span>
#include <string_view>

namespace troupe::model {

/// A step in which each of `sequences` decodes one token behind 2,048 tokens of context: random weights, KV
/// in the type of activations, no drafts.
struct MeasuredStep {
  std::string_view shape;         ///< DocumentedModel::shape
  std::string_view quantization;  ///< a value of --quantization; empty: bfloat16
  std::string_view card;          ///< Card::name
  int cards = 1;                  ///< ranks, one a card
  int sequences = 1;
  std::string_view ms;    ///< as the page writes it
  std::string_view date;  ///< "2026-11-22"
  std::string_view line;  ///< how the line of the page begins that has the figure
};

std::span<const MeasuredStep> measured_steps();

/// Null if that was not measured.
const MeasuredStep* find_measured(std::string_view shape, std::string_view quantization,
                                  std::string_view card, int cards, int sequences);

/// Tokens a second of all its sequences together.
double tokens_per_s(const MeasuredStep& step);

}  // namespace troupe::model
