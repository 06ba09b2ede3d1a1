#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/clock.h"
#include "cli/calibration_prompts.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/progress_line.h"
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

constexpr std::size_t kMostPromptTokens = 4096;

/// What --calibrate and the format that was asked for say of each other.
Status check_calibrate(const std::string& prompts, bool w4a8) {
  if (w4a8 && prompts.empty()) {
    return invalid(
        "--quantization w4a8 needs --calibrate FILE.jsonl: its static scales are made from what the model "
        "meets in prompts",
        "calibrate");
  }
  if (w4a8 || prompts.empty()) return {};
  return invalid("--calibrate is for --quantization w4a8 and w4a8c8; the other formats need no prompts",
                 "calibrate", "conflict");
}

/// Reads the prompts now, and runs them when the copy asks for it.
Result<model::CopyCalibration> calibration_of(const std::string& file, const model::ModelFiles& files,
                                              const config::ModelOptions& options) {
  auto read = read_calibration_prompts(
      file, options, std::min(kMostPromptTokens, static_cast<std::size_t>(files.spec.max_positions)),
      files.spec.vocab);
  if (!read.ok()) return read.status();
  if (read->cut > 0) {
    std::fprintf(stderr, "%zu of %zu prompts have more than %zu tokens, of which the first run\n", read->cut,
                 read->prompts.size(), kMostPromptTokens);
  }
  return model::CopyCalibration{
      read->key, [&files, prompts = std::move(read->prompts)] {
        ProgressLine line;
        return model::calibrate(files, prompts, [&line](std::uint64_t done, std::uint64_t total) {
          line.show("calibrating: " + std::to_string(done) + " of " + std::to_string(total) + " tokens");
        });
      }};
}

/// What a copy's static scales are made from.
void report(const model::Calibration& made, const model::ModelSpec& spec) {
  std::printf("calibrated with %lld prompts of %lld tokens\n", static_cast<long long>(made.prompts),
              static_cast<long long>(made.tokens));
  if (made.unreached == 0) return;
  std::printf(
      "%lld of %lld experts were reached by no token; they have the largest magnitudes of their layer. More "
      "prompts reach more experts.\n",
      static_cast<long long>(made.unreached),
      static_cast<long long>(spec.moe_layers()) * static_cast<long long>(spec.experts));
}

Status quantise(config::Options& options, const std::string& into, const std::string& prompts) {
  if (options.quantization.method.empty()) options.quantization.method = "wint8";
  if (Status s = config::validate(options); !s.ok()) return s;
  const auto asked = config::parse_quantization(options.quantization.method);
  const bool wint2 = asked.ok() && asked->experts == config::WeightQuant::wint2;
  const bool w4a8 = asked.ok() && asked->experts == config::WeightQuant::w4a8;
  if (Status s = check_calibrate(prompts, w4a8); !s.ok()) return s;
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
  const bool runs_on_cpu = files->spec.vision || wint2 || w4a8;
  const config::Device device = runs_on_cpu ? config::Device::cpu : config::Device::cuda;
  if (w4a8) {
    if (Status s = model::check_calibration(*files); !s.ok()) return s;
  }
  if (Status s = files->choose(device, options.quantization, true); !s.ok()) return s;
  // FastDeploy's form has no names for a quantised draft layer.
  if (files->formats.paddle()) files->formats.draft = files->dtype;
  if (files->tied && files->formats.lm_head.quantised()) {
    return invalid(
        "--lm-head-dtype: the head of this model is its embedding; give the flag to troupe serve, which "
        "makes a quantised copy while it loads",
        "lm-head-dtype");
  }
  if (files->spec.stored_quantisation) return invalid(options.model.directory + " is quantised already");
  model::CopyCalibration calibration;
  if (w4a8) {
    auto made = calibration_of(prompts, *files, options.model);
    if (!made.ok()) return made.status();
    calibration = *std::move(made);
  }
  const std::uint64_t before = files->checkpoint->data_bytes();
  model::CopyReport copied;
  if (Status s =
          write_quantised_copy(*files, {options.model.directory, options.model.model_config_name, into},
                               progress_line(), &copied, calibration);
      !s.ok()) {
    return s;
  }
  auto written = model::Checkpoint::open(into);
  if (!written.ok()) return written.status();
  std::printf("%s: %s, %s (before: %s)\n", into.c_str(), to_string(files->formats, files->spec).c_str(),
              model::bytes_text(written->data_bytes()).c_str(), model::bytes_text(before).c_str());
  if (w4a8) report(copied.calibration, files->spec);
  if (copied.squared_error > 0) {
    std::printf("squared error of the experts encoded now: %.2f %% of their weights' squares\n",
                100 * copied.squared_error);
  }
  return {};
}

}  // namespace

int quantize_main(int argc, char** argv) {
  const Synopsis synopsis{
      "quantize", "write a quantised copy of a checkpoint",
      "troupe quantize MODEL OUT [--quantization METHOD] [--calibrate FILE.jsonl] [OPTION…]",
      "  troupe quantize /models/ERNIE-4.5-21B-A3B-PT /models/ERNIE-4.5-21B-A3B-wint4 "
      "--quantization wint4\n"
      "  troupe quantize /models/ERNIE-4.5-21B-A3B-PT /models/ERNIE-4.5-21B-A3B-wint2 "
      "--quantization wint2    # started again after it was ended, it goes on\n"
      "  troupe quantize /models/ERNIE-4.5-300B-A47B-PT /models/ERNIE-4.5-300B-A47B-W4A8C8 "
      "--quantization w4a8c8 --calibrate prompts.jsonl\n"
      "  troupe serve --model /models/ERNIE-4.5-21B-A3B-wint4\n"};
  config::Options options;
  std::vector<config::Field> fields = config::quantization_fields(options.quantization);
  fields.front().when_unset = "wint8";
  std::string prompts;
  fields.push_back({.name = "calibrate",
                    .slot = &prompts,
                    .help =
                        "for w4a8 and w4a8c8: prompts that the model runs on the CPU, not quantised, to see "
                        "which numbers its experts meet; a JSON object a line, with \"messages\", "
                        "\"prompt\" or \"text\""});
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, words)) return *code;
  if (words.size() != 2)
    return fail(synopsis, invalid("expected two directories: the model and where to write"));
  options.model.model = words[0];
  const Status status = quantise(options, words[1], prompts);
  return status.ok() ? 0 : fail(synopsis, status);
}

}  // namespace troupe::cli
