// libFuzzer's entry: the environment variable TROUPE_FUZZ_TARGET names the target.
#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const troupe::fuzz::Target target = [] {
    const char* name = std::getenv("TROUPE_FUZZ_TARGET");
    const auto found = troupe::fuzz::targets().find(name == nullptr ? "" : name);
    if (found != troupe::fuzz::targets().end()) return found->second;
    std::fprintf(stderr, "TROUPE_FUZZ_TARGET must be one of:");
    for (const auto& [known, unused] : troupe::fuzz::targets()) std::fprintf(stderr, " %s", known.c_str());
    std::fprintf(stderr, "\n");
    std::exit(2);
  }();
  target({data, size});
  return 0;
}
