#include "cli/fit_machine.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "base/usable_cores.h"
#include "gpu/cards.h"
#include "gpu/ceilings.h"
#include "gpu/gpu_checks.h"
#include "model/host_memory.h"

namespace troupe::cli {
namespace {

/// Asks the driver once for each GPU: every answer needs them all.
model::GpuProbes remembered_probes() {
  model::GpuProbes probes;
  auto known = std::make_shared<std::map<int, Result<CudaProbe>>>();
  probes.gpu = [known](int ordinal) {
    const auto found = known->find(ordinal);
    return found != known->end() ? found->second : known->emplace(ordinal, probe_cuda(ordinal)).first->second;
  };
  return probes;
}

/// Bytes of the weights in a directory, 0 if it has none.
std::uint64_t stored_bytes(const std::filesystem::path& directory) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".safetensors" && entry.is_regular_file(error))
      bytes += entry.file_size(error);
  }
  return bytes;
}

}  // namespace

model::FitMachine this_machine(bool with_speeds, std::string& note) {
  model::FitMachine machine;
  machine.probes = remembered_probes();
  const Result<CudaProbe> gpu = machine.probes.gpu(0);
  if (gpu.ok()) {
    machine.name = card_name(*gpu);
    machine.cards = std::max(1, gpu->devices);
    machine.memory_bytes = gpu->total;
    if (const Card* card = card_of_driver(machine.name, gpu->total); card != nullptr) {
      machine.card = std::string(card->name);
      machine.ceilings = model::Ceilings{card->memory_tb_per_s * 1e12, card->bf16_tflops * 1e12};
      machine.fp8_flops_per_s = card->fp8_tflops * 1e12;
    }
    return machine;
  }
  note = gpu.status().message;
  machine.device = config::Device::cpu;
  machine.name = "CPU with " + std::to_string(usable_cores()) + " cores";
  machine.memory_bytes = model::host_memory().available;
  if (!with_speeds) return machine;
  Cpu cpu({.pin = false});
  machine.ceilings = model::Ceilings{read_bandwidth(cpu), dot_peak(cpu)};
  return machine;
}

Result<model::FitQuestion> question_about(const std::string& model, const model::FitMachine& machine,
                                          const config::Options& options) {
  if (const model::DocumentedModel* known = model::find_documented(model); known != nullptr) {
    const Result<model::ModelSpec> spec = model::spec_of(*known);
    if (!spec.ok()) return spec.status();
    return model::question_of(*known, *spec, machine, options);
  }
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) {
    std::string names;
    for (const model::DocumentedModel& one : model::documented_models())
      names += (names.empty() ? "" : ", ") + std::string(one.name);
    return invalid(
        "MODEL: got \"" + model.substr(0, 200) + "\", expected the directory of a model or one of " + names,
        "model");
  }
  const Result<model::ModelSpec> spec = model::read_spec(model);
  if (!spec.ok()) return spec.status();
  const std::uint64_t stored = stored_bytes(model);
  return model::FitQuestion{model, "", *spec, options, stored > 0 ? stored : model::published_bytes(*spec)};
}

FitAnswer answer_to(const model::FitQuestion& question, const model::FitMachine& machine) {
  using model::FitVerdict;
  FitAnswer answer{{question.name, question.options.quantization.method, question.download_bytes,
                    model::fit(question, machine, machine.cards)},
                   {}};
  if (answer.row.fit.verdict != FitVerdict::does_not_fit || machine.device != config::Device::cuda)
    return answer;
  model::Fit least = model::fit_least(question, machine, kMostFitCards);
  if (least.verdict == FitVerdict::fits) answer.elsewhere = std::move(least);
  return answer;
}

}  // namespace troupe::cli
