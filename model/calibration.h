#pragma once
// Calibration: a model that is not quantised runs prompts, and the largest magnitudes that it meets become
// the static scales of W4A8 experts and of int8 keys and values.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "model/checkpoint/model_files.h"
#include "model/load_progress.h"

namespace troupe::model {

/// Largest magnitudes of a layer; all are positive.
struct LayerMagnitudes {
  std::vector<float> gate_up;  ///< (experts) of an expert's inputs; empty in a dense layer
  std::vector<float> down;     ///< (experts) of the inputs of its down product, rotated as W4A8 rotates them
  std::vector<float> keys;     ///< (kv_heads · head_dim) of K after the rotary embedding
  std::vector<float> values;   ///< (kv_heads · head_dim)

  bool operator==(const LayerMagnitudes&) const = default;
};

struct Calibration {
  std::vector<LayerMagnitudes> layers;
  std::int64_t prompts = 0, tokens = 0;  ///< that ran
  /// Experts that no token reached, of all mixtures: they have the largest magnitudes of their layer.
  std::int64_t unreached = 0;

  bool operator==(const Calibration&) const = default;

  std::string to_json() const;
  /// The error says only that it is none, or that it is of a model of another shape.
  static Result<Calibration> from_json(const std::string& text, const ModelSpec& spec);
};

/// ok if calibration has something to say of the model: it is a mixture of experts, takes text alone, is not
/// quantised, and its experts' widths can be rotated.
Status check_calibration(const ModelFiles& files);

/// Runs the prompts on the CPU, each from its beginning, in the type that the model computes in; needs memory
/// for all weights in it. The files have passed check_calibration(); `progress` counts the prompts' tokens.
/// invalid_argument if a magnitude is not finite, or if a prompt is empty, has tokens that the vocabulary
/// lacks or more of them than the model has positions.
Result<Calibration> calibrate(const ModelFiles& files, std::span<const std::vector<TokenId>> prompts,
                              const LoadProgress& progress = {});

}  // namespace troupe::model
