#include "text/template/jinja/missing.h"

#include <set>
#include <utility>

#include "text/template/jinja/rendering.h"

namespace troupe::jinja {
namespace {

using UseKind = NamedUse::Kind;

const char* name_of(UseKind kind) {
  switch (kind) {
    case UseKind::filter: return "filter";
    case UseKind::test: return "test";
    case UseKind::function: return "function";
    case UseKind::method: return "method";
  }
  return "?";
}

bool exists(const NamedUse& use, const ParsedTemplate& parsed) {
  switch (use.kind) {
    case UseKind::filter: return find_filter(use.name) != nullptr;
    case UseKind::test: return find_test(use.name) != nullptr;
    case UseKind::function:
      return find_function(use.name) != nullptr || parsed.assigned.contains(use.name) || use.name == "caller";
    case UseKind::method:
      return is_method(use.name) || parsed.assigned.contains(use.name) ||
             use.name == "cycle";  // loop.cycle()
  }
  return false;
}

}  // namespace

std::vector<std::string> missing_names(const ParsedTemplate& parsed) {
  std::vector<std::string> missing;
  std::set<std::pair<UseKind, std::string>> seen;
  for (const NamedUse& use : parsed.uses) {
    if (exists(use, parsed) || parsed.guarded.contains(use.name)) continue;
    if (!seen.emplace(use.kind, use.name).second) continue;
    missing.push_back("the " + std::string(name_of(use.kind)) + " '" + use.name.substr(0, 40) + "' (line " +
                      std::to_string(use.line) + ")");
  }
  return missing;
}

}  // namespace troupe::jinja
