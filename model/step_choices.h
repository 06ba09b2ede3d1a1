#pragma once
// Which kernels a step of a model runs on a GPU, and why: from the model's shape alone, by the choosers that
// the ops themselves ask (kernels/cuda/*/choose.h).
#include <string>
#include <vector>

#include "kernels/cuda/gpu_traits.h"
#include "model/checkpoint/spec.h"
#include "model/weight_formats.h"

namespace troupe::model {

struct StepChoice {
  std::string op;     ///< "qkv"
  std::string shape;  ///< "3584 × 2560 bfloat16, 8 rows"
  std::string way;    ///< "strips: 264 blocks of 40 outputs, … (few rows, …)"
  bool slow = false;  ///< a generic kernel runs, which uses no tensor cores
};

/// Of a step in which so many sequences decode; all of them sample.
std::vector<StepChoice> decode_choices(const ModelSpec& spec, const WeightFormats& formats, int sequences,
                                       const kernels::cuda::GpuTraits& gpu);

/// Of a step with one piece of a prompt, of so many tokens, whose last one samples.
std::vector<StepChoice> prefill_choices(const ModelSpec& spec, const WeightFormats& formats, int tokens,
                                        const kernels::cuda::GpuTraits& gpu);

/// What runs slowly in decode or prefill steps: a line for each op, which names its shape, way and reason.
std::vector<std::string> slow_choices(const ModelSpec& spec, const WeightFormats& formats,
                                      const kernels::cuda::GpuTraits& gpu);

}  // namespace troupe::model
