#include "model/weight_target.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/e4m3.h"

namespace troupe::model {

WeightTarget target_of(const WeightLayout& layout, const ModelSpec& spec, Weight weight, int layer,
                       int expert) {
  using kernels::Place;
  if (weight == Weight::vision) {
    // The list leads into a copy; where the memory is, is the same.
    VisionWeights weights = layout.vision;
    const VisionTensor tensor =
        vision_tensors(*spec.vision, spec.hidden, weights)[static_cast<std::size_t>(layer)];
    return tensor.matrix != nullptr ? WeightTarget{.matrix = *tensor.matrix}
                                    : WeightTarget{.vector = const_cast<float*>(*tensor.vector)};
  }
  const LayerWeights& l = layout.layer(layer);
  const bool dense = expert == WeightSource::kNoExpert;
  // The stacks of experts end before shared slices that are stored otherwise.
  const int slice = expert - l.expert_down.count;
  const auto one = [&](const kernels::MatrixStack& experts, const kernels::MatrixStack& shared) {
    return slice < 0 ? experts.at(expert) : shared.at(slice);
  };
  const auto vector = [](const float* to) { return WeightTarget{.vector = const_cast<float*>(to)}; };
  switch (weight) {
    case Weight::embedding: return {layout.embedding};
    case Weight::lm_head: return {layout.lm_head};
    case Weight::final_norm: return vector(layout.final_norm);
    case Weight::input_norm: return vector(l.input_norm);
    case Weight::query: return {l.qkv};
    case Weight::key: return {l.qkv, Place::rows, spec.q_width()};
    case Weight::value: return {l.qkv, Place::rows, spec.q_width() + spec.kv_width()};
    case Weight::attention_out: return {l.attention_out};
    case Weight::post_norm: return vector(l.post_norm);
    case Weight::gate: return {dense ? l.gate_up : one(l.expert_gate_up, l.shared_gate_up), Place::gate};
    case Weight::up: return {dense ? l.gate_up : one(l.expert_gate_up, l.shared_gate_up), Place::up};
    case Weight::down: return {dense ? l.down : one(l.expert_down, l.shared_down)};
    case Weight::router: return {l.router};
    case Weight::router_bias: return vector(l.router_bias);
    case Weight::vision_gate: return {l.vision.gate_up.at(expert), Place::gate};
    case Weight::vision_up: return {l.vision.gate_up.at(expert), Place::up};
    case Weight::vision_down: return {l.vision.down.at(expert)};
    case Weight::vision_router: return {l.vision.router};
    case Weight::vision_router_bias: return vector(l.vision.router_bias);
    case Weight::key_scale: return vector(l.static_kv.keys);
    case Weight::value_scale: return vector(l.static_kv.values);
    case Weight::draft_embedding_norm: return vector(layout.draft.embedding_norm);
    case Weight::draft_hidden_norm: return vector(layout.draft.hidden_norm);
    case Weight::draft_projection: return {layout.draft.projection};
    case Weight::vision: break;  // above
  }
  TROUPE_CHECK(false);
  return {};
}

kernels::StaticInput* static_input_target(const WeightLayout& layout, const WeightSource& source) {
  if (source.input_scale == nullptr || source.weight == Weight::up) return nullptr;
  const LayerWeights& layer = layout.layer(source.layer);
  return (source.weight == Weight::gate ? layer.gate_up_inputs : layer.down_inputs) + source.expert;
}

DType dtype_of(FileType type) {
  switch (type) {
    case FileType::f16: return DType::f16;
    case FileType::f32: return DType::f32;
    default: TROUPE_CHECK(type == FileType::bf16); return DType::bf16;
  }
}

std::vector<float> numbers_of(const FileTensor& tensor, std::int64_t first, std::size_t count) {
  const DType type = dtype_of(tensor.type);
  std::vector<std::uint32_t> data(count);  // aligned, and at least as large
  tensor.file->read(tensor.offset + static_cast<std::uint64_t>(first) * size_of(type), data.data(),
                    count * size_of(type));
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = load_element(data.data(), type, i);
  return values;
}

std::uint64_t scale_offset_of(const WeightSource& source) {
  return source.scales->offset +
         static_cast<std::uint64_t>(source.first_scale) * size_of(source.scales->type);
}

namespace {

/// Lines of numbers in a file, `stride` bytes apart.
struct Lines {
  const ByteSource* file = nullptr;
  std::uint64_t offset = 0, count = 0, stride = 0;
  std::size_t length = 0;
  DType type{};
};

bool all_finite(const Lines& lines) {
  std::vector<std::uint32_t> line(lines.length);  // aligned, and at least as large
  for (std::uint64_t i = 0; i < lines.count; ++i) {
    lines.file->read(lines.offset + i * lines.stride, line.data(), lines.length * size_of(lines.type));
    for (std::size_t e = 0; e < lines.length; ++e) {
      if (!std::isfinite(load_element(line.data(), lines.type, e))) return false;
    }
  }
  return true;
}

/// Codes and scales of a source of fp8.
bool all_finite_fp8(const WeightSource& source) {
  constexpr int kBlock = kernels::kFp8Block;
  const FileTensor& scales = *source.scales;
  const DType type = dtype_of(scales.type);
  const Lines lines{
      scales.file,
      scale_offset_of(source),
      static_cast<std::uint64_t>((source.first_in_block + source.outputs + kBlock - 1) / kBlock),
      static_cast<std::uint64_t>(source.scale_stride) * size_of(type),
      static_cast<std::size_t>((source.inputs + kBlock - 1) / kBlock),
      type};
  if (!all_finite(lines)) return false;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(source.inputs));
  for (int o = 0; o < source.outputs; ++o) {
    source.tensor->file->read(
        source.offset() + static_cast<std::uint64_t>(o) * static_cast<std::uint64_t>(source.stride),
        codes.data(), codes.size());
    if (std::ranges::any_of(codes,
                            [](std::uint8_t code) { return std::isnan(kernels::e4m3_to_float(code)); }))
      return false;
  }
  return true;
}

}  // namespace

bool all_finite(const WeightSource& source) {
  if (source.stored && source.stored->fp8) return all_finite_fp8(source);
  const FileTensor& numbers = source.stored ? *source.scales : *source.tensor;
  const DType type = dtype_of(numbers.type);
  const auto stride = static_cast<std::uint64_t>(source.stored ? source.scale_stride : source.stride);
  Lines lines{numbers.file,
              source.stored ? scale_offset_of(source) : source.offset(),
              static_cast<std::uint64_t>(source.transposed ? source.inputs : source.outputs),
              stride * size_of(type),
              static_cast<std::size_t>(source.transposed ? source.outputs : source.inputs),
              type};
  if (source.stored)
    lines.length = static_cast<std::size_t>(source.scale_stride - source.first_scale % source.scale_stride);
  return all_finite(lines);
}

}  // namespace troupe::model
