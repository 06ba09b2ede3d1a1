// Pack and FillRandom into wint2. A panel has the file's bytes as they are, 32 columns of each line.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/pack_quantised.h"
#include "kernels/cpu/quantiser.h"

namespace troupe::kernels {
namespace {

constexpr int kWint2LinesPerClaim = 16;

/// Neighbouring columns of the source that are neighbours in a panel too.
struct Run {
  int column = 0;  ///< of the source
  int count = 0;
  int panel = 0;
  int lane = 0;
};

std::vector<Run> runs_of(const Pack& op) {
  std::vector<Run> runs;
  for (int column = 0; column < op.outputs; ++column) {
    const int output = placed_output(op.place, op.first, column);
    const int panel = output / kPanel, lane = output % kPanel;
    if (!runs.empty() && runs.back().panel == panel && runs.back().lane + runs.back().count == lane) {
      ++runs.back().count;
    } else {
      runs.push_back({column, 1, panel, lane});
    }
  }
  return runs;
}

/// Reads `lines` lines of op.outputs bytes and gives each run of each line to place(line, run, bytes).
template <class Place>
void read_lines(Cpu& device, const Pack& op, const StoredWint2::Tensor& tensor, int lines,
                const std::vector<Run>& runs, Place&& place) {
  const auto bytes = static_cast<std::size_t>(op.outputs);
  device.reserve_lanes(bytes);
  device.pool().for_each(lines, kWint2LinesPerClaim, [&](int begin, int end, int lane) {
    auto* data = static_cast<std::uint8_t*>(device.lane(lane));
    for (int line = begin; line < end; ++line) {
      tensor.file->read(
          tensor.offset + static_cast<std::uint64_t>(line) * static_cast<std::uint64_t>(op.source_stride),
          data, bytes);
      for (const Run& run : runs) place(static_cast<std::size_t>(line), run, data + run.column);
    }
  });
}

std::vector<float> read_floats(const StoredWint2::Tensor& tensor, DType type, int count) {
  const auto numbers = static_cast<std::size_t>(count);
  std::vector<std::uint32_t> data(numbers);  // aligned, and at least as large
  tensor.file->read(tensor.offset, data.data(), numbers * size_of(type));
  std::vector<float> floats(numbers);
  for (std::size_t i = 0; i < numbers; ++i) floats[i] = load_element(data.data(), type, i);
  return floats;
}

void put_line(const Matrix& into, int output, float super_scale, float code_scale, float code_zp) {
  const Wint2Scales scales = wint2_scales(into, output / kPanel);
  scales.super_scales[output % kPanel] = super_scale;
  scales.code_scales[output % kPanel] = code_scale;
  scales.code_scales[kPanel + output % kPanel] = code_zp;
}

}  // namespace

void pack_wint2(Cpu& device, const Pack& op) {
  const StoredWint2& source = *op.wint2;
  TROUPE_CHECK(op.into.format.kind == WeightKind::wint2 && op.into.inputs % kWint2Unit == 0 &&
               op.source_stride >= op.outputs);
  const std::vector<Run> runs = runs_of(op);
  const std::size_t bytes = panel_bytes(op.into.format, op.into.inputs);
  read_lines(device, op, {op.file, op.offset}, op.into.inputs / kWint2Inputs, runs,
             [&](std::size_t line, const Run& run, const std::uint8_t* from) {
               auto* panel =
                   static_cast<std::uint8_t*>(op.into.data) + static_cast<std::size_t>(run.panel) * bytes;
               std::memcpy(panel + line * kPanel + run.lane, from, static_cast<std::size_t>(run.count));
             });
  read_lines(device, op, source.groups, op.into.inputs / kWint2Unit, runs,
             [&](std::size_t line, const Run& run, const std::uint8_t* from) {
               std::memcpy(wint2_scales(op.into, run.panel).groups + line * kPanel + run.lane, from,
                           static_cast<std::size_t>(run.count));
             });
  const std::vector<float> super_scales = read_floats(source.super_scales, source.super_type, op.outputs),
                           code_scales = read_floats(source.code_scales, DType::f32, op.outputs),
                           code_zps = read_floats(source.code_zps, DType::f32, op.outputs);
  for (int column = 0; column < op.outputs; ++column) {
    const auto c = static_cast<std::size_t>(column);
    put_line(op.into, placed_output(op.place, op.first, column), super_scales[c], code_scales[c],
             code_zps[c]);
  }
}

void fill_wint2(Cpu& device, const FillRandom& op) {
  const int inputs = op.into.inputs, first = op.part.first;
  TROUPE_CHECK(inputs % kWint2Unit == 0 && first % kWint2Unit == 0);
  const float super_scale = drawn_wint2_super_scale(op.deviation);
  const std::size_t bytes = panel_bytes(op.into.format, inputs);
  device.pool().for_each((op.outputs + kPanel - 1) / kPanel, 1, [&](int begin, int end, int) {
    for (int o = begin * kPanel; o < std::min(op.outputs, end * kPanel); ++o) {
      const int output = placed_output(op.place, op.first, o);
      const auto row = static_cast<std::uint32_t>(op.first_output + o);
      auto* to = static_cast<std::uint8_t*>(op.into.data) +
                 static_cast<std::size_t>(output / kPanel) * bytes + output % kPanel;
      for (int i = 0; i < inputs; i += kWint2DrawnInputs) {
        std::uint64_t bits = draw_bits(op.seed, row, wint2_draw(first + i));
        for (int b = 0; b < 8; ++b, bits >>= 8, to += kPanel) *to = static_cast<std::uint8_t>(bits);
      }
      std::uint8_t* groups = wint2_scales(op.into, output / kPanel).groups + output % kPanel;
      for (int i = 0; i < inputs; i += kWint2Unit, groups += kPanel)
        *groups = drawn_wint2_scales(op.seed, row, (first + i) / kWint2Unit);
      put_line(op.into, output, super_scale, kWint2DrawnLine.scale, kWint2DrawnLine.zp);
    }
  });
}

}  // namespace troupe::kernels
