#include "config/hide_secrets.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <string_view>

#include "config/fields.h"
#include "config/overloaded.h"

namespace troupe::config {
namespace {

std::set<std::string> secret_names() {
  Options options;
  std::set<std::string> names;
  for (const Field& field : fields(options)) {
    if (!field.secret || field.hidden) continue;
    names.emplace(field.name);
    names.insert(field.aliases.begin(), field.aliases.end());
  }
  return names;
}

void blank(char* text) { std::fill(text, text + std::strlen(text), '*'); }

}  // namespace

Options without_secrets(const Options& options) {
  Options copy = options;
  for (const Field& field : fields(copy)) {
    if (!field.secret) continue;
    std::visit(Overloaded{[](std::string* text) { text->clear(); },
                          [](std::vector<std::string>* list) { list->clear(); }, [](const auto&) {}},
               field.slot);
  }
  return copy;
}

void hide_secrets(int argc, char** argv) {
  const std::set<std::string> secrets = secret_names();
  bool is_value = false;  // of a secret flag, which may take several words
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with('-')) {
      if (is_value) blank(argv[i]);
      continue;
    }
    const std::size_t sign = word.find('=');
    const std::string_view name = word.substr(0, sign);
    is_value = secrets.contains(canonical(name.substr(std::min(name.find_first_not_of('-'), name.size()))));
    if (is_value && sign != word.npos) {
      blank(argv[i] + sign + 1);
      is_value = false;
    }
  }
}

}  // namespace troupe::config
