#pragma once
// The files of a checkpoint by their names, before anyone reads them. Many of them are optional: one that is
// there but cannot be read would be taken for absent, and the model would run with another tokenizer or
// template.
#include <filesystem>

#include "base/status.h"

namespace troupe::config {

/// Not ok when a file that a checkpoint or a tokenizer may have is a symbolic link without a target, a
/// directory, a FIFO, a device or a socket, or may not be read; the Status names it. ok when `directory`
/// cannot be listed.
Status check_model_directory(const std::filesystem::path& directory);

}  // namespace troupe::config
