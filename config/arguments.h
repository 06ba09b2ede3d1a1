#pragma once
// Splitting a command line by a list of fields: --name value, --name=value, --switch, --no-switch,
// -short value, repeated flags, `_` for `-`. Own code and not CLI11, since a flag here is a line of one
// typed list that also makes the config file, the environment, the JSON for child processes and the
// documents; a second, library-side description of each flag would have to be kept equal to it.
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/field.h"

namespace troupe::config {

/// Finds a field by any spelling of its name or alias (canonical form, without dashes).
const Field* find_field(const std::vector<Field>& fields, std::string_view name);

/// One flag as it was written, its value still text. A list flag that eats several words gives several.
struct Argument {
  const Field* field;
  std::string written;  ///< "--max_num_seqs", for messages
  std::string value;
};

struct Arguments {
  std::vector<Argument> given;
  std::vector<std::string> words;  ///< what belongs to no flag
  std::string help;                ///< "text" after --help or -h, the X of --help=X, else empty
};

/// Splits; sets nothing. Unknown flags are errors with a guess at what was meant. After "--" all is words.
Result<Arguments> split_arguments(const std::vector<std::string>& arguments,
                                  const std::vector<Field>& fields);

/// Splits and sets the fields: all that a small subcommand needs.
Result<Arguments> read_arguments(const std::vector<std::string>& arguments, const std::vector<Field>& fields);

/// "  --port N   help [default: 8180]" lines for `fields`, headed by their groups; hidden ones are left
/// out. `width` columns at most. With `variables` each line names the environment variable too.
std::string describe_fields(const std::vector<Field>& fields, int width, bool variables);

}  // namespace troupe::config
