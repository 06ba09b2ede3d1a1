#include "kernels/cpu/quantiser.h"

#include <cstring>

#include "base/check.h"
#include "kernels/cpu/layout.h"
#include "kernels/quantize.h"

namespace troupe::kernels {
namespace {

std::size_t scale_index(const Matrix& m, int output, int group) {
  if (m.format.group == 0) return static_cast<std::size_t>(output);
  const auto groups = static_cast<std::size_t>(padded_inputs(m.format, m.inputs) / m.format.group);
  return (static_cast<std::size_t>(output / kPanel) * groups + static_cast<std::size_t>(group)) * kPanel +
         static_cast<std::size_t>(output % kPanel);
}

std::uint32_t four(const std::int8_t* codes) {
  std::uint32_t word;
  std::memcpy(&word, codes, sizeof word);
  return word;
}

}  // namespace

PanelScales panel_scales(const Matrix& m, int panel, int input, bool last) {
  if (m.format.kind == WeightKind::wint2) {
    const Wint2Scales scales = wint2_scales(m, panel);
    return {last ? scales.super_scales : nullptr, scales.code_scales,
            scales.groups + static_cast<std::size_t>(input / kWint2Unit) * kPanel};
  }
  const int group = m.format.group;
  if (group == 0 && !last) return {};
  return {static_cast<const std::byte*>(scales_of(m)) +
          scale_index(m, panel * kPanel, group == 0 ? 0 : input / group) * (group == 0 ? 4 : 2)};
}

Wint2Scales wint2_scales(const Matrix& m, int panel) {
  const auto rows = static_cast<std::size_t>(padded_inputs(m.format, m.inputs) / kWint2Unit);
  auto* floats =
      reinterpret_cast<float*>(static_cast<std::byte*>(scales_of(m)) +
                               static_cast<std::size_t>(panel) * kPanel * (3 * sizeof(float) + rows));
  return {floats, floats + kPanel, reinterpret_cast<std::uint8_t*>(floats + 3 * kPanel)};
}

void place_codes(const Matrix& into, int output, const std::int8_t* codes) {
  constexpr std::size_t kStepBytes = 4 * kPanel;
  const int width = padded_inputs(into.format, into.inputs);
  auto* to = static_cast<std::byte*>(into.data) +
             static_cast<std::size_t>(output / kPanel) * panel_bytes(into.format, into.inputs) +
             static_cast<std::size_t>(output % kPanel) * 4;
  if (into.format.kind == WeightKind::int4) {
    for (int i = 0; i < width; i += 8, to += kStepBytes) {
      const std::uint32_t low = (four(codes + i) & 0x0f0f0f0fu) ^ 0x08080808u;  // code + 8
      const std::uint32_t high = (four(codes + i + 4) & 0x0f0f0f0fu) ^ 0x08080808u;
      const std::uint32_t word = low | high << 4;
      std::memcpy(to, &word, sizeof word);
    }
  } else {
    for (int i = 0; i < width; i += 4, to += kStepBytes) {
      const std::uint32_t word = four(codes + i) ^ 0x80808080u;  // code + 128
      std::memcpy(to, &word, sizeof word);
    }
  }
}

void place_scale(const Matrix& into, int output, int group, float scale) {
  const std::size_t at = scale_index(into, output, group);
  if (into.format.group == 0) {
    static_cast<float*>(scales_of(into))[at] = scale;
  } else {
    static_cast<std::uint16_t*>(scales_of(into))[at] = float_to_bf16(scale);
  }
}

void Quantiser::put(int output, const float* line, std::int8_t* codes) const {
  TROUPE_CHECK(into_.format.kind != WeightKind::wint2);
  const int group = inputs_per_scale(into_);
  const float* const taken = line + skipped_;
  for (int from = 0; from < width_; from += group) {
    const auto count = static_cast<std::size_t>(group);
    const bool whole = into_.format.group == 0;
    const float largest = whole ? r_.largest_magnitude(line, static_cast<std::size_t>(line_width_))
                                : r_.largest_magnitude(line + from, count);
    const float scale = scale_for(into_.format, largest);
    if (scale > 0) {
      r_.codes(codes + from, taken + from, count, scale, largest_code(into_.format.kind));
    } else {
      std::memset(codes + from, 0, count);
    }
    place_scale(into_, output, from / group, scale);
  }
  std::memset(codes + into_.inputs, 0,
              static_cast<std::size_t>(width_ - into_.inputs));  // the rest of a longer row
  place_codes(into_, output, codes);
}

}  // namespace troupe::kernels
