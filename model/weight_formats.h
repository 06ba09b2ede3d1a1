#pragma once
// How each weight of the network is stored, and keys and values: decided once, from the model and the
// options, and read by everything that lays out, loads, sizes or counts weights.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "config/quantization.h"
#include "kernels/batch.h"
#include "kernels/weight_format.h"
#include "model/checkpoint/spec.h"

namespace troupe::model {

/// Without quantisation every weight has the type of the activations. The router is fp32 always: the choice
/// of experts depends on it; norms and biases are vectors of fp32.
struct WeightFormats {
  DType activations = DType::bf16;
  kernels::WeightFormat attention{};      ///< qkv and attention out
  kernels::WeightFormat mlp{};            ///< of dense layers
  kernels::WeightFormat experts{};        ///< from layer `early_layers` on
  kernels::WeightFormat early_experts{};  ///< the same of the layers before
  int early_layers = 0;
  /// Of the shared experts' slices, in every layer; nothing: as the layer's experts, in whose stacks they
  /// are.
  std::optional<kernels::WeightFormat> shared;
  bool w4a8 = false;  ///< experts are int4 and take rows as int8 codes by static scales
  kernels::WeightFormat embedding{};
  kernels::WeightFormat
      lm_head{};                  ///< a tied head of another format than the embedding is a matrix of its own
  kernels::WeightFormat draft{};  ///< every matrix of the draft layer
  kernels::KvFormat kv = kernels::KvFormat::plain;
  bool static_kv = false;  ///< kv is int8, with a static scale for each channel

  constexpr WeightFormats() = default;
  constexpr WeightFormats(DType dtype)  // NOLINT: without quantisation a dtype says it all
      : activations(dtype),
        attention(dtype),
        mlp(dtype),
        experts(dtype),
        early_experts(dtype),
        embedding(dtype),
        lm_head(dtype),
        draft(dtype) {}

  bool operator==(const WeightFormats&) const = default;
  const kernels::WeightFormat& experts_of(int layer) const {
    return layer < early_layers ? early_experts : experts;
  }
  /// True if the shared slices of a layer are no part of its stacks of experts, as they are stored otherwise.
  bool shared_apart(int layer) const { return shared && (w4a8 || *shared != experts_of(layer)); }
  const kernels::WeightFormat& shared_of(int layer) const { return shared ? *shared : experts_of(layer); }
  bool fp8() const { return attention.fp8() || mlp.fp8() || experts.fp8() || lm_head.fp8(); }
  bool wint2() const {
    constexpr auto kind = kernels::WeightKind::wint2;
    return experts.kind == kind || early_experts.kind == kind;
  }
  /// True if quantised linears of a checkpoint in these formats have the form of FastDeploy's tools.
  bool paddle() const { return wint2() || w4a8; }
  bool quantised() const {
    return attention.quantised() || mlp.quantised() || experts.quantised() || lm_head.quantised();
  }
};

/// Outside of the experts, inputs that share a scale of 4-bit weights when nothing else is asked for.
inline constexpr int kDefaultGroup = 64;

/// The formats that --quantization and its companions ask for, of a model whose activations are `dtype`.
/// A checkpoint that is quantised already keeps its own; asking for another one is an error. Errors name the
/// flag: unsupported, where the device lacks the format, says what works there instead.
Result<WeightFormats> choose_formats(const ModelSpec& spec, DType dtype, config::Device device,
                                     const config::QuantizationOptions& options);

/// ok if a GPU of that compute capability (90: 9.0) multiplies the formats; else one sentence that names the
/// flag and what works there instead.
Status check_gpu(const WeightFormats& formats, int capability);

/// A hash of the spec and of the formats of weights and KV that the options choose. Two processes with equal
/// hashes lay out weights and KV blocks in the same way.
std::uint64_t storage_hash(const ModelSpec& spec, const config::Options& options);

/// The KV memory of a model, without data.
kernels::KvCache kv_shape(const ModelSpec& spec, const WeightFormats& formats);
/// The same on a GPU, where steps read the ids of tokens from it.
kernels::KvCache cuda_kv_shape(const ModelSpec& spec, const WeightFormats& formats);

/// Bytes of one token's keys and values in all layers, with their scales.
std::int64_t kv_bytes_per_token(const ModelSpec& spec, const WeightFormats& formats);

/// "bfloat16"; "int8, experts int4; activations bfloat16, KV int8".
std::string to_string(const WeightFormats& formats, const ModelSpec& spec);

/// One line of a table that says what a model takes in each format.
struct FormatSize {
  std::string name;  ///< "bfloat16", or a value of --quantization
  WeightFormats formats;
  std::uint64_t weight_bytes = 0;
  bool in_use = false;
};

/// What the weights take in `formats`, in use, and as --quantization would store them on the same device with
/// the other options unchanged; the largest first. `formats` alone if the checkpoint is quantised already.
/// `capability`: of the GPU; 0 leaves out what not every GPU multiplies.
std::vector<FormatSize> format_sizes(const ModelSpec& spec, const WeightFormats& formats, bool tied,
                                     config::Device device, const config::QuantizationOptions& options,
                                     int capability = 0);

}  // namespace troupe::model
