#include "model/quantised_copy.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "config/json_file.h"
#include "gpu/cpu.h"
#include "kernels/quantize.h"
#include "model/copy_modules.h"
#include "model/weight_target.h"

namespace troupe::model {
namespace {

namespace fs = std::filesystem;
using JsonValue = nlohmann::ordered_json;
using Header = nlohmann::json;  // of many keys
using kernels::WeightFormat;

constexpr std::uint64_t kShardBytes = std::uint64_t{5} << 30;
constexpr std::uint64_t kSmallFile = std::uint64_t{64} << 20;  // others beside the weights are not copied

/// All elements of a source, as rows of its inputs.
std::vector<std::byte> read_rows(const WeightSource& source) {
  const std::size_t element = size_of(source.tensor->type);
  const auto lines = static_cast<std::size_t>(source.transposed ? source.inputs : source.outputs);
  const auto line = static_cast<std::size_t>(source.transposed ? source.outputs : source.inputs);
  std::vector<std::byte> bytes(lines * line * element);
  for (std::size_t i = 0; i < lines; ++i) {
    source.tensor->file->read(source.offset() + i * static_cast<std::uint64_t>(source.stride) * element,
                              bytes.data() + i * line * element, line * element);
  }
  if (!source.transposed) return bytes;
  std::vector<std::byte> turned(bytes.size());
  for (std::size_t i = 0; i < lines; ++i) {
    for (std::size_t o = 0; o < line; ++o) {
      std::memcpy(turned.data() + (o * lines + i) * element, bytes.data() + (i * line + o) * element,
                  element);
    }
  }
  return turned;
}

/// The bytes of a module's tensors, one after the other.
class ModuleBytes {
 public:
  ModuleBytes(Cpu& device, const CopyModule& module) : device_(device), module_(module) {}

  Result<std::vector<std::byte>> make() {
    std::uint64_t bytes = 0;
    for (const CopyTensor& tensor : tensors_of(module_)) bytes += tensor.bytes;
    out_.resize(bytes);
    for (std::size_t i = 0; i < module_.slices.size(); ++i) {
      const WeightSource& slice = *module_.slices[i];
      const std::vector<std::byte> rows = read_rows(slice);
      if (Status s = slice.tensor->file->status(); !s.ok()) return s;
      if (module_.fp8()) {
        const int blocks = (slice.outputs + kernels::kFp8Block - 1) / kernels::kFp8Block;
        device_.pool().for_each(blocks, 1, [&](int begin, int end, int) {
          for (int block = begin; block < end; ++block) quantise_blocks(i, block, rows);
        });
      } else {
        device_.pool().for_each(slice.outputs, 16, [&](int begin, int end, int) {
          for (int row = begin; row < end; ++row) {
            module_.format.quantised() ? quantise(i, row, rows) : copy(i, row, rows);
          }
        });
      }
      if (bad_) {
        return invalid("The tensor '" + slice.name +
                       "' has a NaN or an infinity among its numbers, which cannot be quantised.");
      }
    }
    if (module_.format.quantised() && !module_.fp8()) {
      const std::int64_t shape[] = {module_.outputs(), module_.inputs()};
      std::memcpy(out_.data() + out_.size() - sizeof shape, shape, sizeof shape);
    }
    return std::move(out_);
  }

 private:
  std::size_t first_output(std::size_t slice) const {
    return module_.side_by_side() ? 0 : slice * static_cast<std::size_t>(module_.slices[slice]->outputs);
  }
  std::size_t first_input(std::size_t slice) const {
    return module_.side_by_side() ? slice * static_cast<std::size_t>(module_.slices[slice]->inputs) : 0;
  }

  void copy(std::size_t slice, int row, const std::vector<std::byte>& rows) {
    const std::size_t element = size_of(module_.slices[slice]->tensor->type);
    const auto bytes = static_cast<std::size_t>(module_.slices[slice]->inputs) * element;
    const std::size_t output = first_output(slice) + static_cast<std::size_t>(row);
    const std::size_t at = output * static_cast<std::size_t>(module_.inputs()) + first_input(slice);
    std::memcpy(out_.data() + at * element, rows.data() + static_cast<std::size_t>(row) * bytes, bytes);
  }

  void quantise(std::size_t slice, int row, const std::vector<std::byte>& rows) {
    const WeightSource& source = *module_.slices[slice];
    const DType type = dtype_of(source.tensor->type);
    const auto inputs = static_cast<std::size_t>(source.inputs);
    const std::byte* line = rows.data() + static_cast<std::size_t>(row) * inputs * size_of(type);
    const std::size_t group =
        module_.format.group == 0 ? inputs : static_cast<std::size_t>(module_.format.group);
    const std::size_t output = first_output(slice) + static_cast<std::size_t>(row);
    std::byte* codes = out_.data() + output * static_cast<std::size_t>(module_.words()) * 4;
    std::byte* scales = out_.data() + static_cast<std::size_t>(module_.outputs() * module_.words()) * 4;
    std::size_t scale_at =
        output * static_cast<std::size_t>(module_.scales()) +
        slice * static_cast<std::size_t>(module_.side_by_side() ? module_.scales_of_slice() : 0);
    for (std::size_t from = 0; from < inputs; from += group, ++scale_at) {
      const std::size_t to = std::min(inputs, from + group);
      float largest = 0;
      for (std::size_t i = from; i < to; ++i)
        largest = kernels::larger_magnitude(largest, load_element(line, type, i));
      const float scale = kernels::scale_for(module_.format, largest);
      if (!(scale >= 0)) bad_ = true;
      store_element(scales, module_.format.group == 0 ? DType::f32 : DType::bf16, scale_at, scale);
      for (std::size_t i = from; i < to; ++i) {
        put(codes, first_input(slice) + i,
            kernels::code_of(load_element(line, type, i), scale, kernels::largest_code(module_.format.kind)));
      }
    }
  }

  /// fp8: kFp8Block outputs of a slice. check_slices() has seen that no block has numbers of two slices.
  void quantise_blocks(std::size_t slice, int block, const std::vector<std::byte>& rows) {
    constexpr int kBlock = kernels::kFp8Block;
    const WeightSource& source = *module_.slices[slice];
    const DType type = dtype_of(source.tensor->type);
    const auto inputs = static_cast<std::size_t>(source.inputs),
               all = static_cast<std::size_t>(module_.inputs());
    const auto number = [&](int row, std::size_t input) {
      return load_element(rows.data(), type, static_cast<std::size_t>(row) * inputs + input);
    };
    const int first = block * kBlock, last = std::min(source.outputs, first + kBlock);
    std::byte* scales = out_.data() + static_cast<std::size_t>(module_.outputs()) * all;
    for (std::size_t from = 0; from < inputs; from += kBlock) {
      const std::size_t to = std::min(inputs, from + kBlock);
      float largest = 0;
      for (int row = first; row < last; ++row) {
        for (std::size_t i = from; i < to; ++i) largest = kernels::larger_magnitude(largest, number(row, i));
      }
      const float scale = kernels::scale_for(module_.format, largest);
      if (!(scale >= 0)) bad_ = true;
      const std::size_t scale_row = first_output(slice) / kBlock + static_cast<std::size_t>(block),
                        scale_column = (first_input(slice) + from) / kBlock;
      store_element(scales, DType::f32,
                    scale_row * static_cast<std::size_t>(module_.block_columns()) + scale_column, scale);
      for (int row = first; row < last; ++row) {
        std::byte* codes =
            out_.data() + (first_output(slice) + static_cast<std::size_t>(row)) * all + first_input(slice);
        for (std::size_t i = from; i < to; ++i)
          codes[i] = static_cast<std::byte>(kernels::fp8_code_of(number(row, i), scale));
      }
    }
  }

  void put(std::byte* codes, std::size_t input, int code) const {
    if (module_.format.bits() == 8) {
      codes[input] = static_cast<std::byte>(code + 128);
    } else {
      codes[input / 2] |= static_cast<std::byte>((code + 8) << (input % 2 == 0 ? 0 : 4));
    }
  }

  Cpu& device_;
  const CopyModule& module_;
  std::vector<std::byte> out_;
  std::atomic<bool> bad_{false};
};

JsonValue weights_json(const WeightFormat& format, int group) {
  JsonValue json = {{"num_bits", format.bits()}, {"type", "int"}, {"symmetric", true}, {"dynamic", false}};
  json["strategy"] = group == 0 ? "channel" : "group";
  json["group_size"] = group == 0 ? JsonValue() : JsonValue(group);
  return json;
}

/// The modules of a kind that is not quantised stay out of an fp8 checkpoint by their names.
JsonValue fp8_config(const ModelFiles& files) {
  const WeightFormats& formats = files.formats;
  JsonValue others = JsonValue::array({"lm_head", "mlp.gate"});
  if (files.spec.vision) others.insert(others.end(), {"vision_model", "model.resampler_model"});
  for (int layer = 0; layer < files.spec.layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    if (!formats.attention.quantised()) others.push_back(at + "self_attn");
    if (!(files.spec.moe_layer(layer) ? formats.experts_of(layer) : formats.mlp).quantised())
      others.push_back(at + "mlp");
  }
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {kernels::kFp8Block, kernels::kFp8Block}},
          {"modules_to_not_convert", others}};
}

JsonValue quantization_config(const ModelFiles& files) {
  const WeightFormats& formats = files.formats;
  if (formats.fp8()) return fp8_config(files);
  JsonValue groups = JsonValue::object();
  const auto add = [&](const char* target, const WeightFormat& format, int group) {
    groups["group_" + std::to_string(groups.size())] = {{"targets", JsonValue::array({target})},
                                                        {"weights", weights_json(format, group)},
                                                        {"input_activations", nullptr}};
  };
  if (formats.attention.quantised()) add("Linear", formats.attention, formats.attention.group);
  if (files.spec.experts > 0 && formats.experts.quantised()) {
    const bool slices = files.spec.shared_experts > 1 && formats.experts.group == 0;
    add(slices ? "re:.*mlp\\.(experts\\.\\d+\\.|shared_experts\\.(gate|up)_proj).*"
               : "re:.*mlp\\.(experts|shared_experts)\\..*",
        formats.experts, formats.experts.group);
    // Each slice of the shared experts has scales of its own.
    if (slices) add("re:.*mlp\\.shared_experts\\.down_proj", formats.experts, files.spec.expert_intermediate);
  }
  JsonValue ignore = JsonValue::array({"re:.*mlp\\.gate$"});
  if (files.spec.vision) {
    ignore.insert(ignore.end(), {"re:vision_model\\..*", "re:model\\.resampler_model\\..*"});
  }
  if (formats.lm_head.quantised()) {
    add("lm_head", formats.lm_head, formats.lm_head.group);
  } else {
    ignore.push_back("lm_head");
  }
  return {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"},
          {"quantization_status", "compressed"},  {"config_groups", groups},
          {"kv_cache_scheme", nullptr},           {"ignore", ignore}};
}

Status write_failed(const fs::path& file) {
  return failure(Code::unavailable, file.string() + " cannot be written: " + std::strerror(errno) + ".");
}

Status write_text(const fs::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  return out ? Status{} : write_failed(file);
}

/// Modules [begin, end) are one file.
struct FilePart {
  std::size_t begin = 0, end = 0;
  std::string file;
};

std::vector<FilePart> file_parts(const std::vector<CopyModule>& modules) {
  std::vector<FilePart> shards(1);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    std::uint64_t more = 0;
    for (const CopyTensor& tensor : tensors_of(modules[i])) more += tensor.bytes;
    if (bytes > 0 && bytes + more > kShardBytes) {
      shards.push_back({.begin = i});
      bytes = 0;
    }
    bytes += more;
    shards.back().end = i + 1;
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    shards[i].file = shards.size() == 1 ? "model.safetensors" : name;
  }
  return shards;
}

class Writer {
 public:
  Writer(const ModelFiles& files, const CopyPlaces& places, const LoadProgress& progress)
      : places_(places), progress_(progress), modules_(modules_of(files)) {
    for (const CopyModule& module : modules_) total_ += bytes_of(module);
  }

  Status write() {
    for (const CopyModule& module : modules_) {
      if (Status s = check_slices(module); !s.ok()) return s;
    }
    const std::vector<FilePart> shards = file_parts(modules_);
    Header index = {{"metadata", Header::object()}, {"weight_map", Header::object()}};
    for (const FilePart& shard : shards) {
      if (Status s = write_shard(shard, index["weight_map"]); !s.ok()) return s;
    }
    if (progress_) progress_(total_, total_);
    if (shards.size() == 1) return {};
    return write_text(places_.into / "model.safetensors.index.json", index.dump(2) + "\n");
  }

 private:
  // Side by side, slices share rows of codes and of scales: each has to begin with a whole byte and a whole
  // group.
  static Status check_slices(const CopyModule& module) {
    const int inputs = module.slices.front()->inputs,
              group = module.fp8() ? kernels::kFp8Block : module.format.group;
    if (module.fp8() && !module.side_by_side() && module.slices.size() > 1) {
      const int outputs = module.slices.front()->outputs;
      if (outputs % group == 0) return {};
      return failure(Code::unsupported, "The shared experts, " + module.name + ", have " +
                                            std::to_string(outputs) + " outputs each, which " +
                                            to_string(module.format) +
                                            " cannot store one after the other; wint8 can.");
    }
    if (!module.format.quantised()) return check_types(module);
    if (!module.side_by_side() || module.slices.size() == 1) return {};
    if (inputs * module.format.bits() % 8 == 0 && (group == 0 || inputs % group == 0)) return {};
    return failure(Code::unsupported,
                   "The shared experts, " + module.name + ", have " + std::to_string(inputs) +
                       " inputs each, which " + to_string(module.format) + " cannot store side by side; " +
                       (module.fp8() ? "wint8" : "another --quantization-group") + " can.");
  }

  // What becomes one tensor has one type: the correction biases of both modalities may come from two.
  static Status check_types(const CopyModule& module) {
    for (const WeightSource* slice : module.slices) {
      if (slice->tensor->type == module.slices.front()->tensor->type) continue;
      return failure(Code::unsupported,
                     "The tensors '" + module.slices.front()->name + "' and '" + slice->name + "' are " +
                         to_string(module.slices.front()->tensor->type) + " and " +
                         to_string(slice->tensor->type) + "; a copy has one tensor of one type for both.");
    }
    return {};
  }

  static std::uint64_t bytes_of(const CopyModule& module) {
    std::uint64_t bytes = 0;
    for (const WeightSource* slice : module.slices) bytes += slice->bytes();
    return bytes;
  }

  Status write_shard(const FilePart& shard, Header& map) {
    Header header = {{"__metadata__", {{"format", "pt"}}}};
    std::uint64_t at = 0;
    for (std::size_t i = shard.begin; i < shard.end; ++i) {
      for (const CopyTensor& tensor : tensors_of(modules_[i])) {
        header[tensor.name] = {
            {"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {at, at + tensor.bytes}}};
        map[tensor.name] = shard.file;
        at += tensor.bytes;
      }
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const std::uint64_t length = text.size();
    const fs::path file = places_.into / shard.file;
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length) << text;
    for (std::size_t i = shard.begin; i < shard.end && out; ++i) {
      if (progress_) progress_(done_, total_);
      Result<std::vector<std::byte>> bytes = ModuleBytes(device_, modules_[i]).make();
      if (!bytes) return bytes.status();
      out.write(reinterpret_cast<const char*>(bytes->data()), static_cast<std::streamsize>(bytes->size()));
      done_ += bytes_of(modules_[i]);
    }
    out.close();
    return out ? Status{} : write_failed(file);
  }

  const CopyPlaces& places_;
  const LoadProgress& progress_;
  const std::vector<CopyModule> modules_;
  Cpu device_{{.pin = false}};
  std::uint64_t done_ = 0, total_ = 0;
};

Status write_config(const ModelFiles& files, const CopyPlaces& places) {
  Result<std::string> text = config::read_small_file(places.from / places.config_name);
  if (!text) return text.status();
  JsonValue json = JsonValue::parse(*text);  // has been read before
  json["quantization_config"] = quantization_config(files);
  return write_text(places.into / places.config_name, json.dump(2) + "\n");
}

Status copy_others(const CopyPlaces& places) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(places.from, error)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name.find(".safetensors") != std::string::npos;
    if (weights || name == places.config_name || !entry.is_regular_file() || entry.file_size() > kSmallFile)
      continue;
    fs::copy_file(entry.path(), places.into / name, error);
    if (error) return failure(Code::unavailable, name + " cannot be copied: " + error.message() + ".");
  }
  return error ? failure(Code::unavailable, places.from.string() + ": " + error.message() + ".") : Status{};
}

}  // namespace

Status write_quantised_copy(const ModelFiles& files, const CopyPlaces& places, const LoadProgress& progress) {
  const WeightFormats& formats = files.formats;
  for (const WeightFormat& format : {formats.attention, formats.mlp, formats.experts, formats.lm_head}) {
    if (!formats.fp8() || !format.quantised() || format.fp8()) continue;
    return failure(Code::unsupported, "A checkpoint holds fp8 or integers, and not " +
                                          to_string(formats, files.spec) +
                                          "; troupe serve --quantization makes both while it loads.");
  }
  std::error_code error;
  fs::create_directories(places.into, error);
  if (error)
    return failure(Code::unavailable, places.into.string() + " cannot be made: " + error.message() + ".");
  if (!fs::is_empty(places.into, error)) return invalid(places.into.string() + " is not empty.");
  if (Status s = Writer(files, places, progress).write(); !s.ok()) return s;
  if (Status s = copy_others(places); !s.ok()) return s;
  return write_config(files, places);
}

}  // namespace troupe::model
