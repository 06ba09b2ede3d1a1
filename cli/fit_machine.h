#pragma once
// What `troupe fit` is asked about: this machine, and a model by its name or its directory.
#include <optional>
#include <string>

#include "base/status.h"
#include "cli/fit_report.h"
#include "config/options.h"
#include "model/documented/fit.h"

namespace troupe::cli {

/// The GPUs of this machine, or its CPU; `note` then says why no GPU. `with_speeds`: the CPU's memory and
/// arithmetic are measured, which takes about a second.
model::FitMachine this_machine(bool with_speeds, std::string& note);

/// `model`: a documented model's name, or a directory with at least config.json. invalid_argument if it is
/// neither.
Result<model::FitQuestion> question_about(const std::string& model, const model::FitMachine& machine,
                                          const config::Options& options);

/// Needs are named up to this many cards.
inline constexpr int kMostFitCards = 16;

struct FitAnswer {
  FitRow row;
  std::optional<model::Fit> elsewhere;  ///< on more cards than the machine has, if it fits there alone
};

FitAnswer answer_to(const model::FitQuestion& question, const model::FitMachine& machine);

}  // namespace troupe::cli
