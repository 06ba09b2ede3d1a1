#include "base/child_words.h"

#include <fcntl.h>

#include <charconv>

namespace troupe {

int descriptor_of(const std::vector<std::string>& words, std::string_view name) {
  int fd = -1;
  for (const std::string& word : words) {
    if (word.starts_with(name)) std::from_chars(word.data() + name.size(), word.data() + word.size(), fd);
  }
  return fd >= 0 && ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
}

}  // namespace troupe
