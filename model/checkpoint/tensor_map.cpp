#include "model/checkpoint/tensor_map.h"

#include <cstring>
#include <string_view>

#include "kernels/matrix.h"
#include "kernels/wint2.h"
#include "model/checkpoint/expected_tensors.h"
#include "model/checkpoint/paddle_codes.h"
#include "model/checkpoint/wint2_tensors.h"

namespace troupe::model {
namespace {

/// Of a linear in an order of Paddle's kernels, instead of ".weight".
const std::string kPaddleCodes = ".quant_weight", kInputScale = ".activation_scale";
/// Of wint2, in the order of Wint2Tensors.
const std::string kWint2Suffixes[] = {".super_scales", ".code_scale", ".code_zp"};

class Mapper {
 public:
  Mapper(const ModelSpec& spec, const Checkpoint& checkpoint, bool draft)
      : spec_(spec), checkpoint_(checkpoint), draft_(draft) {}

  Result<TensorMap> map() {
    index_names();
    if (status_.ok()) name_stored();
    if (!status_.ok()) return status_;
    skip_known();
    Result<std::vector<Expected>> expected =
        draft_ ? expected_draft_tensors(spec_, names_) : expected_tensors(spec_, map_.tied, names_);
    if (!expected) return expected.status();
    find_orientation(*expected);
    for (const Expected& e : *expected) take(e);
    if (!status_.ok()) return status_;
    if (!names_.empty()) return does_not_fit("unknown tensors", names_);
    return std::move(map_);
  }

 private:
  // Every tensor under its -PT prefix, with its name in the file.
  void index_names() {
    constexpr std::string_view kPaddle = "ernie.";
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      const bool paddle = name.starts_with(kPaddle);
      paddle_prefix_ |= paddle;
      std::string common = paddle ? "model." + name.substr(kPaddle.size()) : name;
      if (draft_ && !common.starts_with(kDraftPrefix)) continue;
      if (spec_.vision) rename_vision(common);
      if (take_stored(common, tensor)) continue;
      const auto [at, added] = names_.emplace(std::move(common), name);
      if (!added) {
        fail("the tensors '" + at->second + "' and '" + name + "' are the same weight.");
      }
    }
  }

  // From transformers' names in memory, and those of older files, to the hub's.
  static void rename_vision(std::string& name) {
    struct Renamed {
      std::string_view from, to;
    };
    for (const auto& [from, to] :
         {Renamed{"model.language_model.", "model."}, Renamed{"model.vision_tower.", "vision_model."},
          Renamed{"model.vision_model.", "vision_model."}}) {
      if (name.starts_with(from)) name.replace(0, from.size(), to);
    }
    for (const auto& [from, to] :
         {Renamed{"_linear.fc1.", "_linear.0."}, Renamed{"_linear.fc2.", "_linear.2."},
          Renamed{"_linear.ln.", "_linear.3."}}) {
      if (const std::size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
    }
  }

  // Codes stand for the weight that they replace. Scales and shapes are kept apart.
  bool take_stored(const std::string& common, const FileTensor& tensor) {
    for (const char* suffix : {"_packed", "_scale", "_shape", "_scale_inv"}) {
      if (!common.ends_with(std::string(".weight") + suffix)) continue;
      stored_[common.substr(0, common.size() - std::strlen(suffix))].emplace(suffix, &tensor);
      return true;
    }
    for (const std::string& suffix :
         {kPaddleCodes, kInputScale, kWint2Suffixes[0], kWint2Suffixes[1], kWint2Suffixes[2]}) {
      if (!common.ends_with(suffix) || common.ends_with("_matmul.activation_scale")) continue;
      stored_[common.substr(0, common.size() - suffix.size()) + ".weight"].emplace(suffix, &tensor);
      return true;
    }
    return false;
  }

  // After index_names(): every weight that is stored as codes gets its name.
  void name_stored() {
    for (const auto& [name, parts] : stored_) {
      if (parts.contains("_scale_inv")) {
        if (!names_.contains(name))
          return fail("'" + name + "' is missing beside its scales, '" + name + "_scale_inv'.");
        if (parts.size() > 1)
          return fail("'" + name + "_scale_inv' stands beside scales or codes of another form.");
        continue;
      }
      if (const auto codes = parts.find(kPaddleCodes); codes != parts.end()) {
        const std::string module = name.substr(0, name.size() - std::strlen(".weight"));
        if (!parts.contains("_scale"))
          return fail("the tensor '" + shown(module) + kPaddleCodes + "' has no scales, '" + shown(module) +
                      ".weight_scale'.");
        if (!names_.emplace(name, shown(module) + kPaddleCodes).second) {
          return fail("the tensors '" + shown(name) + "' and '" + shown(module) + kPaddleCodes +
                      "' are the same weight.");
        }
        continue;
      }
      if (!parts.contains("_packed"))
        return fail("'" + name + "_packed' is missing beside its scale or shape.");
      if (!parts.contains("_scale"))
        return fail("the tensor '" + name + "_packed' has no scales, '" + name + "_scale'.");
      if (!names_.emplace(name, name + "_packed").second) {
        return fail("the tensors '" + name + "' and '" + name + "_packed' are the same weight.");
      }
    }
  }

  // Tensors that are not needed: multi-token prediction serves speculation alone, rotation tables follow from
  // rope_theta, a tied head repeats the embedding.
  void skip_known() {
    map_.tied = spec_.tied.value_or(!names_.contains("lm_head.weight"));
    for (auto it = names_.begin(); it != names_.end();) {
      const bool draft = !draft_ && it->first.starts_with(kDraftPrefix);
      const bool rotation = it->first.ends_with(".rotary_emb.inv_freq");
      const bool copy = map_.tied && it->first == "lm_head.weight";
      if (!draft && !rotation && !copy) {
        ++it;
        continue;
      }
      map_.skipped.push_back(it->second);
      it = names_.erase(it);
    }
  }

  bool stored(const Expected& expected) const { return stored_.contains(expected.name); }

  const FileTensor& tensor(const Expected& expected) const {
    return *checkpoint_.find(names_.find(expected.name)->second);
  }

  void find_orientation(const std::vector<Expected>& all) {
    for (const Expected& expected : all) {
      if (!expected.oriented() || stored(expected) || expected.outputs == expected.inputs) continue;
      const std::vector<std::int64_t>& shape = tensor(expected).shape;
      for (const bool transposed : {false, true}) {
        if (shape != expected.shape(transposed)) continue;
        map_.transposed = transposed;
        return;
      }
    }
    map_.transposed = paddle_prefix_;  // all matrices are square: only the dialect tells
  }

  std::nullopt_t not_configured(const std::string& name) {
    fail("the tensor '" + name + "' is quantised, and quantization_config does not say how.");
    return std::nullopt;
  }

  // In the file's own dialect.
  std::string shown(const std::string& name) const {
    constexpr std::string_view kModel = "model.";
    return paddle_prefix_ && name.starts_with(kModel) ? "ernie." + name.substr(kModel.size()) : name;
  }

  // What quantization_config says of the linear.
  std::optional<StoredFormat> configured(const Expected& expected) const {
    const std::string module = expected.name.substr(0, expected.name.size() - std::strlen(".weight"));
    return spec_.stored_quantisation ? spec_.stored_quantisation->of(module) : std::nullopt;
  }

  static bool is_float(const FileTensor& tensor) {
    return tensor.type == FileType::bf16 || tensor.type == FileType::f16 || tensor.type == FileType::f32;
  }

  /// A part of a linear that is quantised already, whose codes are counted in rows of outputs; without
  /// scales.
  static WeightSource stored_part(const Expected& expected, const Part& part, const FileTensor& codes,
                                  const std::string& name, const StoredFormat& format) {
    return {.weight = part.weight,
            .layer = expected.layer,
            .expert = part.expert,
            .tensor = &codes,
            .name = name,
            .first = part.first_output * expected.inputs + part.first_input,
            .stride = expected.inputs,
            .outputs = part.outputs,
            .inputs = part.inputs,
            .stored = format};
  }

  void take_fp8(const Expected& expected) {
    const auto config = configured(expected);
    const std::string& name = names_.at(expected.name);
    if (!config || !config->fp8 || !expected.may_be_stored()) return (void)not_configured(name);
    const FileTensor &codes = tensor(expected), &scales = *stored_.at(expected.name).at("_scale_inv");
    constexpr int kBlock = kernels::kFp8Block;
    const std::int64_t rows = (expected.outputs + kBlock - 1) / kBlock,
                       row = (expected.inputs + kBlock - 1) / kBlock;
    const auto check = [&](const std::string& of, const FileTensor& tensor,
                           const std::vector<std::int64_t>& shape, bool type_fits, const char* types) {
      if (tensor.shape == shape && type_fits) return;
      fail("the tensor '" + of + "' is " + to_string(tensor.type) + " of the shape " +
           shape_text(tensor.shape) + "; expected is " + types + " of " + shape_text(shape) +
           " for fp8 in blocks of 128 × 128.");
    };
    check(name, codes, {expected.outputs, expected.inputs}, codes.type == FileType::f8_e4m3, "F8_E4M3");
    check(name + "_scale_inv", scales, {rows, row}, is_float(scales), "F32, BF16 or F16");
    for (const Part& part : expected.parts) {
      // A weight that fills its blocks when it is padded is taken to begin with one (linear_fp8_cuda.cu).
      const bool within_block =
          part.first_output % kBlock != 0 && kernels::padded(part.outputs) % kBlock == 0;
      if (part.first_input % kBlock != 0 || part.first_output % kernels::kFp8ScaleOutputs != 0 ||
          within_block) {
        return fail(
            "the tensor '" + name + "' has blocks of 128 × 128, which cannot be cut into weights of " +
            std::to_string(part.outputs) + " outputs and " + std::to_string(part.inputs) + " inputs.");
      }
      WeightSource& source = map_.sources.emplace_back(stored_part(expected, part, codes, name, *config));
      source.scales = &scales;
      source.first_scale = part.first_output / kBlock * row + part.first_input / kBlock;
      source.scale_stride = row;
      source.first_in_block = static_cast<int>(part.first_output % kBlock);
    }
    names_.erase(expected.name);
  }

  // The format of a linear that is stored as packed integers, or nothing after fail().
  std::optional<StoredFormat> stored_format(const Expected& expected) {
    const auto& parts = stored_.at(expected.name);
    const FileTensor& codes = *parts.at("_packed");
    const FileTensor& scales = *parts.at("_scale");
    const auto config = configured(expected);
    if (!config || config->fp8 || !expected.may_be_stored()) return not_configured(expected.name + "_packed");
    const std::int64_t words = (expected.inputs * config->bits + 31) / 32;
    const std::int64_t groups =
        config->group == 0 ? 1 : (expected.inputs + config->group - 1) / config->group;
    const auto check = [&](const char* suffix, const FileTensor& tensor,
                           const std::vector<std::int64_t>& shape, bool type_fits, const char* types) {
      if (tensor.shape == shape && type_fits) return;
      fail("the tensor '" + expected.name + suffix + "' is " + to_string(tensor.type) + " of the shape " +
           shape_text(tensor.shape) + "; expected is " + types + " of " + shape_text(shape) + " for " +
           std::to_string(config->bits) + " bits" +
           (config->group == 0 ? "" : " in groups of " + std::to_string(config->group)) + ".");
    };
    check("_packed", codes, {expected.outputs, words}, codes.type == FileType::i32, "I32");
    check("_scale", scales, {expected.outputs, groups}, is_float(scales), "BF16, F16 or F32");
    if (const auto shape = parts.find("_shape"); shape != parts.end()) check_shape(expected, *shape->second);
    if (!status_.ok()) return std::nullopt;
    return config;
  }

  void check_shape(const Expected& expected, const FileTensor& tensor) {
    std::int64_t shape[2] = {};
    if (tensor.type == FileType::i64 && tensor.shape == std::vector<std::int64_t>{2}) {
      tensor.file->read(tensor.offset, shape, sizeof shape);
    }
    if (shape[0] == expected.outputs && shape[1] == expected.inputs) return;
    fail("the tensor '" + expected.name + "_shape' says " + shape_text(shape) + "; expected is I64 with " +
         shape_text(std::vector{expected.outputs, expected.inputs}) + ".");
  }

  void take_codes(const Expected& expected) {
    const std::optional<StoredFormat> format = stored_format(expected);
    if (!format) return;
    const auto& parts = stored_.at(expected.name);
    const std::int64_t codes = (expected.inputs * format->bits + 31) / 32 * 32 / format->bits;
    const std::int64_t groups = parts.at("_scale")->shape[1];
    for (const Part& part : expected.parts) {
      const std::int64_t group = format->group == 0 ? expected.inputs : format->group;
      const bool slice = part.inputs != expected.inputs;
      if (slice && ((format->group != 0 && (part.first_input % group != 0 || part.inputs % group != 0)) ||
                    part.first_input * format->bits % 8 != 0)) {
        return fail("the tensor '" + expected.name + "_packed' has groups of " +
                    std::to_string(format->group) + ", which cannot be cut into experts of " +
                    std::to_string(part.inputs) + " inputs.");
      }
      WeightSource& source = map_.sources.emplace_back(
          stored_part(expected, part, *parts.at("_packed"), names_.find(expected.name)->second, *format));
      source.first = part.first_output * codes + part.first_input;
      source.stride = codes;
      source.scales = parts.at("_scale");
      source.first_scale = part.first_output * groups + part.first_input / group;
      source.scale_stride = groups;
    }
    names_.erase(expected.name);
  }

  void take_paddle(const Expected& expected) {
    const auto& parts = stored_.at(expected.name);
    const std::string& name = names_.at(expected.name);
    const auto format = configured(expected);
    if (!format || format->order == CodeOrder::rows || !expected.may_be_stored())
      return (void)not_configured(name);
    const FileTensor &codes = *parts.at(kPaddleCodes), &scales = *parts.at("_scale");
    for (const std::string& suffix : kWint2Suffixes) {
      if (format->wint2() == parts.contains(suffix)) continue;
      return fail(
          "the tensor '" + name + "' has " + (format->wint2() ? "no " : "a ") + suffix.substr(1) +
          (format->wint2() ? ", which wint2 needs." : ", and by quantization_config it is not wint2."));
    }
    if (format->wint2()) return take_wint2(expected, *format);
    if (const Status s = check_paddle_codes(codes, *format, expected.outputs, expected.inputs); !s.ok())
      return fail("the tensor '" + name + "' " + s.message + ".");
    if (!is_float(scales) || scales.shape != std::vector{expected.outputs}) {
      return fail("the scales of '" + name + "' are " + to_string(scales.type) + " of the shape " +
                  shape_text(scales.shape) + "; expected is BF16, F16 or F32 of " +
                  shape_text(std::vector{expected.outputs}) + ".");
    }
    const auto input_scale = parts.find(kInputScale);
    if (format->w4a8() != (input_scale != parts.end())) {
      return fail("the tensor '" + name + "' " +
                  (format->w4a8() ? "has no activation_scale, which W4A8 needs."
                                  : "has an activation_scale, and by quantization_config it is not W4A8."));
    }
    if (format->w4a8() && (!is_float(*input_scale->second) ||
                           input_scale->second->bytes != size_of(input_scale->second->type))) {
      return fail("the activation_scale of '" + name + "' is " + to_string(input_scale->second->type) +
                  " of the shape " + shape_text(input_scale->second->shape) +
                  "; expected is one number in BF16, F16 or F32.");
    }
    for (const Part& part : expected.parts) {
      WeightSource& source = map_.sources.emplace_back(stored_part(expected, part, codes, name, *format));
      source.scales = &scales;
      source.first_scale = part.first_output;
      source.scale_stride = 1;
      if (format->w4a8()) source.input_scale = input_scale->second;
    }
    names_.erase(expected.name);
  }

  void take_wint2(const Expected& expected, const StoredFormat& format) {
    const auto& parts = stored_.at(expected.name);
    const std::string& name = names_.at(expected.name);
    const FileTensor &codes = *parts.at(kPaddleCodes), &groups = *parts.at("_scale");
    const Wint2Tensors others{parts.at(kWint2Suffixes[0]), parts.at(kWint2Suffixes[1]),
                              parts.at(kWint2Suffixes[2])};
    if (const Status s = check_wint2_shapes(codes, groups, others, expected.outputs, expected.inputs);
        !s.ok())
      return fail("the tensor '" + name + "' " + s.message + ".");
    for (const Part& part : expected.parts) {
      if (part.first_input % kernels::kWint2Unit != 0 || part.inputs % kernels::kWint2Unit != 0) {
        return fail("the tensor '" + name + "' cannot be cut into experts of " + std::to_string(part.inputs) +
                    " inputs; wint2 takes multiples of " + std::to_string(kernels::kWint2Unit) + ".");
      }
      // Its lines are of outputs.
      WeightSource& source = map_.sources.emplace_back(stored_part(expected, part, codes, name, format));
      source.first = part.first_input / kernels::kWint2Inputs * expected.outputs + part.first_output;
      source.stride = expected.outputs;
      source.scales = &groups;
      source.first_scale = part.first_input / kernels::kWint2Unit * expected.outputs + part.first_output;
      source.scale_stride = expected.outputs;
      source.wint2 = others;
    }
    names_.erase(expected.name);
  }

  void take(const Expected& expected) {
    if (stored(expected)) {
      const auto& parts = stored_.at(expected.name);
      return parts.contains("_scale_inv")   ? take_fp8(expected)
             : parts.contains(kPaddleCodes) ? take_paddle(expected)
                                            : take_codes(expected);
    }
    const auto named = names_.find(expected.name);
    const FileTensor& tensor = *checkpoint_.find(named->second);
    bool transposed = map_.transposed && expected.oriented();
    if (expected.form == Form::router || expected.form == Form::projection) {
      transposed =
          expected.outputs == expected.inputs ? map_.transposed : tensor.shape == expected.shape(true);
    }
    const bool by_heads = expected.form == Form::channels && is_float(tensor) &&
                          static_cast<std::int64_t>(tensor.bytes / size_of(tensor.type)) == expected.inputs;
    const bool flat =
        expected.form == Form::bias && expected.outputs == 1 && tensor.shape == std::vector{expected.inputs};
    const std::vector<std::int64_t> shape = expected.shape(transposed);
    if (tensor.shape != shape && !flat && !by_heads) {
      fail("the tensor '" + named->second + "' has the shape " + shape_text(tensor.shape) + "; expected is " +
           shape_text(shape) + ".");
    }
    if (tensor.type == FileType::f8_e4m3 && expected.may_be_stored()) {
      fail("the tensor '" + named->second + "' is F8_E4M3 and has no scales, '" + named->second +
           "_scale_inv'.");
    }
    if (!is_float(tensor)) {
      fail("the tensor '" + named->second + "' is " + to_string(tensor.type) +
           "; allowed are BF16, F16 and F32.");
    }
    const std::int64_t stride = transposed ? expected.outputs : expected.inputs;
    for (const Part& part : expected.parts) {
      const std::int64_t within = transposed ? part.first_input * stride + part.first_output
                                             : part.first_output * stride + part.first_input;
      map_.sources.push_back({.weight = part.weight,
                              .layer = expected.layer,
                              .expert = part.expert,
                              .tensor = &tensor,
                              .name = named->second,
                              .first = part.matrix * expected.outputs * expected.inputs + within,
                              .stride = stride,
                              .transposed = transposed,
                              .outputs = part.outputs,
                              .inputs = part.inputs});
    }
    names_.erase(named);
  }

  void fail(const std::string& message) {
    if (status_.ok()) status_ = does_not_fit(message);
  }

  const ModelSpec& spec_;
  const Checkpoint& checkpoint_;
  const bool draft_;  // the draft layer's tensors alone
  std::map<std::string, std::map<std::string, const FileTensor*, std::less<>>> stored_;  // by weight, suffix
  TensorNames names_;  // names that are left at the end are unknown
  bool paddle_prefix_ = false;
  TensorMap map_;
  Status status_;
};

}  // namespace

std::uint64_t WeightSource::offset() const {
  const auto before = static_cast<std::uint64_t>(first);
  if (stored && stored->wint2()) return tensor->offset + before;
  return tensor->offset +
         (stored ? before * static_cast<std::uint64_t>(stored->bits) / 8 : before * size_of(tensor->type));
}

std::uint64_t WeightSource::row_offset() const {
  const std::int64_t skipped = std::int64_t{first_input} * (transposed ? stride : 1);
  return offset() - static_cast<std::uint64_t>(skipped) * size_of(tensor->type);
}

std::uint64_t WeightSource::bytes() const {
  const std::uint64_t elements = static_cast<std::uint64_t>(outputs) * static_cast<std::uint64_t>(inputs);
  return stored ? elements * static_cast<std::uint64_t>(stored->bits) / 8 : elements * size_of(tensor->type);
}

std::uint64_t WeightSource::span() const {
  if (stored && stored->wint2())
    return static_cast<std::uint64_t>((inputs / kernels::kWint2Inputs - 1) * stride + outputs);
  const std::int64_t lines = transposed ? inputs : outputs, line = transposed ? outputs : inputs;
  const auto elements = static_cast<std::uint64_t>((lines - 1) * stride + line);
  return stored ? elements * static_cast<std::uint64_t>(stored->bits) / 8 : elements * size_of(tensor->type);
}

Result<TensorMap> map_tensors(const ModelSpec& spec, const Checkpoint& checkpoint) {
  return Mapper(spec, checkpoint, false).map();
}

Result<TensorMap> map_draft_tensors(const ModelSpec& spec, const Checkpoint& checkpoint) {
  return Mapper(spec, checkpoint, true).map();
}

}  // namespace troupe::model
