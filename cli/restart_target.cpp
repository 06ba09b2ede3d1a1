#include "cli/restart_target.h"

#include <algorithm>

namespace troupe::cli {

Result<std::string> restart_target(const std::string& word, std::optional<int> index,
                                   const std::vector<std::string>& processes) {
  const std::size_t number = word.find_last_not_of("0123456789") + 1;
  const bool numbered = number < word.size() && number > 1 && word[number - 1] == '-';
  const std::string kind = numbered ? word.substr(0, number - 1) : word;
  // Several engines are numbered.
  const bool of_many = kind == "worker" || kind == "text" || kind == "media" || kind == "video" ||
                       (kind == "engine" && !std::ranges::count(processes, kind));
  if (!of_many && kind != "front" && kind != "engine") {
    return invalid("\"" + word + "\" cannot be restarted: allowed are " + std::string(kRestartKinds));
  }
  if (numbered && index)
    return invalid("--index " + std::to_string(*index) + ": " + word + " has its number already");
  if (numbered && of_many) return word;
  if (numbered) return invalid("there is no " + word + ": there is one " + kind);
  if (of_many) return kind + "-" + std::to_string(index.value_or(0));
  if (index.value_or(0) != 0) return invalid("--index " + std::to_string(*index) + ": there is one " + kind);
  return kind;
}

}  // namespace troupe::cli
