#include "model/quantised_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.h"
#include "base/owned_fd.h"
#include "config/json_file.h"
#include "gpu/cpu.h"
#include "kernels/wint2.h"
#include "model/copy_config.h"
#include "model/copy_modules.h"
#include "model/module_bytes.h"

namespace troupe::model {
namespace {

namespace fs = std::filesystem;
using JsonValue = nlohmann::ordered_json;
using Header = nlohmann::json;  // of many keys
using kernels::WeightFormat;

constexpr std::uint64_t kShardBytes = std::uint64_t{5} << 30;
constexpr std::uint64_t kEncodedShardBytes = std::uint64_t{512} << 20;  // minutes of work at most are lost
constexpr const char* kMarker = "quantize-unfinished.json";
constexpr const char* kCalibration = "quantize-calibration.json";
constexpr const char* kPart = ".part";                         // of a file that is not whole
constexpr std::uint64_t kSmallFile = std::uint64_t{64} << 20;  // others beside the weights are not copied

Status write_failed(const fs::path& file) {
  return failure(Code::unavailable, file.string() + " cannot be written: " + std::strerror(errno) + ".");
}

Status write_text(const fs::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  return out ? Status{} : write_failed(file);
}

/// Puts what was written to `part` in the place of `whole`: there is never half a file of that name.
Status keep(const fs::path& part, const fs::path& whole) {
  const OwnedFd fd(::open(part.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) return write_failed(part);
  std::error_code error;
  fs::rename(part, whole, error);
  return error ? write_failed(whole) : Status{};
}

/// What tells an unfinished copy from that of another checkpoint, or in another format.
std::string marker_of(const ModelFiles& files, const CopyPlaces& places, const std::string& prompts) {
  Header weights = Header::object();  // sorted
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(places.from, error)) {
    if (entry.path().extension() == ".safetensors")
      weights[entry.path().filename().string()] = {entry.file_size(),
                                                   entry.last_write_time().time_since_epoch().count()};
  }
  JsonValue marker = {{"from", fs::weakly_canonical(places.from).string()},
                      {"quantization_config", quantization_config(files)},
                      {"formats", to_string(files.formats, files.spec)},
                      {"weights", weights.dump()}};
  if (!prompts.empty()) marker["prompts"] = prompts;
  return marker.dump(2) + "\n";
}

/// Makes the directory ready: empty but for the marker, or with what a call with the same marker left.
Status begin_copy(const fs::path& into, const std::string& marker) {
  std::error_code error;
  if (!fs::is_empty(into, error)) {
    const Result<std::string> found = config::read_small_file(into / kMarker);
    if (!found) return invalid(into.string() + " is not empty.");
    if (*found != marker) {
      return invalid(into.string() +
                     " has the unfinished copy of another checkpoint, or in another format; give "
                     "the arguments of then, or another directory.");
    }
    return {};
  }
  const fs::path part = into / (std::string(kMarker) + kPart);
  if (Status s = write_text(part, marker); !s.ok()) return s;
  return keep(part, into / kMarker);
}

/// Modules [begin, end) are one file.
struct FilePart {
  std::size_t begin = 0, end = 0;
  std::string file;
};

std::vector<FilePart> file_parts(const std::vector<CopyModule>& modules, std::uint64_t most_bytes) {
  std::vector<FilePart> shards(1);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    std::uint64_t more = 0;
    for (const CopyTensor& tensor : tensors_of(modules[i])) more += tensor.bytes;
    if (bytes > 0 && bytes + more > most_bytes) {
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
  Writer(const ModelFiles& files, const CopyPlaces& places, const LoadProgress& progress,
         const Calibration* calibration)
      : places_(places), progress_(progress), modules_(modules_of(files, calibration)) {
    for (const CopyModule& module : modules_) total_ += bytes_of(module);
  }

  Status write() {
    for (const CopyModule& module : modules_) {
      if (Status s = check_slices(module); !s.ok()) return s;
    }
    const bool encodes = std::ranges::any_of(modules_, &CopyModule::wint2);
    const std::vector<FilePart> shards = file_parts(modules_, encodes ? kEncodedShardBytes : kShardBytes);
    Header index = {{"metadata", Header::object()}, {"weight_map", Header::object()}};
    for (const FilePart& shard : shards) {
      if (Status s = write_shard(shard, index["weight_map"]); !s.ok()) return s;
    }
    if (progress_) progress_(total_, total_);
    if (shards.size() == 1) return {};
    return write_text(places_.into / "model.safetensors.index.json", index.dump(2) + "\n");
  }

  const kernels::Wint2Error& error() const { return error_; }

 private:
  // Side by side, slices share rows of codes and of scales: each has to begin with a whole byte and a whole
  // group.
  static Status check_slices(const CopyModule& module) {
    if (module.slices.empty()) return {};
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
    if (module.paddle) return check_paddle(module);
    if (!module.format.quantised()) return check_types(module);
    if (!module.side_by_side() || module.slices.size() == 1) return {};
    if (inputs * module.format.bits() % 8 == 0 && (group == 0 || inputs % group == 0)) return {};
    return failure(Code::unsupported,
                   "The shared experts, " + module.name + ", have " + std::to_string(inputs) +
                       " inputs each, which " + to_string(module.format) + " cannot store side by side; " +
                       (module.fp8() ? "wint8" : "another --quantization-group") + " can.");
  }

  static Status check_paddle(const CopyModule& module) {
    if (module.wint2() && module.inputs() % kernels::kWint2Unit == 0) return {};
    if (module.w4a8() && module.outputs() % 4 == 0 && module.inputs() % 64 == 0) return {};
    if (!module.wint2() && module.format.kind == kernels::WeightKind::int8 && module.outputs() % 2 == 0 &&
        module.inputs() % 64 == 0)
      return {};
    return failure(Code::unsupported, module.name + " has " + std::to_string(module.outputs()) +
                                          " outputs and " + std::to_string(module.inputs()) +
                                          " inputs, which FastDeploy's form cannot store as " +
                                          (module.w4a8() ? "W4A8" : to_string(module.format)) +
                                          "; wint8 takes even outputs and multiples of 64 inputs, W4A8 "
                                          "multiples of 4 outputs and of 64 inputs.");
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
    const fs::path whole = places_.into / shard.file, file = whole.string() + kPart;
    std::error_code error;
    if (fs::exists(whole, error)) {  // made before; files are renamed when they are whole
      for (std::size_t i = shard.begin; i < shard.end; ++i) done_ += bytes_of(modules_[i]);
      return {};
    }
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length) << text;
    for (std::size_t i = shard.begin; i < shard.end && out; ++i) {
      if (progress_) progress_(done_, total_);
      const Result<std::vector<std::byte>> bytes = module_bytes(device_, modules_[i], error_);
      if (!bytes) return bytes.status();
      out.write(reinterpret_cast<const char*>(bytes->data()), static_cast<std::streamsize>(bytes->size()));
      done_ += bytes_of(modules_[i]);
    }
    out.close();
    if (!out) return write_failed(file);
    return keep(file, whole);
  }

  const CopyPlaces& places_;
  const LoadProgress& progress_;
  const std::vector<CopyModule> modules_;
  Cpu device_{{.pin = false}};
  std::uint64_t done_ = 0, total_ = 0;
  kernels::Wint2Error error_;
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
    fs::copy_file(entry.path(), places.into / name, fs::copy_options::overwrite_existing, error);
    if (error) return failure(Code::unavailable, name + " cannot be copied: " + error.message() + ".");
  }
  return error ? failure(Code::unavailable, places.from.string() + ": " + error.message() + ".") : Status{};
}

/// What an ended call left of the same, or the result of a run, which is then kept there.
Result<Calibration> calibrated(const ModelFiles& files, const CopyPlaces& places,
                               const CopyCalibration& calibration) {
  const fs::path whole = places.into / kCalibration, part = whole.string() + kPart;
  if (const Result<std::string> kept = config::read_small_file(whole, kSmallFile); kept.ok()) {
    Result<Calibration> read = Calibration::from_json(*kept, files.spec);
    if (read.ok()) return read;
    return invalid(whole.string() + " cannot be used: " + read.status().message + "; remove it.");
  }
  TROUPE_CHECK(calibration.run);
  Result<Calibration> made = calibration.run();
  if (!made) return made;
  if (Status s = write_text(part, made->to_json()); !s.ok()) return s;
  if (Status s = keep(part, whole); !s.ok()) return s;
  return made;
}

}  // namespace

Status write_quantised_copy(const ModelFiles& files, const CopyPlaces& places, const LoadProgress& progress,
                            CopyReport* report, const CopyCalibration& calibration) {
  const WeightFormats& formats = files.formats;
  if (formats.paddle() && formats.lm_head.quantised()) {
    return failure(Code::unsupported,
                   std::string("A checkpoint with wint2 or W4A8 has its head in ") +
                       to_string(formats.activations) +
                       "; give --lm-head-dtype to troupe serve, which quantises it while loading.");
  }
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
  if (Status s = begin_copy(places.into, marker_of(files, places, calibration.key)); !s.ok()) return s;
  const bool scales = formats.w4a8 || formats.static_kv;
  CopyReport unread;
  CopyReport& found = report != nullptr ? *report : unread;
  if (scales) {
    Result<Calibration> made = calibrated(files, places, calibration);
    if (!made) return made.status();
    found.calibration = *std::move(made);
  }
  Writer writer(files, places, progress, scales ? &found.calibration : nullptr);
  if (Status s = writer.write(); !s.ok()) return s;
  if (writer.error().of_weights > 0) found.squared_error = writer.error().squares / writer.error().of_weights;
  if (Status s = copy_others(places); !s.ok()) return s;
  if (Status s = write_config(files, places); !s.ok()) return s;
  for (const char* name : {kCalibration, kMarker}) {
    fs::remove(places.into / name, error);
    if (error) return write_failed(places.into / name);
  }
  return {};
}

}  // namespace troupe::model
