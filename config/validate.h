#pragma once
// Rules between fields, and checks of the file system before anything is started.
#include <string>

#include "base/status.h"
#include "config/options.h"

namespace troupe::config {

/// Rules that need several fields (a single field's range is checked where it is parsed). Pure.
Status validate(const Options& options);

/// Fills model.directory: the path given; else model_cache/NAME; else an error that says how to get
/// the model. With no --model, the demo model beside the executable (`executable` is its path): the
/// first of DIR/models/NAME and DIR/../share/troupe/models/NAME that exists. The directory has a
/// readable model_config_name afterwards, unless the device is echo and no model was named.
Status resolve_model(ModelOptions& model, Device device, const std::string& executable);

/// Name of the directory of the demo model.
inline constexpr const char* kDemoModel = "SmolLM2-135M-Instruct";

}  // namespace troupe::config
