#pragma once
// The answers of `troupe fit` as text and as JSON.
#include <string>
#include <vector>

#include "model/documented/fit.h"

namespace troupe::cli {

struct FitRow {
  std::string model;
  std::string quantization;  ///< a value of --quantization; empty: as the model is published
  std::uint64_t download_bytes = 0;
  model::Fit fit;
};

/// One answer, of `machine`, in sentences and lines. `elsewhere`: on more cards than were asked for, if it
/// fits there; may be null.
std::string fit_text(const FitRow& row, const model::FitMachine& machine, const model::Fit* elsewhere);

/// All answers as a table; the rows' cards may be more than the machine has.
std::string fit_table(const std::vector<FitRow>& rows, const model::FitMachine& machine);

/// One answer as a JSON object. "fits" is true, false or, where nothing can be said, null.
std::string fit_json(const FitRow& row, const model::FitMachine& machine, const model::Fit* elsewhere);

/// All answers: {"machine": …, "cards": …, "answers": [… as fit_json()]}.
std::string fit_table_json(const std::vector<FitRow>& rows, const model::FitMachine& machine);

}  // namespace troupe::cli
