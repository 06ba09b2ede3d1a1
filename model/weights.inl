#pragma once
// Weights<D>: filling a WeightLayout. Included where a device's decoder is instantiated.
#include <algorithm>

#include "base/check.h"
#include "kernels/fill_random.h"
#include "kernels/pack.h"
#include "model/checkpoint/paddle_codes.h"
#include "model/checkpoint/read_ahead.h"
#include "model/checkpoint/static_scales.h"
#include "model/checkpoint/wint2_tensors.h"
#include "model/ranks/part.h"
#include "model/scale_check.inl"
#include "model/weight_target.h"
#include "model/weights.h"

namespace troupe::model {

/// Norm weights are fp32 in memory, with values that the model's dtype can hold. A router's bias keeps the
/// values of the file.
template <Device D>
void upload_vector(D& device, const WeightSource& source, DType dtype, float* to) {
  const DType stored = dtype_of(source.tensor->type);
  std::vector<float> values(static_cast<std::size_t>(source.inputs));
  std::vector<std::uint32_t> data(values.size());  // aligned, and at least as large
  source.tensor->file->read(source.offset(), data.data(), values.size() * size_of(stored));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load_element(data.data(), stored, i);
    if (source.weight == Weight::key_scale || source.weight == Weight::value_scale) continue;
    if (source.weight == Weight::router_bias || source.weight == Weight::vision_router_bias) continue;
    std::uint32_t rounded = 0;
    store_element(&rounded, dtype, 0, values[i]);
    values[i] = load_element(&rounded, dtype, 0);
  }
  device.upload(to, values.data(), values.size() * sizeof(float));
}

/// `codes`: of the load, for sources in an order of Paddle's.
template <Device D>
void pack_source(D& device, const WeightSource& source, const WeightTarget& target, PaddleCodes& codes) {
  if (source.stored && source.stored->wint2()) {
    const auto numbers = [&](const FileTensor& tensor) {
      const auto column = static_cast<std::uint64_t>(source.first % source.stride);
      return kernels::StoredWint2::Tensor{tensor.file, tensor.offset + column * size_of(tensor.type)};
    };
    const kernels::StoredWint2 others{
        {source.scales->file, source.scales->offset + static_cast<std::uint64_t>(source.first_scale)},
        numbers(*source.wint2.super_scales),
        numbers(*source.wint2.code_scales),
        numbers(*source.wint2.code_zps),
        dtype_of(source.wint2.super_scales->type)};
    kernels::run(device, kernels::Pack{.into = target.matrix,
                                       .file = source.tensor->file,
                                       .offset = source.offset(),
                                       .source_stride = source.stride,
                                       .place = target.place,
                                       .first = target.first,
                                       .outputs = source.outputs,
                                       .wint2 = &others});
    return;
  }
  if (source.stored) {
    const bool ordered = source.stored->order == CodeOrder::rows;
    const MemoryBytes rows(ordered ? nullptr : codes.rows_of(source));
    const std::vector<float> finished = source.stored->w4a8() ? finished_scales(source) : std::vector<float>();
    const MemoryBytes scales(finished.data());
    kernels::run(device, kernels::Pack{.into = target.matrix,
                                       .file = ordered ? static_cast<const ByteSource*>(source.tensor->file) : &rows,
                                       .offset = source.offset() - (ordered ? 0 : source.tensor->offset),
                                       .source_stride = source.stride,
                                       .place = target.place,
                                       .first = target.first,
                                       .outputs = source.outputs,
                                       .scales = finished.empty()
                                                     ? kernels::StoredScales{source.scales->file,
                                                                             scale_offset_of(source),
                                                                             dtype_of(source.scales->type),
                                                                             source.scale_stride,
                                                                             source.first_in_block}
                                                     : kernels::StoredScales{&scales, 0, DType::f32, 1}});
    return;
  }
  const kernels::RowPart part{source.first_input, source.row_inputs};
  kernels::run(device, kernels::Pack{
                           .into = target.matrix,
                           .file = source.tensor->file,
                           .offset = part.counts(target.matrix) ? source.row_offset() : source.offset(),
                           .source_dtype = dtype_of(source.tensor->type),
                           .transposed = source.transposed,
                           .source_stride = source.stride,
                           .place = target.place,
                           .first = target.first,
                           .outputs = source.outputs,
                           .part = part,
                       });
}

template <Device D>
Result<Weights<D>> Weights<D>::load(D& device, const ModelSpec& spec, const WeightFormats& formats,
                                    const TensorMap& map, const LoadProgress& progress) {
  Weights weights;
  const std::size_t bytes = WeightLayout::make(spec, formats, map.tied, {}).bytes;
  Result<Buffer<D>> memory = Buffer<D>::make(device, bytes, "weights");
  if (!memory) return memory.status();
  weights.memory_ = std::move(*memory);
  weights.layout_ = WeightLayout::make(spec, formats, map.tied, weights.memory_.view());

  std::uint64_t done = 0, total = 0;
  for (const WeightSource& source : map.sources) total += source.bytes();
  ReadAhead ahead(map);
  PaddleCodes codes;
  for (std::size_t i = 0; i < map.sources.size(); ++i) {
    const WeightSource& source = map.sources[i];
    ahead.reached(i);
    if (progress) progress(done, total);
    done += source.bytes();
    const WeightTarget target = target_of(weights.layout_, spec, source.weight, source.layer, source.expert);
    if (target.vector != nullptr) {
      upload_vector(device, source, formats.activations, target.vector);
    } else {
      if (source.stored && source.stored->wint2()) {
        const Result<int> differing = check_wint2_numbers(cpu_features().best, source);
        if (!differing) return differing.status();
        weights.wint2_differing_ += *differing;
        weights.wint2_outputs_ += source.outputs;
      }
      pack_source(device, source, target, codes);
      if (kernels::StaticInput* const input = static_input_target(weights.layout_, source)) {
        const kernels::StaticInput value = static_input_of(source);
        device.upload(input, &value, sizeof value);
        device.sync();
      }
      if (source.weight == Weight::embedding && weights.layout_.head_copies_embedding(map.tied)) {
        pack_source(device, source, {weights.layout_.lm_head}, codes);
      }
    }
    if (Status s = source.tensor->file->status(); !s.ok()) return s;
  }
  device.sync();
  if (Status s = check_scales(device, weights.layout_, spec, map); !s.ok()) return s;
  if (progress) progress(total, total);
  return weights;
}

/// FNV-1a of the name that the weight has in a -PT checkpoint.
inline std::uint64_t dummy_seed(std::uint64_t seed, Weight weight, int layer,
                                int expert = WeightSource::kNoExpert) {
  std::uint64_t hash = 0xcbf29ce484222325u ^ seed;
  for (const char c : weight_name(weight, layer, expert))
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// mean + the draws of row 0 of a matrix of that seed, rounded to bf16.
inline std::vector<float> dummy_vector(std::uint64_t seed, int size, float mean, float deviation) {
  std::vector<float> values(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    const std::uint64_t bits =
        kernels::draw_bits(seed, 0, static_cast<std::uint32_t>(i / kernels::kDrawsPerHash)) >>
        (16 * (i % kernels::kDrawsPerHash));
    const float drawn = mean + kernels::normal_quantiles()[bits % kernels::kQuantiles] * deviation;
    std::uint16_t rounded = 0;
    store_element(&rounded, DType::bf16, 0, drawn);
    values[static_cast<std::size_t>(i)] = load_element(&rounded, DType::bf16, 0);
  }
  return values;
}

/// Correction biases of a layer: see Weights::dummy(). The sum is of two numbers that are there already, so it has the same
/// bits everywhere.
inline std::vector<float> dummy_biases(std::uint64_t seed, int experts, float range) {
  const auto level = static_cast<float>(kernels::draw_bits(seed, 1, 0) >> 48);
  std::vector<float> values = dummy_vector(seed, experts, 0, std::max(range * range, kLeastBiasDeviation));
  for (float& value : values) value += kLowestBias + level * (kBiasLevels / 65536);
  return values;
}

/// Static scales of drawn weights: rows of experts within ±8, rotated ones within ±64, keys and values within
/// ±16.
template <Device D>
void fill_static(D& device, const WeightLayout& layout, const ModelSpec& spec, const WeightFormats& formats) {
  const auto inputs = [](float largest, int count) {
    // The scale of a drawn weight's codes is not finished: the sum's factor stands for the rest.
    return std::vector<kernels::StaticInput>(static_cast<std::size_t>(count), {127 / largest, largest / 127});
  };
  const auto upload = [&](auto* to, const auto& values) {
    device.upload(const_cast<void*>(static_cast<const void*>(to)), values.data(),
                  values.size() * sizeof values[0]);
    device.sync();
  };
  for (const LayerWeights& layer : layout.layers) {
    if (formats.w4a8 && layer.moe()) {
      upload(layer.gate_up_inputs, inputs(8, layer.expert_gate_up.count));
      upload(layer.down_inputs, inputs(64, layer.expert_down.count));
    }
    if (!formats.static_kv) continue;
    const std::vector<float> channels(static_cast<std::size_t>(spec.kv_width()), 16.0f);
    upload(layer.static_kv.keys, channels);
    upload(layer.static_kv.values, channels);
  }
}

template <Device D>
Result<Weights<D>> Weights<D>::dummy(D& device, const ModelSpec& spec, const WeightFormats& formats,
                                     std::uint64_t seed, const Shard& shard) {
  Weights weights;
  const Result<ModelSpec> part = part_of(spec, shard);
  if (!part) return part.status();
  const bool tied = spec.tied.value_or(true);
  const std::size_t bytes = WeightLayout::make(*part, formats, tied, {}).bytes;
  Result<Buffer<D>> memory = Buffer<D>::make(device, bytes, "weights");
  if (!memory) return memory.status();
  weights.memory_ = std::move(*memory);
  weights.layout_ = WeightLayout::make(*part, formats, tied, weights.memory_.view());

  const float range = spec.initializer_range;
  const auto draw = [&](Weight weight, const WeightSource& source, const WeightTarget& target, int layer, int expert) {
    kernels::run(device, kernels::FillRandom{
                             .into = target.matrix,
                             .place = target.place,
                             .first = target.first,
                             .outputs = source.outputs,
                             .seed = dummy_seed(seed, weight, layer, expert),
                             .deviation = range,
                             .first_output = static_cast<int>(source.first / source.stride),
                             .part = {source.first_input, source.row_inputs},
                         });
  };
  // A matrix of the model, or what the rank holds of it.
  const auto fill = [&](Weight weight, int layer, int outputs, int inputs, int expert = WeightSource::kNoExpert) {
    const std::optional<WeightSource> held = part_of({.weight = weight,
                                                      .layer = layer,
                                                      .expert = expert,
                                                      .stride = inputs,
                                                      .outputs = outputs,
                                                      .inputs = inputs},
                                                     spec, *part, shard);
    if (!held) return;
    draw(weight, *held, target_of(weights.layout_, *part, weight, layer, held->expert), layer, expert);
    if (weight == Weight::embedding && weights.layout_.head_copies_embedding(tied)) {
      draw(weight, *held, {weights.layout_.lm_head}, layer, expert);
    }
  };
  const auto fill_vision_expert = [&](int layer, int width, int expert) {
    fill(Weight::vision_gate, layer, width, spec.hidden, expert);
    fill(Weight::vision_up, layer, width, spec.hidden, expert);
    fill(Weight::vision_down, layer, spec.hidden, width, expert);
  };
  const auto fill_attention = [&](int layer) {
    fill(Weight::query, layer, spec.q_width(), spec.hidden);
    fill(Weight::key, layer, spec.kv_width(), spec.hidden);
    fill(Weight::value, layer, spec.kv_width(), spec.hidden);
    fill(Weight::attention_out, layer, spec.hidden, spec.q_width());
  };
  const auto fill_mlp = [&](int layer, int width, int expert = WeightSource::kNoExpert) {
    fill(Weight::gate, layer, width, spec.hidden, expert);
    fill(Weight::up, layer, width, spec.hidden, expert);
    fill(Weight::down, layer, spec.hidden, width, expert);
  };
  const auto vector = [&](Weight weight, int layer, int size, float mean, float deviation) {
    const std::vector<float> values = dummy_vector(dummy_seed(seed, weight, layer), size, mean, deviation);
    device.upload(target_of(weights.layout_, *part, weight, layer).vector, values.data(),
                  values.size() * sizeof(float));
  };
  const auto norm = [&](Weight weight, int layer) { vector(weight, layer, spec.hidden, 1, range); };
  fill(Weight::embedding, 0, spec.vocab, spec.hidden);
  if (!tied) fill(Weight::lm_head, 0, spec.vocab, spec.hidden);
  norm(Weight::final_norm, 0);
  for (int layer = 0; layer < spec.layers; ++layer) {
    norm(Weight::input_norm, layer);
    norm(Weight::post_norm, layer);
    fill_attention(layer);
    if (!spec.moe_layer(layer)) {
      fill_mlp(layer, spec.intermediate);
      continue;
    }
    const auto router = [&](Weight matrix, Weight bias) {
      fill(matrix, layer, spec.experts, spec.hidden);
      const std::vector<float> biases = dummy_biases(dummy_seed(seed, bias, layer), spec.experts, range);
      device.upload(target_of(weights.layout_, *part, bias, layer).vector, biases.data(),
                    biases.size() * sizeof(float));
    };
    router(Weight::router, Weight::router_bias);
    if (spec.vision) {
      router(Weight::vision_router, Weight::vision_router_bias);
      for (int e = 0; e < spec.experts; ++e) fill_vision_expert(layer, spec.vision->expert_intermediate, e);
    }
    for (int e = 0; e < spec.experts + spec.shared_experts; ++e) fill_mlp(layer, spec.expert_intermediate, e);
  }
  if (spec.draft_layers > 0) {
    constexpr int kDraft = WeightSource::kDraftLayer;
    for (const Weight weight : {Weight::draft_embedding_norm, Weight::draft_hidden_norm, Weight::input_norm,
                                Weight::post_norm})
      norm(weight, kDraft);
    fill(Weight::draft_projection, kDraft, spec.hidden, 2 * spec.hidden);
    fill_attention(kDraft);
    fill_mlp(kDraft, spec.intermediate);
  }
  if (spec.vision) {
    VisionWeights unused;
    int index = 0;
    for (const VisionTensor& tensor : vision_tensors(*spec.vision, spec.hidden, unused)) {
      if (tensor.matrix != nullptr) {
        fill(Weight::vision, index++, tensor.outputs, tensor.inputs);
      } else {
        vector(Weight::vision, index++, tensor.inputs, tensor.scales ? 1 : 0, range);
      }
    }
  }
  fill_static(device, weights.layout_, *part, formats);
  device.sync();
  return weights;
}

}  // namespace troupe::model
