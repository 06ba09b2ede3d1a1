#include "cli/bench/explain.h"

#include <algorithm>
#include <cstdio>

#include "model/step_choices.h"

namespace troupe::bench {
namespace {

using kernels::cuda::GpuTraits;

constexpr int kPromptTokens = 512;

std::string table(const std::string& head, const std::vector<model::StepChoice>& choices) {
  std::string text = head + "\n";
  for (const model::StepChoice& c : choices) {
    char line[160];
    std::snprintf(line, sizeof line, "  %-16s %s\n", c.op.c_str(), c.shape.c_str());
    text += line;
    text += "                   " + c.way + (c.slow ? "  [slow]" : "") + "\n";
  }
  return text;
}

DType dtype_of(config::DTypeOption asked, const model::ModelSpec& spec) {
  switch (asked) {
    case config::DTypeOption::bfloat16: return DType::bf16;
    case config::DTypeOption::float16: return DType::f16;
    case config::DTypeOption::float32: return DType::f32;
    case config::DTypeOption::automatic: break;
  }
  return spec.stored.value_or(DType::bf16);
}

/// The GPU of this machine, or the assumed one.
GpuTraits find_gpu(bool batch_invariant, std::string& name) {
  GpuTraits gpu = kernels::cuda::kH200;
  name = "no GPU here, an H200 is assumed";
  if (cuda_usable().ok()) {
    try {
      const Cuda device;
      gpu = kernels::cuda::traits_of(device);
      name = device.describe();
    } catch (const CudaError&) {
      name = "the GPU here cannot be used, an H200 is assumed";
    }
  }
  gpu.batch_invariant = batch_invariant;
  char facts[120];
  std::snprintf(facts, sizeof facts, " (%d multiprocessors at %.0f MHz, %.2f TB/s)", gpu.multiprocessors,
                gpu.clock_hz * 1e-6, gpu.memory_bytes_per_s * 1e-12);
  name += facts;
  return gpu;
}

}  // namespace

std::string explain(const model::ModelSpec& spec, const model::WeightFormats& formats,
                    const std::vector<int>& sequences, const GpuTraits& gpu) {
  std::string text;
  for (const int n : sequences) {
    text += table("decode, " + std::to_string(n) + (n == 1 ? " row" : " rows"),
                  model::decode_choices(spec, formats, n, gpu));
  }
  return text + table("prefill, a prompt of " + std::to_string(kPromptTokens) + " tokens",
                      model::prefill_choices(spec, formats, kPromptTokens, gpu));
}

Result<std::string> explain_model(const config::Options& options, const std::vector<int>& sequences) {
  auto spec = model::read_spec(options.model.directory, options.model.model_config_name);
  if (!spec.ok()) return spec.status();
  const auto formats =
      choose_formats(*spec, dtype_of(options.model.dtype, *spec), config::Device::cuda, options.quantization);
  if (!formats.ok()) return formats.status();
  std::string name;
  const GpuTraits gpu = find_gpu(options.device.batch_invariant, name);
  return options.model.directory + ", " + to_string(*formats, *spec) + "; " + name + "\n" +
         explain(*spec, *formats, sequences, gpu);
}

}  // namespace troupe::bench
