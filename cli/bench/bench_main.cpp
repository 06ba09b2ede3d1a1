#include <cstdio>
#include <string_view>

#include "cli/bench/arguments.h"
#include "cli/command_line.h"
#include "cli/commands.h"

namespace troupe::cli {
namespace {

struct BenchKind {
  std::string_view name;
  std::string_view help;
  int (*run)(int argc, char** argv);
};

constexpr BenchKind kKinds[] = {
    {"decode", "time of decode steps of the model alone, beside their bound", bench::decode_main},
    {"prefill", "time to the first token of the model alone, beside its bound", bench::prefill_main},
    {"serve", "start a server, put load on it, stop it: TTFT, ITL, TPOT, tokens per second",
     bench::serve_main},
    {"load", "the same on a server that runs already", bench::load_main},
};

int usage(std::FILE* out) {
  std::fputs("usage: troupe bench KIND [OPTION …]\n\n", out);
  for (const BenchKind& kind : kKinds) std::fprintf(out, "  %-9s %s\n", kind.name.data(), kind.help.data());
  std::fputs(
      "\ntroupe bench KIND --help says more. Example:\n  troupe bench decode --batch 1 --context 512\n", out);
  return out == stdout ? 0 : 2;
}

}  // namespace

int bench_main(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  if (word == "--help" || word == "-h") return usage(stdout);
  for (const BenchKind& kind : kKinds) {
    if (word == kind.name) return kind.run(argc - 1, argv + 1);
  }
  if (!word.empty()) std::fprintf(stderr, "troupe bench: there is no \"%s\"\n", printable(word).c_str());
  return usage(stderr);
}

}  // namespace troupe::cli
