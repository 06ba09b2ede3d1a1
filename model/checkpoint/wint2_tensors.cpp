#include "model/checkpoint/wint2_tensors.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/routines.h"
#include "kernels/weight_format.h"
#include "kernels/wint2.h"
#include "model/weight_target.h"

namespace troupe::model {
namespace {

using Shape = std::vector<std::int64_t>;

/// True if no group of the source has a scale other than 0.
bool all_zero(const WeightSource& source) {
  std::vector<std::uint8_t> line(static_cast<std::size_t>(source.outputs));
  for (int i = 0; i < source.inputs / kernels::kWint2Unit; ++i) {
    source.scales->file->read(
        source.scales->offset + static_cast<std::uint64_t>(source.first_scale + i * source.scale_stride),
        line.data(), line.size());
    if (std::ranges::any_of(line, [](std::uint8_t both) { return both != 0; })) return false;
  }
  return true;
}

}  // namespace

Status check_wint2_shapes(const FileTensor& codes, const FileTensor& groups, const Wint2Tensors& others,
                          std::int64_t outputs, std::int64_t inputs) {
  if (inputs % kernels::kWint2Unit != 0) {
    return invalid("has " + std::to_string(inputs) + " inputs; wint2 takes multiples of " +
                   std::to_string(kernels::kWint2Unit));
  }
  Status status;
  const auto check = [&](const char* suffix, const FileTensor& tensor, const Shape& shape, bool typed,
                         const char* types) {
    if (!status.ok() || (typed && tensor.shape == shape)) return;
    status =
        invalid("has a " + std::string(suffix) + " that is " + to_string(tensor.type) + " of the shape " +
                shape_text(tensor.shape) + "; expected is " + types + " of " + shape_text(shape));
  };
  check("quant_weight", codes, {inputs / kernels::kWint2Inputs, outputs}, codes.type == FileType::u8, "U8");
  check("weight_scale", groups, {inputs / kernels::kWint2Unit, outputs}, groups.type == FileType::u8, "U8");
  const FileType type = others.super_scales->type;
  check("super_scales", *others.super_scales, {outputs},
        type == FileType::bf16 || type == FileType::f16 || type == FileType::f32, "BF16, F16 or F32");
  check("code_scale", *others.code_scales, {outputs}, others.code_scales->type == FileType::f32, "F32");
  check("code_zp", *others.code_zps, {outputs}, others.code_zps->type == FileType::f32, "F32");
  return status;
}

Result<int> check_wint2_numbers(Isa isa, const WeightSource& source) {
  const std::string at = source.name.substr(0, source.name.rfind('.') + 1);
  const std::int64_t first = source.first % source.stride;
  const auto wrong = [&](const char* tensor, std::size_t output, const std::string& what) {
    return invalid("The tensor '" + at + tensor + "' has " + what + " for output " +
                   std::to_string(first + static_cast<std::int64_t>(output)));
  };
  const auto outputs = static_cast<std::size_t>(source.outputs);
  const std::vector<float> super_scales = numbers_of(*source.wint2.super_scales, first, outputs),
                           code_scales = numbers_of(*source.wint2.code_scales, first, outputs),
                           code_zps = numbers_of(*source.wint2.code_zps, first, outputs);
  for (std::size_t i = 0; i < super_scales.size(); ++i) {
    const auto shown = [](float number) { return "the number " + std::to_string(number); };
    if (!std::isfinite(super_scales[i]) || super_scales[i] == 0)
      return wrong("super_scales", i, shown(super_scales[i]) + "; a finite one other than 0 is needed");
    if (!std::isfinite(code_scales[i]) || code_scales[i] == 0)
      return wrong("code_scale", i, shown(code_scales[i]) + "; a finite one other than 0 is needed");
    if (!std::isfinite(code_zps[i]))
      return wrong("code_zp", i, shown(code_zps[i]) + "; a finite one is needed");
  }
  const kernels::Wint2Lines lines =
      kernels::routines(isa).wint2_lines(code_scales.data(), code_zps.data(), source.outputs);
  if (lines.out_of_range >= 0) {
    const auto i = static_cast<std::size_t>(lines.out_of_range);
    return wrong("code_scale", i,
                 std::to_string(code_scales[i]) + " and a code_zp of " + std::to_string(code_zps[i]) +
                     ", by which code words leave 0 … " + std::to_string(kernels::kWint2LargestWord));
  }
  if (all_zero(source)) {
    return invalid("The tensor '" + at +
                   "weight_scale' is zero throughout, which would make all weights zero.");
  }
  return lines.differing;
}

}  // namespace troupe::model
