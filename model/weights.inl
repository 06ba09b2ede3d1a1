#pragma once
// Weights<D>: filling a WeightLayout. Included where a device's decoder is instantiated.
#include <cstring>
#include <memory>

#include "base/check.h"
#include "kernels/fill_random.h"
#include "kernels/pack.h"
#include "model/weights.h"

namespace troupe::model {

/// The part of a matrix that one weight fills, or a norm.
struct WeightTarget {
  kernels::Matrix matrix{};
  kernels::Place place = kernels::Place::rows;
  int first = 0;
  const float* norm = nullptr;  ///< instead of the matrix
};

inline WeightTarget target_of(const WeightLayout& layout, const ModelSpec& spec, Weight weight, int layer) {
  using kernels::Place;
  const LayerWeights& l = layout.layers[static_cast<std::size_t>(layer)];
  switch (weight) {
    case Weight::embedding: return {layout.embedding};
    case Weight::lm_head: return {layout.lm_head};
    case Weight::final_norm: return {.norm = layout.final_norm};
    case Weight::input_norm: return {.norm = l.input_norm};
    case Weight::query: return {l.qkv};
    case Weight::key: return {l.qkv, Place::rows, spec.q_width()};
    case Weight::value: return {l.qkv, Place::rows, spec.q_width() + spec.kv_width()};
    case Weight::attention_out: return {l.attention_out};
    case Weight::post_norm: return {.norm = l.post_norm};
    case Weight::gate: return {l.gate_up, Place::gate};
    case Weight::up: return {l.gate_up, Place::up};
    case Weight::down: return {l.down};
  }
  TROUPE_CHECK(false);
  return {};
}

inline DType dtype_of(FileType type) {
  switch (type) {
    case FileType::f16: return DType::f16;
    case FileType::f32: return DType::f32;
    default: TROUPE_CHECK(type == FileType::bf16); return DType::bf16;
  }
}

/// The data of a tensor at an address that suits its elements: the file's own, or a copy in `spare`.
inline const std::byte* aligned_data(const FileTensor& tensor, std::unique_ptr<std::byte[]>& spare) {
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % size_of(tensor.type) == 0) return tensor.data;
  spare = std::make_unique_for_overwrite<std::byte[]>(tensor.bytes);
  std::memcpy(spare.get(), tensor.data, tensor.bytes);
  return spare.get();
}

/// Norm weights stay fp32 in memory, with values that the dtype can hold.
template <Device D>
void upload_norm(D& device, const float* to, DType dtype, const std::vector<float>& values) {
  std::vector<float> rounded(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t stored = 0;
    store_element(&stored, dtype, 0, values[i]);
    rounded[i] = load_element(&stored, dtype, 0);
  }
  device.upload(const_cast<float*>(to), rounded.data(), rounded.size() * sizeof(float));
  device.sync();
}

template <Device D>
Result<Weights<D>> Weights<D>::load(D& device, const ModelSpec& spec, DType dtype, const TensorMap& map) {
  Weights weights;
  const std::size_t bytes = WeightLayout::make(spec, dtype, map.tied, {}).bytes;
  Result<Buffer<D>> memory = Buffer<D>::make(device, bytes, "weights");
  if (!memory) return memory.status();
  weights.memory_ = std::move(*memory);
  weights.layout_ = WeightLayout::make(spec, dtype, map.tied, weights.memory_.view());

  for (const WeightSource& source : map.sources) {
    const WeightTarget target = target_of(weights.layout_, spec, source.weight, source.layer);
    const DType stored = dtype_of(source.tensor->type);
    std::unique_ptr<std::byte[]> spare;
    const std::byte* data = aligned_data(*source.tensor, spare);
    if (target.norm != nullptr) {
      std::vector<float> values(static_cast<std::size_t>(source.inputs));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = load_element(data, stored, i);
      upload_norm(device, target.norm, dtype, values);
      continue;
    }
    const bool transposed = map.transposed && source.weight != Weight::embedding;
    const std::int64_t line = transposed ? source.tensor->shape[1] : source.inputs;
    const std::int64_t skipped = transposed ? source.first : source.first * line;
    kernels::run(device, kernels::Pack{
                             .into = target.matrix,
                             .source = data + static_cast<std::size_t>(skipped) * size_of(stored),
                             .source_dtype = stored,
                             .transposed = transposed,
                             .source_stride = line,
                             .place = target.place,
                             .first = target.first,
                             .outputs = source.outputs,
                         });
    device.sync();
  }
  return weights;
}

template <Device D>
Result<Weights<D>> Weights<D>::dummy(D& device, const ModelSpec& spec, DType dtype, std::uint64_t seed) {
  Weights weights;
  const bool tied = spec.tied.value_or(true);
  const std::size_t bytes = WeightLayout::make(spec, dtype, tied, {}).bytes;
  Result<Buffer<D>> memory = Buffer<D>::make(device, bytes, "weights");
  if (!memory) return memory.status();
  weights.memory_ = std::move(*memory);
  weights.layout_ = WeightLayout::make(spec, dtype, tied, weights.memory_.view());

  const auto fill = [&](Weight weight, int layer, int outputs) {
    const WeightTarget target = target_of(weights.layout_, spec, weight, layer);
    std::uint64_t hash = 0xcbf29ce484222325u ^ seed;  // FNV-1a
    for (const char c : weight_name(weight, layer))
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    kernels::run(device, kernels::FillRandom{
                             .into = target.matrix,
                             .place = target.place,
                             .first = target.first,
                             .outputs = outputs,
                             .seed = hash,
                             .deviation = 0.02f,
                         });
  };
  const std::vector<float> ones(static_cast<std::size_t>(spec.hidden), 1.0f);
  fill(Weight::embedding, 0, spec.vocab);
  if (!tied) fill(Weight::lm_head, 0, spec.vocab);
  upload_norm(device, weights.layout_.final_norm, dtype, ones);
  for (int layer = 0; layer < spec.layers; ++layer) {
    fill(Weight::query, layer, spec.q_width());
    fill(Weight::key, layer, spec.kv_width());
    fill(Weight::value, layer, spec.kv_width());
    fill(Weight::attention_out, layer, spec.hidden);
    fill(Weight::gate, layer, spec.intermediate);
    fill(Weight::up, layer, spec.intermediate);
    fill(Weight::down, layer, spec.hidden);
    upload_norm(device, weights.layout_.layers[static_cast<std::size_t>(layer)].input_norm, dtype, ones);
    upload_norm(device, weights.layout_.layers[static_cast<std::size_t>(layer)].post_norm, dtype, ones);
  }
  device.sync();
  return weights;
}

}  // namespace troupe::model
