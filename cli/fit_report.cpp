#include "cli/fit_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "cli/text_table.h"
#include "model/bytes_text.h"

namespace troupe::cli {
namespace {

using JsonValue = nlohmann::ordered_json;
using model::bytes_text, model::Fit, model::FitMachine, model::FitSpeed, model::FitVerdict, model::RankStep;

constexpr const char* kLegend =
    "Sizes are those of one card, as serve --dry-run estimates them. tok/s: with a date measured on that "
    "card\n"
    "(docs/performance.md: random weights, 2,048 tokens of context); with ≤ computed, the bound that bytes "
    "and\n"
    "operations set, which no server reaches. Experts whole: with --enable-expert-parallel.\n";

std::string formatted(const char* format, double value) {
  char text[40];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string gib(std::uint64_t bytes) {
  return formatted("%.1f", static_cast<double>(bytes) / static_cast<double>(1 << 30));
}

std::string gigabytes(std::uint64_t bytes) { return formatted("%.1f GB", static_cast<double>(bytes) * 1e-9); }

std::string rate(const FitSpeed& speed) {
  const std::string figure = formatted("%.0f", speed.tokens_per_s);
  return speed.measured.empty() ? "≤ " + figure : figure + " (" + speed.measured + ")";
}

std::string format_name(const FitRow& row) {
  return row.quantization.empty() ? "bfloat16" : row.quantization;
}

std::string machine_name(const FitMachine& machine) {
  return machine.name + (machine.cards > 1 ? " × " + std::to_string(machine.cards) : "");
}

std::string cards_text(int cards) { return counted(cards, "card"); }

bool fits_on(const Fit& fit, const FitMachine& machine) {
  return fit.verdict == FitVerdict::fits && fit.cards <= machine.cards;
}

/// Of the table: "yes", "needs 2 cards", "no", "unknown".
std::string verdict_cell(const Fit& fit, const FitMachine& machine) {
  if (fit.verdict == FitVerdict::fits && !fits_on(fit, machine))
    return "needs " + cards_text(fit.cards) + (fit.experts_whole ? ", experts whole" : "");
  return to_string(fit.verdict) + std::string(fit.experts_whole ? ", experts whole" : "");
}

JsonValue json_of(const RankStep& step) {
  const auto rounded = [](double ms) { return std::round(ms * 1000) / 1000; };
  JsonValue made;
  made["cards"] = step.ranks;
  made["sequences"] = step.sequences;
  made["weight_bytes"] = step.weight_bytes;
  made["kv_bytes"] = step.kv_bytes;
  made["bound_ms"] = rounded(step.bound);
  made["exchanges_ms"] = rounded(step.exchanges);
  made["rest_ms"] = rounded(step.rest);
  made["estimate_ms"] = rounded(step.estimate());
  made["measured_ms"] =
      step.measured != nullptr ? JsonValue(std::stod(std::string(step.measured->ms))) : JsonValue();
  return made;
}

JsonValue json_of(const FitRow& row, const FitMachine& machine, const Fit* elsewhere) {
  const Fit& fit = row.fit;
  const bool larger = fit.verdict == FitVerdict::fits && !fits_on(fit, machine);
  JsonValue made;
  made["model"] = row.model;
  made["quantization"] = format_name(row);
  made["machine"] = machine.name;
  made["cards"] = fit.cards;
  made["fits"] = fit.verdict == FitVerdict::unknown ? JsonValue() : JsonValue(fits_on(fit, machine));
  const int needed = fit.verdict == FitVerdict::fits ? fit.cards
                     : elsewhere != nullptr          ? elsewhere->cards
                                                     : 0;
  made["needed_cards"] = needed > 0 ? JsonValue(needed) : JsonValue();
  made["reason"] = larger               ? JsonValue("It needs " + cards_text(fit.cards) + ".")
                   : fit.reason.empty() ? JsonValue()
                                        : JsonValue(fit.reason);
  made["enable_expert_parallel"] = fit.experts_whole;
  made["download_bytes"] = row.download_bytes;
  if (fit.verdict != FitVerdict::fits) return made;
  made["weight_bytes"] = fit.weight_bytes;
  made["kv_bytes"] = fit.kv_bytes;
  made["activation_bytes"] = fit.activation_bytes;
  made["other_bytes"] = fit.other_bytes;
  made["kv_tokens"] = fit.kv_tokens;
  made["max_model_len"] = fit.max_model_len;
  made["max_num_seqs"] = fit.max_num_seqs;
  made["sequences_at_full_length"] = fit.sequences_at_full_length;
  made["speeds"] = JsonValue::array();
  for (const FitSpeed& speed : fit.speeds) {
    JsonValue one;
    one["sequences"] = speed.sequences;
    one["context"] = speed.context;
    one["tokens_per_s"] = std::round(speed.tokens_per_s * 10) / 10;
    one["source"] = speed.measured.empty() ? "computed" : "measured";
    one["date"] = speed.measured.empty() ? JsonValue() : JsonValue(speed.measured);
    made["speeds"].push_back(std::move(one));
  }
  made["steps"] = JsonValue::array();
  for (const RankStep& step : fit.rank_steps) made["steps"].push_back(json_of(step));
  return made;
}

/// "  step      1 stream: 2 cards 7.43 ms, measured; 4 cards about 5.45 ms (bound 1.81, …)".
std::string step_lines(const std::vector<RankStep>& steps) {
  std::string text;
  int sequences = 0;
  for (const RankStep& step : steps) {
    const bool begins = step.sequences != sequences;
    sequences = step.sequences;
    if (begins) text += (text.empty() ? "" : "\n") + ("  step      " + counted(sequences, "stream") + ": ");
    text += (begins ? "" : "; ") + cards_text(step.ranks) +
            (step.measured != nullptr
                 ? " " + std::string(step.measured->ms) + " ms, measured"
                 : " about " + formatted("%.2f", step.estimate()) + " ms (" + formatted("%.2f", step.bound) +
                       " for bytes and operations, " + formatted("%.2f", step.exchanges) + " for exchanges)");
  }
  return text.empty() ? text : text + "\n";
}

}  // namespace

std::string fit_text(const FitRow& row, const FitMachine& machine, const Fit* elsewhere) {
  const Fit& fit = row.fit;
  std::string text = row.model + ", " + format_name(row) + ", on " + machine_name(machine) + ": ";
  if (fit.verdict == FitVerdict::unknown) return text + "cannot say\n  " + fit.reason + "\n";
  if (fit.verdict == FitVerdict::does_not_fit) {
    text += "does not fit\n  " + fit.reason + "\n";
    if (elsewhere != nullptr) text += "  It fits on " + cards_text(elsewhere->cards) + ".\n";
    return text;
  }
  text += fit.experts_whole ? "fits with --enable-expert-parallel\n" : "fits\n";
  text += "  memory    of each card: weights " + bytes_text(fit.weight_bytes) + ", KV " +
          bytes_text(fit.kv_bytes) + ", activations " + bytes_text(fit.activation_bytes) +
          (fit.other_bytes > 0 ? ", kernels and graphs " + bytes_text(fit.other_bytes) : "") + "; it has " +
          bytes_text(machine.memory_bytes) + "\n";
  text += "  limits    max-model-len " + std::to_string(fit.max_model_len) + ", max-num-seqs " +
          std::to_string(fit.max_num_seqs) + "; KV blocks for " + std::to_string(fit.kv_tokens) +
          " tokens, " + counted(fit.sequences_at_full_length, "sequence") + " at full length\n";
  text += "  download  " + gigabytes(row.download_bytes) + "\n";
  for (const FitSpeed& speed : fit.speeds) {
    text += "  speed     " + counted(speed.sequences, "stream") + ", " + std::to_string(speed.context) +
            " tokens of context: " +
            (speed.measured.empty()
                 ? "at most " + formatted("%.0f", speed.tokens_per_s) + " tok/s, computed"
                 : formatted("%.0f", speed.tokens_per_s) + " tok/s, measured on " + speed.measured) +
            "\n";
  }
  return text + step_lines(fit.rank_steps);
}

std::string fit_table(const std::vector<FitRow>& rows, const FitMachine& machine) {
  std::vector<TableRow> cells = {{"model", "weights in", "fits", "cards", "weights", "KV", "KV tokens",
                                  "activations", "other", "download", "tok/s, 1 stream",
                                  "tok/s, all streams"}};
  std::vector<std::string> reasons;
  for (const FitRow& row : rows) {
    const Fit& fit = row.fit;
    TableRow line = {row.model, format_name(row), verdict_cell(fit, machine)};
    if (fit.verdict == FitVerdict::fits) {
      for (std::string cell :
           {std::to_string(fit.cards), gib(fit.weight_bytes), gib(fit.kv_bytes),
            std::to_string(fit.kv_tokens), gib(fit.activation_bytes), gib(fit.other_bytes)})
        line.push_back(std::move(cell));
    } else {
      line.insert(line.end(), 6, "-");
      if (std::ranges::find(reasons, fit.reason) == reasons.end()) reasons.push_back(fit.reason);
    }
    line.push_back(gigabytes(row.download_bytes));
    for (std::size_t i = 0; i < 2; ++i) {
      const bool there = i < fit.speeds.size();
      line.push_back(!there ? "-"
                            : rate(fit.speeds[i]) +
                                  (i > 0 ? ", " + std::to_string(fit.speeds[i].sequences) + " streams" : ""));
    }
    cells.push_back(std::move(line));
  }
  std::string text = machine_name(machine) + ", " + bytes_text(machine.memory_bytes) +
                     " each; sizes in GiB\n\n" + table(cells) + "\n";
  for (const std::string& reason : reasons) text += reason + "\n";
  return text + (reasons.empty() ? "" : "\n") + kLegend;
}

std::string fit_json(const FitRow& row, const FitMachine& machine, const Fit* elsewhere) {
  return json_of(row, machine, elsewhere).dump(2) + "\n";
}

std::string fit_table_json(const std::vector<FitRow>& rows, const FitMachine& machine) {
  JsonValue all;
  all["machine"] = machine.name;
  all["cards"] = machine.cards;
  all["memory_bytes"] = machine.memory_bytes;
  all["answers"] = JsonValue::array();
  for (const FitRow& row : rows) all["answers"].push_back(json_of(row, machine, nullptr));
  return all.dump(2) + "\n";
}

}  // namespace troupe::cli
