#include "config/child_environment.h"

#include <algorithm>
#include <set>
#include <span>
#include <string_view>

#include "config/fields.h"

namespace troupe::config {
namespace {

// A trailing * stands for any ending.

/// Read by the C library, the dynamic linker, and the runtimes of sanitizers and coverage.
constexpr std::string_view kEvery[] = {"PATH",
                                       "HOME",
                                       "TMPDIR",
                                       "LANG",
                                       "LC_*",
                                       "TZ",
                                       "TZDIR",
                                       "LD_LIBRARY_PATH",
                                       "LD_PRELOAD",
                                       "GLIBC_TUNABLES",
                                       "MALLOC_*",
                                       "ASAN_OPTIONS",
                                       "LSAN_OPTIONS",
                                       "MSAN_OPTIONS",
                                       "TSAN_OPTIONS",
                                       "UBSAN_OPTIONS",
                                       "ASAN_SYMBOLIZER_PATH",
                                       "LSAN_SYMBOLIZER_PATH",
                                       "MSAN_SYMBOLIZER_PATH",
                                       "TSAN_SYMBOLIZER_PATH",
                                       "UBSAN_SYMBOLIZER_PATH",
                                       "LLVM_PROFILE_FILE",
                                       "GCOV_PREFIX",
                                       "GCOV_PREFIX_STRIP"};
constexpr std::string_view kTls[] = {"OPENSSL_*"};
/// Read by the driver, by NCCL and by profilers.
constexpr std::string_view kGpu[] = {"CUDA_*", "NVIDIA_*", "NCCL_*", "NVTX_*", "NSYS_*"};
constexpr std::string_view kTerminal[] = {"TERM",  "TERMINFO", "TERMCAP", "COLORTERM", "COLUMNS", "LINES",
                                          "SHELL", "LESS*",    "LV",      "MORE",      "NO_COLOR"};

bool matches(std::string_view name, std::string_view pattern) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
}

/// The variables that set options, but for those of keys and passwords.
std::vector<std::string> option_variables() {
  Options options;
  std::vector<std::string> names;
  for (const Field& field : fields(options)) {
    if (field.hidden || field.secret) continue;
    names.push_back(variable_name(field));
    if (!field.env.empty()) names.emplace_back(field.env);
  }
  return names;
}

std::vector<std::span<const std::string_view>> lists_of(ChildKind kind) {
  switch (kind) {
    case ChildKind::front: return {kEvery, kTls};
    case ChildKind::engine: return {kEvery};
    case ChildKind::worker: return {kEvery, kGpu};
    case ChildKind::text: return {kEvery};
    case ChildKind::media: return {kEvery};
    case ChildKind::relay: return {kEvery};
    case ChildKind::fetch: return {kEvery, kTls};
    case ChildKind::server: return {kEvery, kTls, kGpu};
    case ChildKind::pager: return {kEvery, kTerminal};
  }
  return {};
}

}  // namespace

std::vector<std::string> child_environment(ChildKind kind, const Environment& own) {
  const auto lists = lists_of(kind);
  std::set<std::string> options;
  if (kind == ChildKind::server) {
    for (std::string& name : option_variables()) options.insert(std::move(name));
  }
  std::vector<std::string> out;
  for (const auto& [name, value] : own) {
    const bool listed = std::ranges::any_of(lists, [&](const auto& list) {
      return std::ranges::any_of(list, [&](std::string_view pattern) { return matches(name, pattern); });
    });
    if (listed || options.contains(name)) out.push_back(name + "=" + value);
  }
  return out;
}

}  // namespace troupe::config
