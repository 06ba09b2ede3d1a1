#pragma once
// One setting as the command line, the environment, the config file, the JSON dump, --help and
// docs/options.md see it: a name, a text form, a range, and a pointer to the member that holds it.
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "config/unread.h"

namespace troupe::config {

/// The effect of a value other than the default.
enum class Standing {
  works,
  harmless,  ///< accepted with one warning line: ignoring it changes neither answers nor memory
  refused,   ///< exit code 3: ignoring it would change answers or memory
};

/// An enum member; `names` are those of its values in numerical order.
struct EnumMember {
  std::vector<std::string_view> names;
  std::function<int()> get;
  std::function<void(int)> set;
};

template <class Enum>
EnumMember choice(Enum& member, std::vector<std::string_view> names) {
  return {std::move(names), [&member] { return static_cast<int>(member); },
          [&member](int value) { member = static_cast<Enum>(value); }};
}

/// A number of bytes; the text form may end in KiB, MiB or GiB.
struct ByteCount {
  std::int64_t* value;
};

/// "count/seconds", or the count alone.
struct Rate {
  int* count;
  int* seconds;
};

/// JSON kept as its text; checked by Field::check.
struct JsonText {
  std::string* text;
  std::function<void()> read = {};  ///< reads members from the text whenever it was set
};

using Slot = std::variant<bool*, std::optional<bool>*, int*, std::optional<int>*, std::int64_t*, double*,
                          std::string*, std::vector<int>*, std::vector<std::string>*,
                          std::map<std::string, std::string>*, EnumMember, ByteCount, Rate, JsonText>;

struct Field {
  std::string_view name;            ///< with dashes, without the leading ones
  Slot slot = {};                   ///< borrowed: the Options must outlive the Field
  UnreadValue unread_default = {};  ///< of a flag that nothing reads: type and default; fields() sets `slot`
  std::string_view help;
  std::string_view unit = {};
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
  std::vector<std::string_view> allowed = {};   ///< text values; empty: any
  std::vector<std::string_view> unlisted = {};  ///< text values of FastDeploy's that `refusal` refuses
  Standing standing = Standing::works;
  std::string_view reason = {};                       ///< why it is refused or has no effect
  std::vector<std::string_view> also_fine = {};       ///< values that mean the same as the default
  std::string_view env = {};                          ///< a variable of FastDeploy's, besides TROUPE_NAME
  std::vector<std::string_view> aliases = {};         ///< other spellings, without the leading dashes
  Status (*check)(std::string_view value) = nullptr;  ///< rules beyond range and list
  std::string (*refusal)(std::string_view value) =
      nullptr;                       ///< why this value alone is refused; "": it is not
  std::string_view when_unset = {};  ///< shown as the default when the default means "chosen at start"
  bool secret = false;               ///< never shown in logs or /config-info
  bool refuses_empty = false;  ///< an empty value, a variable's too, is an error: it would switch off a guard
  bool one_word =
      false;            ///< a list of which one flag takes one word only, as words of another kind may follow
  bool hidden = false;  ///< carried to child processes, but not a flag
  std::string_view group = {};  ///< heading in --help
};

/// Lower case, `_` as `-`: the form in which names are compared.
std::string canonical(std::string_view name);

/// TROUPE_MAX_NUM_SEQS for max-num-seqs.
std::string variable_name(const Field& field);

/// True for a field whose flag needs no value.
bool is_switch(const Field& field);
/// True for a field that may be given several times, or with a comma list.
bool is_list(const Field& field);

/// What may be written, for help and messages: "whole number from 1 to 256", "auto, cpu or cuda".
std::string describe_values(const Field& field);

/// Reads the text form into the member; a list is appended to. The Status names no flag: the caller
/// knows where the value came from.
Status set_value(const Field& field, std::string_view text);

/// Empties a list, before a stronger source sets it anew. Nothing for other fields.
void clear_list(const Field& field);

/// The text form; set_value() of it gives the same value. Empty for an absent optional.
std::string show_value(const Field& field);

}  // namespace troupe::config
