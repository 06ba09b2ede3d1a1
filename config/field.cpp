#include "config/field.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "config/overloaded.h"

namespace troupe::config {
namespace {

/// The error "got X, expected Y"; the caller puts the flag's name in front.
Status wrong(std::string_view got, const Field& field) {
  constexpr std::size_t kShown = 80;
  if (field.secret) return invalid("got a malformed value, expected " + describe_values(field));
  std::string shown(got.substr(0, kShown));
  if (got.size() > kShown) shown += "…";
  return invalid("got \"" + shown + "\", expected " + describe_values(field));
}

std::string number_text(double value) { return nlohmann::json(value).dump(); }

std::string bound_text(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return std::to_string(static_cast<long long>(value));
  return number_text(value);
}

std::string range_text(const Field& field) {
  const bool low = field.min > std::numeric_limits<double>::lowest();
  const bool high = field.max < std::numeric_limits<double>::max();
  if (low && high) return " from " + bound_text(field.min) + " to " + bound_text(field.max);
  if (low) return " of at least " + bound_text(field.min);
  if (high) return " of at most " + bound_text(field.max);
  return {};
}

std::string join(const std::vector<std::string_view>& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? " or " : ", ";
    out += words[i];
  }
  return out;
}

template <class T>
bool read_number(std::string_view text, const Field& field, T& out) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return false;
  const auto wide = static_cast<double>(value);
  if (!(wide >= field.min && wide <= field.max)) return false;  // also refuses NaN
  out = value;
  return true;
}

bool read_bool(std::string_view text, bool& out) {
  const std::string word = canonical(text);
  if (word == "true" || word == "1" || word == "on" || word == "yes") return out = true, true;
  if (word == "false" || word == "0" || word == "off" || word == "no") return out = false, true;
  return false;
}

/// "512MiB", "4 GiB", "1048576".
bool read_bytes(std::string_view text, const Field& field, std::int64_t& out) {
  struct Unit {
    std::string_view suffix;
    int shift;
  };
  static constexpr Unit kUnits[] = {{"kib", 10}, {"mib", 20}, {"gib", 30}, {"tib", 40}};
  std::string word = canonical(text);
  int shift = 0;
  for (const Unit& unit : kUnits) {
    if (!word.ends_with(unit.suffix)) continue;
    word.resize(word.size() - unit.suffix.size());
    while (word.ends_with(' ')) word.pop_back();
    shift = unit.shift;
  }
  std::int64_t count = 0;
  Field unbounded{.name = {}, .slot = field.slot, .help = {}};
  if (!read_number(std::string_view(word), unbounded, count)) return false;
  if (count < 0 ? shift > 0 : count > (std::numeric_limits<std::int64_t>::max() >> shift)) return false;
  count <<= shift;
  if (static_cast<double>(count) < field.min || static_cast<double>(count) > field.max) return false;
  out = count;
  return true;
}

template <class Each>
bool for_each_item(std::string_view text, Each&& each) {
  while (true) {
    const std::size_t comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    if (item.empty() || !each(item)) return false;
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

/// The known spelling of `text`, or nothing. Case and `_`/`-` do not count; an empty list allows all.
std::optional<std::string_view> allowed_form(const Field& field, std::string_view text) {
  if (field.allowed.empty()) return text;
  for (const auto* names : {&field.allowed, &field.unlisted}) {
    for (std::string_view name : *names) {
      if (canonical(name) == canonical(text)) return name;
    }
  }
  return std::nullopt;
}

bool read_names(std::string_view text, const Field& field, std::vector<std::string>& out) {
  std::vector<std::string> items;
  const bool fine = for_each_item(text, [&](std::string_view item) {
    const auto name = allowed_form(field, item);
    if (name) items.emplace_back(*name);
    return name.has_value();
  });
  if (!fine) return false;
  out.insert(out.end(), items.begin(), items.end());
  return true;
}

bool read_numbers(std::string_view text, const Field& field, std::vector<int>& out) {
  std::vector<int> items;
  const bool fine = for_each_item(text, [&](std::string_view item) {
    int number = 0;
    if (!read_number(item, field, number)) return false;
    items.push_back(number);
    return true;
  });
  if (!fine) return false;
  out.insert(out.end(), items.begin(), items.end());
  return true;
}

bool read_pairs(std::string_view text, std::map<std::string, std::string>& out) {
  std::map<std::string, std::string> pairs;
  const bool fine = for_each_item(text, [&](std::string_view item) {
    const std::size_t sign = item.find('=');
    if (sign == 0 || sign == std::string_view::npos || sign + 1 == item.size()) return false;
    pairs[std::string(item.substr(0, sign))] = item.substr(sign + 1);
    return true;
  });
  if (!fine) return false;
  for (auto& [key, value] : pairs) out[key] = value;
  return true;
}

bool read_rate(std::string_view text, const Field& field, Rate rate) {
  const std::size_t slash = text.find('/');
  int count = 0;
  int seconds = *rate.seconds;
  if (!read_number(text.substr(0, slash), field, count)) return false;
  if (slash != std::string_view::npos) {
    if (!read_number(text.substr(slash + 1), field, seconds) || seconds < 1) return false;
  }
  *rate.count = count;
  *rate.seconds = seconds;
  return true;
}

bool read_choice(std::string_view text, const EnumMember& choice) {
  for (std::size_t i = 0; i < choice.names.size(); ++i) {
    if (canonical(choice.names[i]) == canonical(text)) return choice.set(static_cast<int>(i)), true;
  }
  return false;
}

template <class Items>
std::string join_items(const Items& items) {
  std::string out;
  for (const auto& item : items) {
    if (!out.empty()) out += ',';
    if constexpr (std::is_same_v<std::decay_t<decltype(item)>, int>) {
      out += std::to_string(item);
    } else if constexpr (std::is_same_v<std::decay_t<decltype(item)>, std::string>) {
      out += item;
    } else {
      out += item.first + "=" + item.second;
    }
  }
  return out;
}

}  // namespace

std::string canonical(std::string_view name) {
  std::string out(name);
  for (char& c : out) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string variable_name(const Field& field) {
  std::string out = "TROUPE_";
  for (char c : field.name) {
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

bool is_switch(const Field& field) {
  return std::holds_alternative<bool*>(field.slot) ||
         std::holds_alternative<std::optional<bool>*>(field.slot);
}

bool is_list(const Field& field) {
  return std::holds_alternative<std::vector<int>*>(field.slot) ||
         std::holds_alternative<std::vector<std::string>*>(field.slot) ||
         std::holds_alternative<std::map<std::string, std::string>*>(field.slot);
}

std::string describe_values(const Field& field) {
  const auto whole = [&](auto*) { return "a whole number" + range_text(field); };
  const auto text = [&] { return field.allowed.empty() ? std::string("a text") : join(field.allowed); };
  return std::visit(
      Overloaded{
          [](bool*) { return std::string("true or false"); },
          [](std::optional<bool>*) { return std::string("true or false"); }, [&](int* p) { return whole(p); },
          [&](std::optional<int>* p) { return whole(p); }, [&](std::int64_t* p) { return whole(p); },
          [&](double*) { return "a number" + range_text(field); }, [&](std::string*) { return text(); },
          [&](std::vector<int>* p) { return whole(p) + ", or several separated by commas"; },
          [&](std::vector<std::string>*) { return text() + ", or several separated by commas"; },
          [](std::map<std::string, std::string>*) { return std::string("NAME=VALUE"); },
          [](const EnumMember& c) { return join(c.names); },
          [&](ByteCount) { return "a number of bytes" + range_text(field) + " (KiB, MiB, GiB may follow)"; },
          [](Rate) { return std::string("COUNT/SECONDS, whole numbers"); },
          [](JsonText) { return std::string("a JSON object"); }},
      field.slot);
}

Status set_value(const Field& field, std::string_view text) {
  if (field.refuses_empty && text.empty()) return wrong(text, field);
  Status detail;
  if (field.check != nullptr && !text.empty()) {
    detail = field.check(text);
    if (!detail.ok()) return detail;
  }
  const bool fine =
      std::visit(Overloaded{[&](bool* p) { return read_bool(text, *p); },
                            [&](std::optional<bool>* p) {
                              bool value = false;
                              return read_bool(text, value) ? (*p = value, true) : false;
                            },
                            [&](int* p) { return read_number(text, field, *p); },
                            [&](std::optional<int>* p) {
                              int value = 0;
                              return read_number(text, field, value) ? (*p = value, true) : false;
                            },
                            [&](std::int64_t* p) { return read_number(text, field, *p); },
                            [&](double* p) { return read_number(text, field, *p); },
                            [&](std::string* p) {
                              const auto name = allowed_form(field, text);
                              return name ? (*p = std::string(*name), true) : false;
                            },
                            [&](std::vector<int>* p) { return read_numbers(text, field, *p); },
                            [&](std::vector<std::string>* p) { return read_names(text, field, *p); },
                            [&](std::map<std::string, std::string>* p) { return read_pairs(text, *p); },
                            [&](const EnumMember& c) { return read_choice(text, c); },
                            [&](ByteCount b) { return read_bytes(text, field, *b.value); },
                            [&](Rate r) { return read_rate(text, field, r); },
                            [&](const JsonText& j) {
                              *j.text = std::string(text);
                              if (j.read) j.read();
                              return true;
                            }},
                 field.slot);
  return fine ? Status{} : wrong(text, field);
}

void clear_list(const Field& field) {
  std::visit(
      Overloaded{[](std::vector<int>* p) { p->clear(); }, [](std::vector<std::string>* p) { p->clear(); },
                 [](std::map<std::string, std::string>* p) { p->clear(); }, [](const auto&) {}},
      field.slot);
}

std::string show_value(const Field& field) {
  return std::visit(
      Overloaded{
          [](bool* p) { return std::string(*p ? "true" : "false"); },
          [](std::optional<bool>* p) {
            return std::string(!*p ? "" : **p ? "true" : "false");
          },
          [](int* p) { return std::to_string(*p); },
          [](std::optional<int>* p) { return *p ? std::to_string(**p) : std::string(); },
          [](std::int64_t* p) { return std::to_string(*p); }, [](double* p) { return number_text(*p); },
          [](std::string* p) { return *p; }, [](std::vector<int>* p) { return join_items(*p); },
          [](std::vector<std::string>* p) { return join_items(*p); },
          [](std::map<std::string, std::string>* p) { return join_items(*p); },
          [](const EnumMember& c) { return std::string(c.names.at(static_cast<std::size_t>(c.get()))); },
          [](ByteCount b) { return std::to_string(*b.value); },
          [](Rate r) { return std::to_string(*r.count) + "/" + std::to_string(*r.seconds); },
          [](const JsonText& j) { return *j.text; }},
      field.slot);
}

}  // namespace troupe::config
