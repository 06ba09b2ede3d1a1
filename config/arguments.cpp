#include "config/arguments.h"

#include "config/nearest.h"

namespace troupe::config {
namespace {

bool is_flag_like(std::string_view word) {
  return word.starts_with("--") && word.size() > 2 && word[2] != ' ';
}

bool is_bool_word(std::string_view word) {
  const std::string lower = canonical(word);
  return lower == "true" || lower == "false";
}

}  // namespace

const Field* find_field(const std::vector<Field>& fields, std::string_view name) {
  const std::string wanted = canonical(name);
  for (const Field& field : fields) {
    if (field.hidden) continue;
    if (field.name == wanted) return &field;
    for (std::string_view alias : field.aliases) {
      if (alias == wanted) return &field;
    }
  }
  return nullptr;
}

namespace {

Status unknown_flag(std::string_view written, std::string_view name, const std::vector<Field>& fields) {
  std::vector<std::string_view> names = {"help"};
  std::vector<std::string_view> switches;
  for (const Field& field : fields) {
    if (field.hidden) continue;
    names.push_back(field.name);
    if (is_switch(field)) switches.push_back(field.name);
  }
  const std::string wanted = canonical(name);
  std::string guess;
  if (wanted.starts_with("no-")) guess = did_you_mean(std::string_view(wanted).substr(3), switches, "--no-");
  if (guess.empty()) guess = did_you_mean(wanted, names, "--");
  return invalid("unknown flag " + std::string(written) + guess + " (--help lists them)",
                 std::string(written), "unknown_flag");
}

/// Goes through the words once; `next_` is the first one not yet consumed.
class Splitter {
 public:
  Splitter(const std::vector<std::string>& words, const std::vector<Field>& fields)
      : words_(words), fields_(fields) {}

  Result<Arguments> run() {
    while (next_ < words_.size()) {
      const std::string& word = words_[next_++];
      if (word == "--") {
        out_.words.insert(out_.words.end(), words_.begin() + static_cast<std::ptrdiff_t>(next_),
                          words_.end());
        break;
      }
      if (word.size() < 2 || word[0] != '-') {
        out_.words.push_back(word);
        continue;
      }
      Status status = take_flag(word);
      if (!status.ok()) return status;
    }
    return std::move(out_);
  }

 private:
  Status take_flag(const std::string& word) {
    const std::size_t dashes = word.starts_with("--") ? 2 : 1;
    const std::size_t sign = word.find('=');
    const std::string written = word.substr(0, sign);
    const std::string name = written.substr(dashes);
    const bool has_value = sign != std::string::npos;
    std::string value = has_value ? word.substr(sign + 1) : std::string();
    if (canonical(name) == "help" || word == "-h") {
      out_.help = has_value ? value : "text";
      return {};
    }
    const Field* field = find_field(fields_, name);
    bool positive = true;
    if (field == nullptr && canonical(name).starts_with("no-")) {
      field = find_field(fields_, std::string_view(name).substr(3));
      positive = false;
      if (field != nullptr && !is_switch(*field)) field = nullptr;
    }
    if (field == nullptr) return unknown_flag(written, name, fields_);
    if (is_switch(*field)) return take_switch(*field, written, positive, has_value, value);
    if (has_value) return give(*field, written, std::move(value)), Status{};
    // A value may start with one dash (a negative number), or be any text that is not a flag.
    if (next_ == words_.size() || is_flag_like(words_[next_])) {
      return invalid(written + ": a value is missing, expected " + describe_values(*field), written,
                     "missing");
    }
    give(*field, written, words_[next_++]);
    while (is_list(*field) && !field->one_word && next_ < words_.size() && !words_[next_].starts_with('-')) {
      give(*field, written, words_[next_++]);
    }
    return {};
  }

  Status take_switch(const Field& field, const std::string& written, bool positive, bool has_value,
                     std::string value) {
    if (!positive && has_value) return invalid(written + " takes no value, got \"" + value + "\"", written);
    if (!positive) value = "false";

    if (positive && !has_value) {
      const bool follows = next_ < words_.size() && is_bool_word(words_[next_]);
      value = follows ? words_[next_++] : "true";
    }
    give(field, written, std::move(value));
    return {};
  }

  void give(const Field& field, const std::string& written, std::string value) {
    out_.given.push_back({&field, written, std::move(value)});
  }

  const std::vector<std::string>& words_;
  const std::vector<Field>& fields_;
  std::size_t next_ = 0;
  Arguments out_;
};

}  // namespace

Result<Arguments> split_arguments(const std::vector<std::string>& arguments,
                                  const std::vector<Field>& fields) {
  return Splitter(arguments, fields).run();
}

Result<Arguments> read_arguments(const std::vector<std::string>& arguments,
                                 const std::vector<Field>& fields) {
  Result<Arguments> split = split_arguments(arguments, fields);
  if (!split.ok()) return split;
  for (const Argument& argument : split->given) {
    Status status = set_value(*argument.field, argument.value);
    if (!status.ok())
      return invalid(argument.written + ": " + status.message, argument.written, status.reason);
  }
  return split;
}

}  // namespace troupe::config
