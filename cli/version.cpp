#include <cstdio>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/version.h"

namespace troupe::cli {

int version_main(int argc, char** argv) {
  const Synopsis synopsis{"version", "which version this is", "troupe version", "  troupe version\n"};
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, {}, words)) return *code;
  std::printf("troupe %s\nGPU code: %s\n", version(), gpu_code());
  return 0;
}

}  // namespace troupe::cli
