#pragma once
// --model NAME=DIRECTORY: the models of a server that has several, each of which has an engine of its own.
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/options.h"

namespace troupe::config {

struct NamedModel {
  std::string name;   ///< as requests name it
  std::string model;  ///< as --model: a directory, or a name under the model cache
};

/// Whether the text has the form NAME=DIRECTORY. What exists as a directory, or begins as a path, has not.
bool is_named_model(std::string_view text);

/// The models that --model names, in the order given: "NAME=DIRECTORY,NAME=DIRECTORY". Empty: it names one,
/// without a name.
std::vector<NamedModel> named_models(const std::string& model);

/// Checks the names, and that the other options are about something that several models can have. Makes of
/// one named model an ordinary one; of several, as many engines.
Status settle_named_models(Options& options);

/// By engine, what each model is served with: `options` with the one model and its name, and with what its
/// file of options has where --model names a .yaml, .yml or .json file instead of a directory. Empty: there
/// is one model. Errors: those of read_model_file() and of validate().
Result<std::vector<Options>> options_of_models(const Options& options);

}  // namespace troupe::config
