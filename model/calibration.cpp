#include "model/calibration.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "gpu/cpu.h"
#include "kernels/cpu/layout.h"
#include "kernels/moe.h"
#include "kernels/quantize.h"
#include "model/bytes_text.h"
#include "model/decoder.h"
#include "model/host_memory.h"
#include "model/step_batch.h"
#include "model/weights.h"

namespace troupe::model {
namespace {

constexpr int kRowsPerStep = 512;

/// The magnitudes of a tensor's numbers among which a 0 is none: it gets the largest of them, or 1. Returns
/// how many did.
std::int64_t fill_unreached(std::vector<float>& magnitudes) {
  const float largest = magnitudes.empty() ? 0 : *std::ranges::max_element(magnitudes);
  std::int64_t filled = 0;
  for (float& magnitude : magnitudes) {
    if (magnitude > 0) continue;
    magnitude = largest > 0 ? largest : 1.0f;
    ++filled;
  }
  return filled;
}

/// The network alone: the draft layer has no static scales.
TensorMap without_draft_layer(const TensorMap& map) {
  TensorMap network = map;
  std::erase_if(network.sources,
                [](const WeightSource& source) { return source.layer == WeightSource::kDraftLayer; });
  return network;
}

class Run {
 public:
  static Result<Run> make(const ModelFiles& files, int longest) {
    Run run;
    run.spec_ = files.spec;
    run.spec_.draft_layers = 0;
    const WeightFormats formats = files.dtype;
    const std::uint64_t bytes = WeightLayout::make(run.spec_, formats, files.tied, {}).bytes;
    const HostMemory memory = host_memory();
    if (memory.available > 0 && bytes > memory.available) {
      return failure(Code::unavailable, "Calibration runs the model in " + to_string(formats, run.spec_) +
                                            ", whose weights take " + bytes_text(bytes) + "; " +
                                            bytes_text(memory.available) + " are free" + memory.limit + ".");
    }
    run.device_ = std::make_unique<Cpu>(CpuOptions{.pin = false});
    auto weights = Weights<Cpu>::load(*run.device_, run.spec_, formats, without_draft_layer(files.map));
    if (!weights) return weights.status();
    run.blocks_.resize(
        static_cast<std::size_t>((longest + kernels::kBlockTokens - 1) / kernels::kBlockTokens));
    std::iota(run.blocks_.begin(), run.blocks_.end(), BlockId{0});
    auto decoder = Decoder<Cpu>::make(*run.device_, run.spec_, formats, std::move(*weights),
                                      {.rows = kRowsPerStep,
                                       .sequences = 1,
                                       .positions = longest,
                                       .kv_blocks = static_cast<int>(run.blocks_.size())});
    if (!decoder) return decoder.status();
    run.decoder_ = std::move(*decoder);
    const auto all = static_cast<std::size_t>(run.spec_.layers) * static_cast<std::size_t>(run.spec_.experts);
    run.gate_up_.resize(all);
    run.down_.resize(all);
    run.decoder_->observe({.gate_up = run.gate_up_.data(), .down = run.down_.data()});
    const auto channels = static_cast<std::size_t>(run.spec_.kv_width());
    run.made_.layers.resize(static_cast<std::size_t>(run.spec_.layers));
    for (LayerMagnitudes& layer : run.made_.layers) {
      layer.keys.resize(channels);
      layer.values.resize(channels);
    }
    return run;
  }

  /// Rows [first, first + count) of a prompt.
  void step(const std::vector<TokenId>& prompt, int first, int count) {
    batch_.clear();
    batch_.tokens.assign(prompt.begin() + first, prompt.begin() + first + count);
    batch_.sequences.push_back({.blocks = blocks_.data(), .position = first, .tokens = count, .row = 0});
    decoder_->logits(batch_, {});
    device_->pool().for_each(spec_.layers, 1, [&](int begin, int end, int) {
      for (int layer = begin; layer < end; ++layer) find_largest(layer, first, count);
    });
    made_.tokens += count;
  }

  Result<Calibration> end() {
    const auto experts = static_cast<std::ptrdiff_t>(spec_.experts);
    for (int i = 0; i < spec_.layers; ++i) {
      LayerMagnitudes& layer = made_.layers[static_cast<std::size_t>(i)];
      if (spec_.moe_layer(i)) {
        layer.gate_up.assign(gate_up_.begin() + i * experts, gate_up_.begin() + (i + 1) * experts);
        layer.down.assign(down_.begin() + i * experts, down_.begin() + (i + 1) * experts);
      }
      for (const std::vector<float>* magnitudes : {&layer.gate_up, &layer.down, &layer.keys, &layer.values}) {
        if (std::ranges::all_of(*magnitudes, [](float x) { return std::isfinite(x); })) continue;
        return invalid("Layer " + std::to_string(i) +
                       " has a NaN or an infinity among its activations: the prompts cannot calibrate it.");
      }
      made_.unreached += fill_unreached(layer.gate_up);
      fill_unreached(layer.down);
      fill_unreached(layer.keys);
      fill_unreached(layer.values);
    }
    return std::move(made_);
  }

  std::int64_t& prompts() { return made_.prompts; }

 private:
  /// Reads the keys and values of a step where attention finds them.
  void find_largest(int layer, int first, int count) {
    const kernels::KvCache& kv = decoder_->kv();
    LayerMagnitudes& made = made_.layers[static_cast<std::size_t>(layer)];
    const auto* memory = static_cast<const std::byte*>(kv.data);
    for (int position = first; position < first + count; ++position) {
      const BlockId block = blocks_[static_cast<std::size_t>(position / kernels::kBlockTokens)];
      const int token = position % kernels::kBlockTokens;
      for (int head = 0; head < kv.kv_heads; ++head) {
        const std::byte* keys = memory + kv.key_offset(block, layer, head);
        const std::byte* values = memory + kv.value_offset(block, layer, head);
        for (int i = 0; i < kv.head_dim; ++i) {
          const auto channel = static_cast<std::size_t>(head * kv.head_dim + i);
          raise(made.keys[channel],
                load_element(keys, kv.dtype, kernels::packed_index(kv.dtype, kv.head_dim, token, i)));
          raise(made.values[channel],
                load_element(values, kv.dtype,
                             kernels::packed_index(kv.dtype, kernels::kBlockTokens, i, token)));
        }
      }
    }
  }

  static void raise(float& largest, float number) { largest = kernels::larger_magnitude(largest, number); }

  ModelSpec spec_;
  std::unique_ptr<Cpu> device_;  // outlives the decoder's memory
  std::unique_ptr<Decoder<Cpu>> decoder_;
  std::vector<BlockId> blocks_;
  std::vector<float> gate_up_, down_;  // (layers, experts)
  StepBatch batch_;
  Calibration made_;
};

Status check_prompt(const ModelSpec& spec, std::size_t number, const std::vector<TokenId>& prompt) {
  const std::string what = "Prompt " + std::to_string(number + 1);
  if (prompt.empty()) return invalid(what + " has no token.");
  if (prompt.size() > static_cast<std::size_t>(spec.max_positions)) {
    return invalid(what + " has " + std::to_string(prompt.size()) + " tokens; the model has " +
                   std::to_string(spec.max_positions) + " positions.");
  }
  for (const TokenId token : prompt) {
    if (token >= 0 && token < spec.vocab) continue;
    return invalid(what + " has the token " + std::to_string(token) + "; the vocabulary has 0 to " +
                   std::to_string(spec.vocab - 1) + ".");
  }
  return {};
}

}  // namespace

std::string Calibration::to_json() const {
  nlohmann::json json = {{"prompts", prompts}, {"tokens", tokens}, {"unreached", unreached}};
  json["layers"] = nlohmann::json::array();
  for (const LayerMagnitudes& layer : layers) {
    json["layers"].push_back(
        {{"gate_up", layer.gate_up}, {"down", layer.down}, {"keys", layer.keys}, {"values", layer.values}});
  }
  return json.dump() + "\n";
}

Result<Calibration> Calibration::from_json(const std::string& text, const ModelSpec& spec) {
  const auto layers = static_cast<std::size_t>(spec.layers), experts = static_cast<std::size_t>(spec.experts),
             channels = static_cast<std::size_t>(spec.kv_width());
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    Calibration made{.prompts = json.at("prompts").get<std::int64_t>(),
                     .tokens = json.at("tokens").get<std::int64_t>(),
                     .unreached = json.at("unreached").get<std::int64_t>()};
    for (const nlohmann::json& layer : json.at("layers")) {
      made.layers.push_back(
          {layer.at("gate_up").get<std::vector<float>>(), layer.at("down").get<std::vector<float>>(),
           layer.at("keys").get<std::vector<float>>(), layer.at("values").get<std::vector<float>>()});
    }
    bool fits = made.layers.size() == layers;
    for (std::size_t i = 0; fits && i < layers; ++i) {
      const LayerMagnitudes& layer = made.layers[i];
      const std::size_t of_layer = spec.moe_layer(static_cast<int>(i)) ? experts : 0;
      fits = layer.gate_up.size() == of_layer && layer.down.size() == of_layer &&
             layer.keys.size() == channels && layer.values.size() == channels;
    }
    if (fits) return made;
    return invalid("it is of a model of another shape");
  } catch (const nlohmann::json::exception&) {
    return invalid("it is no calibration");
  }
}

Status check_calibration(const ModelFiles& files) {
  const ModelSpec& spec = files.spec;
  const auto refuse = [](const std::string& what) {
    return failure(Code::unsupported, what + "; --quantization wint8 and wint4 need no calibration.");
  };
  if (spec.stored_quantisation)
    return invalid("The model is quantised already; calibration runs the one in bfloat16.");
  if (spec.experts == 0) return refuse("Calibration is for experts in W4A8, and this model has none");
  if (spec.vision) return refuse("Calibration is not offered for vision-language models");
  if (spec.expert_intermediate % kernels::kHadamardBlock != 0) {
    return refuse("W4A8 rotates 128 inputs of an expert together, and moe_intermediate_size is " +
                  std::to_string(spec.expert_intermediate));
  }
  return {};
}

Result<Calibration> calibrate(const ModelFiles& files, std::span<const std::vector<TokenId>> prompts,
                              const LoadProgress& progress) {
  std::size_t longest = 0;
  std::uint64_t total = 0, done = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (Status s = check_prompt(files.spec, i, prompts[i]); !s.ok()) return s;
    longest = std::max(longest, prompts[i].size());
    total += prompts[i].size();
  }
  if (total == 0) return invalid("There is no prompt to calibrate with.");
  Result<Run> run = Run::make(files, static_cast<int>(longest));
  if (!run) return run.status();
  for (const std::vector<TokenId>& prompt : prompts) {
    const auto tokens = static_cast<int>(prompt.size());
    for (int first = 0; first < tokens; first += kRowsPerStep) {
      if (progress) progress(done, total);
      const int count = std::min(kRowsPerStep, tokens - first);
      run->step(prompt, first, count);
      done += static_cast<std::uint64_t>(count);
    }
    ++run->prompts();
  }
  if (progress) progress(total, total);
  return run->end();
}

}  // namespace troupe::model
