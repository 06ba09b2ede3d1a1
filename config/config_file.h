#pragma once
// The --config file: YAML (JSON is a subset of it), a map from flag names to values.
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace troupe::config {

struct FileEntry {
  std::string name;  ///< as written
  std::vector<std::string>
      values;    ///< one, or the items of a list; a map inside becomes JSON text; none for null
  int line = 0;  ///< of the name, from 1
};

/// Reads the file, at most 1 MiB of it. Errors name the file and the line. Inside a value, a key that a map
/// has twice is an error; of the names of options, which have several spellings, the caller has to check it.
Result<std::vector<FileEntry>> read_config_file(const std::string& path);

/// The same for a text; `path` is for messages.
Result<std::vector<FileEntry>> parse_config_text(const std::string& text, const std::string& path);

}  // namespace troupe::config
