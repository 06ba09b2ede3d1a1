#pragma once
// `troupe bench decode --explain`: which kernel runs each op of a model on a GPU, and why. Reads config.json
// alone and runs nothing.
#include <string>
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "kernels/cuda/gpu_traits.h"
#include "model/checkpoint/spec.h"
#include "model/weight_formats.h"

namespace troupe::bench {

/// A table for each number of decoding sequences, and one for a piece of a prompt of 512 tokens.
std::string explain(const model::ModelSpec& spec, const model::WeightFormats& formats,
                    const std::vector<int>& sequences, const kernels::cuda::GpuTraits& gpu);

/// The same for a model's directory, with a first line that names model, dtype and GPU. Where there is no GPU
/// an H200 is assumed, and that line says so.
Result<std::string> explain_model(const config::Options& options, const std::vector<int>& sequences);

}  // namespace troupe::bench
