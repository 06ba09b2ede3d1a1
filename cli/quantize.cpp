#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/clock.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "config/fields.h"
#include "config/quantization.h"
#include "config/validate.h"
#include "model/bytes_text.h"
#include "model/checkpoint/draft_files.h"
#include "model/quantised_copy.h"
#include "model/sizing.h"

namespace troupe::cli {
namespace {

/// One line, written over itself on a terminal; nothing elsewhere.
model::LoadProgress progress_line() {
  const TimePoint begin = Clock::now();
  return [begin](std::uint64_t done, std::uint64_t total) {
    if (::isatty(STDERR_FILENO) == 0) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    std::fprintf(stderr, "\r%3.0f %%, %.2f GB/s",
                 100.0 * static_cast<double>(done) / static_cast<double>(total),
                 static_cast<double>(done) * 1e-9 / std::max(seconds, 1e-9));
    if (done == total) std::fputc('\n', stderr);
  };
}

Status quantise(config::Options& options, const std::string& into) {
  if (options.quantization.method.empty()) options.quantization.method = "wint8";
  if (Status s = config::validate(options); !s.ok()) return s;
  if (options.quantization.kv_cache != config::KvCacheDType::automatic) {
    return invalid("--kv-cache-dtype says nothing about a checkpoint; give it to troupe serve",
                   "kv-cache-dtype");
  }
  if (Status s = config::resolve_model(options.model, config::Device::cpu, {}); !s.ok()) return s;
  auto files = model::open_model(options.model);
  if (files.ok() && files->checkpoint && model::has_draft_layer(*files->checkpoint)) {
    files = model::open_model(options.model, {}, {.method = config::DraftMethod::mtp});
  }
  if (!files.ok()) return files.status();
  // The copy may be for another machine: what any device that runs the model multiplies is allowed.
  const auto asked = config::parse_quantization(options.quantization.method);
  const bool wint2 = asked.ok() && asked->experts == config::WeightQuant::wint2;
  const config::Device device = files->spec.vision || wint2 ? config::Device::cpu : config::Device::cuda;
  if (Status s = files->choose(device, options.quantization, true); !s.ok()) return s;
  if (wint2) files->formats.draft = files->dtype;  // its form has no names for a quantised draft layer
  if (files->tied && files->formats.lm_head.quantised()) {
    return invalid(
        "--lm-head-dtype: the head of this model is its embedding; give the flag to troupe serve, which "
        "makes a quantised copy while it loads",
        "lm-head-dtype");
  }
  if (files->spec.stored_quantisation) return invalid(options.model.directory + " is quantised already");
  const std::uint64_t before = files->checkpoint->data_bytes();
  model::CopyReport report;
  if (Status s = write_quantised_copy(
          *files, {options.model.directory, options.model.model_config_name, into}, progress_line(), &report);
      !s.ok()) {
    return s;
  }
  auto written = model::Checkpoint::open(into);
  if (!written.ok()) return written.status();
  std::printf("%s: %s, %s (before: %s)\n", into.c_str(), to_string(files->formats, files->spec).c_str(),
              model::bytes_text(written->data_bytes()).c_str(), model::bytes_text(before).c_str());
  if (report.squared_error > 0) {
    std::printf("squared error of the experts encoded now: %.2f %% of their weights' squares\n",
                100 * report.squared_error);
  }
  return {};
}

}  // namespace

int quantize_main(int argc, char** argv) {
  const Synopsis synopsis{"quantize", "write a quantised copy of a checkpoint",
                          "troupe quantize MODEL OUT [--quantization METHOD] [OPTION…]",
                          "  troupe quantize /models/ERNIE-4.5-21B-A3B-PT /models/ERNIE-4.5-21B-A3B-wint4 "
                          "--quantization wint4\n"
                          "  troupe quantize /models/ERNIE-4.5-21B-A3B-PT /models/ERNIE-4.5-21B-A3B-wint2 "
                          "--quantization wint2    # started again after it was ended, it goes on\n"
                          "  troupe serve --model /models/ERNIE-4.5-21B-A3B-wint4\n"};
  config::Options options;
  std::vector<config::Field> fields = config::quantization_fields(options.quantization);
  fields.front().when_unset = "wint8";
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, words)) return *code;
  if (words.size() != 2)
    return fail(synopsis, invalid("expected two directories: the model and where to write"));
  options.model.model = words[0];
  const Status status = quantise(options, words[1]);
  return status.ok() ? 0 : fail(synopsis, status);
}

}  // namespace troupe::cli
