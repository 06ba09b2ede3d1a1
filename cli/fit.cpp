// `troupe fit`: which models fit this machine, or a card that is not here. Exit status of a single question:
// 0 it fits, 1 it does not, 2 that cannot be said.
#include <algorithm>
#include <cstdio>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/fit_machine.h"
#include "cli/fit_report.h"
#include "cli/version.h"
#include "config/fields.h"
#include "config/quantization.h"
#include "config/validate.h"
#include "gpu/architectures.h"
#include "gpu/gpu_checks.h"

namespace troupe::cli {
namespace {

using model::Fit, model::FitMachine, model::FitQuestion, model::FitVerdict;

constexpr int kFits = 0, kDoesNotFit = 1, kCannotSay = 2;

/// The flags of serve that change what a model takes.
constexpr std::string_view kServeFlags[] = {"quantization",
                                            "quantization-group",
                                            "lm-head-dtype",
                                            "kv-cache-dtype",
                                            "dtype",
                                            "max-model-len",
                                            "max-num-seqs",
                                            "max-num-batched-tokens",
                                            "mm-processor-kwargs",
                                            "gpu-memory-utilization"};

/// What the pages document for a model: what is not offered yet is named as such.
std::vector<std::string> documented_formats(const model::DocumentedModel& documented) {
  std::vector<std::string> formats = {"", "wint8", "wint4", "block_wise_fp8"};
  if (documented.name == "ERNIE-4.5-300B-A47B") {
    formats.emplace_back("wint2");
    formats.emplace_back("w4a8c8");
  }
  return formats;
}

/// What keeps this very binary from running on the card; empty: nothing.
std::string missing_code(const Card& card) {
  if (code_for(gpu_architectures(), card.capability).capability != 0) return {};
  return "This build has no code for the " + std::string(card.name) + ", of compute capability " +
         capability_text(card.capability) + "; it has " + gpu_code() + ".";
}

Status check_options(config::Options options) {
  // A method that is not offered yet has an answer of its own.
  if (!config::unavailable_quantization(options.quantization.method).empty())
    options.quantization.method.clear();
  return config::validate(options);
}

int answer_one(const Synopsis& synopsis, const FitMachine& machine, const std::string& name,
               const config::Options& options, bool json) {
  const Result<FitQuestion> question = question_about(name, machine, options);
  if (!question.ok()) {
    complain(synopsis, question.status().message);
    return kCannotSay;
  }
  const FitAnswer answer = answer_to(*question, machine);
  const FitRow& row = answer.row;
  const Fit* elsewhere = answer.elsewhere ? &*answer.elsewhere : nullptr;
  std::fputs((json ? fit_json : fit_text)(row, machine, elsewhere).c_str(), stdout);
  switch (row.fit.verdict) {
    case FitVerdict::fits: return kFits;
    case FitVerdict::does_not_fit: return kDoesNotFit;
    case FitVerdict::unknown: break;
  }
  return kCannotSay;
}

/// A row for each documented model and format, or for those of --quantization alone.
int answer_all(const Synopsis& synopsis, const FitMachine& machine, const config::Options& options,
               bool json) {
  std::vector<FitRow> rows;
  for (const model::DocumentedModel& known : model::documented_models()) {
    const Result<model::ModelSpec> spec = model::spec_of(known);
    if (!spec.ok()) return fail(synopsis, spec.status());
    const std::string& asked = options.quantization.method;
    for (const std::string& method : asked.empty() ? documented_formats(known) : std::vector{asked}) {
      config::Options with = options;
      with.quantization.method = method;
      const FitQuestion question = model::question_of(known, *spec, machine, with);
      const int most = machine.device == config::Device::cuda ? kMostFitCards : 1;
      rows.push_back({question.name, method, question.download_bytes, fit_least(question, machine, most)});
    }
  }
  std::fputs((json ? fit_table_json : fit_table)(rows, machine).c_str(), stdout);
  return kFits;
}

}  // namespace

int fit_main(int argc, char** argv) {
  const Synopsis synopsis{
      "fit", "say which models fit this machine or a card, and how fast they can be",
      "troupe fit [MODEL] [--card NAME [--cards N]] [--quantization METHOD] [--json] [OPTION…]",
      "  troupe fit\n"
      "  troupe fit --card A800 --cards 2\n"
      "  troupe fit ERNIE-4.5-21B-A3B --quantization wint4 --card A10\n"
      "  troupe fit /models/ERNIE-4.5-0.3B-PT --max-model-len 8192\n\n"
      "Exit status with MODEL: 0 it fits, 1 it does not, 2 that cannot be said. No weights are read and\n"
      "nothing is fetched. Documented models have the limits of FastDeploy's pages unless flags set "
      "others.\n"};
  config::Options options;
  std::string card_name;
  int cards = 0;
  bool json = false;
  std::vector<config::Field> fields = {
      {.name = "card",
       .slot = &card_name,
       .help = "a GPU by name, as H800, A100-80G or \"RTX 4090\"",
       .when_unset = "the GPUs of this machine, or its CPU"},
      {.name = "cards",
       .slot = &cards,
       .help = "how many of them; one rank runs on each",
       .min = 1,
       .max = 64,
       .when_unset = "1 with --card, else all that this machine has"},
      {.name = "json", .slot = &json, .help = "one JSON object instead of text"},
  };
  for (const config::Field& field : config::fields(options)) {
    if (std::ranges::find(kServeFlags, field.name) != std::end(kServeFlags)) fields.push_back(field);
  }
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, words))
    return *code == 1 ? kCannotSay : *code;
  if (words.size() > 1) return fail(synopsis, invalid("expected one model at most"));
  if (Status s = check_options(options); !s.ok()) return fail(synopsis, s);
  FitMachine machine;
  if (!card_name.empty()) {
    const Result<Card> card = find_card(card_name);
    if (!card.ok()) return fail(synopsis, card.status());
    auto made = model::machine_with(*card, cards == 0 ? 1 : cards);
    if (!made.ok()) return fail(synopsis, made.status());
    machine = *std::move(made);
    if (!card->note.empty()) complain(synopsis, std::string(card->note));
    if (const std::string missing = missing_code(*card); !missing.empty()) complain(synopsis, missing);
  } else {
    std::string note;
    machine = this_machine(true, note);
    if (!note.empty()) complain(synopsis, note);
    if (cards > 0 && machine.device == config::Device::cpu)
      return fail(synopsis, invalid("--cards: there is no GPU here; --card names one", "cards"));
    if (cards > 0) machine.cards = cards;
  }
  if (words.empty()) return answer_all(synopsis, machine, options, json);
  return answer_one(synopsis, machine, words[0], options, json);
}

}  // namespace troupe::cli
