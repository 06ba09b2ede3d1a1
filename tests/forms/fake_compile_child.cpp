// A compiling process that also does what hostile forms do to one: the regex "crash" ends it, "hang" keeps it
// forever without using the processor, "spin" keeps it busy forever, "stop" stops it behind its answer,
// "sleep" stops it before, and "sleep once" only the first of all such processes with the same parent. Under
// a name with "stopped" in it, it stops at its start.
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "actors/grammar/frames.h"

namespace {

/// True once for all processes of one parent.
bool is_first() {
  const auto mark =
      std::filesystem::temp_directory_path() / ("first_compile_child_of_" + std::to_string(getppid()));
  if (!std::filesystem::exists(mark)) return std::ofstream(mark).good();
  std::filesystem::remove(mark);
  return false;
}

}  // namespace

int main(int, char** argv) {
  using namespace troupe;
  const std::string own_name = std::filesystem::read_symlink("/proc/self/exe").filename().string();
  if (own_name.find("stopped") != std::string::npos) std::raise(SIGSTOP);
  const int fd = std::atoi(argv[2] + 5);
  std::string bytes;
  if (frames::read(fd, bytes) != frames::Outcome::done) return 1;
  const grammar::TokenTable table(*grammar::vocabulary_from_bytes(bytes));
  frames::write(fd, "ready");
  while (frames::read(fd, bytes) == frames::Outcome::done) {
    const auto source = frames::source_from_bytes(bytes);
    if (source->text == "crash") std::raise(SIGKILL);
    if (source->text.starts_with("hang")) pause();
    if (source->text == "sleep" || (source->text == "sleep once" && is_first())) std::raise(SIGSTOP);
    for (volatile bool spins = source->text.starts_with("spin"); spins;) {
    }
    const auto form = grammar::compile(table, *source, 1);
    frames::write(fd, frames::to_bytes(form.status(), form.ok() ? (*form)->to_bytes() : std::string()));
    if (source->text == "stop") std::raise(SIGSTOP);
  }
  return 0;
}
