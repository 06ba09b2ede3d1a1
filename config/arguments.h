#pragma once
// Splitting a command line by a list of fields: --name value, --name=value, --switch, --no-switch,
// -short value, repeated flags, `_` for `-`. Not CLI11: the list of fields also defines the config file, the
// environment, the JSON for child processes and the documents, and a library would need a second description
// of each flag.
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/field.h"

namespace troupe::config {

/// Finds a field by any spelling of its name or alias (canonical form, without dashes).
const Field* find_field(const std::vector<Field>& fields, std::string_view name);

/// One flag as it was written, its value still text. A list flag that takes several words gives several.
struct Argument {
  const Field* field;
  std::string written;  ///< "--max_num_seqs", for messages
  std::string value;
};

struct Arguments {
  std::vector<Argument> given;
  std::vector<std::string> words;  ///< words that belong to no flag
  std::string help;                ///< "text" after --help or -h, the X of --help=X, else empty
};

/// Splits; sets nothing. Unknown flags are errors that suggest a similar flag. After "--" everything is
/// words.
Result<Arguments> split_arguments(const std::vector<std::string>& arguments,
                                  const std::vector<Field>& fields);

/// Splits and sets the fields; enough for a small subcommand.
Result<Arguments> read_arguments(const std::vector<std::string>& arguments, const std::vector<Field>& fields);

/// "  --port N   help [default: 8180]" lines for `fields`, headed by their groups; hidden ones are left
/// out. `width` columns at most. With `variables` each line names the environment variable too.
std::string describe_fields(const std::vector<Field>& fields, int width, bool variables);

}  // namespace troupe::config
