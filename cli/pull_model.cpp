#include "cli/pull_model.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/clock.h"
#include "cli/progress_line.h"

namespace troupe::cli {
namespace {

std::atomic<bool> g_stop = false;
std::atomic<int> g_signal = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

/// While it lives, signals that end processes stop the fetch instead, and a file that grows too large is an
/// error of a write. A signal that the parent has made ignored stays ignored.
class StoppedBySignals {
 public:
  StoppedBySignals() {
    g_stop = false;
    g_signal = 0;
    struct sigaction stop = {};
    stop.sa_handler = [](int signal) {
      g_signal = signal;
      g_stop = true;
    };
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &stop, nullptr);
    }
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGXFSZ, &ignore, &too_large_before_);
  }
  ~StoppedBySignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
    ::sigaction(SIGXFSZ, &too_large_before_, nullptr);
  }
  StoppedBySignals(const StoppedBySignals&) = delete;
  StoppedBySignals& operator=(const StoppedBySignals&) = delete;

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_ = {};
  struct sigaction too_large_before_ = {};
};

Result<std::string> folder_of(const PullOrder& order) {
  if (!order.folder.empty()) return order.folder;
  if (!order.cache.empty()) return (std::filesystem::path(order.cache) / order.name).string();
  return invalid("where to? Set FD_MODEL_CACHE to the directory that holds models (or give --model-cache)",
                 "model-cache");
}

}  // namespace

Result<PullReport> pull_model(const PullOrder& order, const config::Environment& environment) {
  auto hub = fetch::find_hub(order.source, environment);
  if (!hub.ok()) return hub.status();
  auto repository = fetch::find_repository(*std::move(hub), order.name, order.revision);
  if (!repository.ok()) return repository.status();
  const auto folder = folder_of(order);
  if (!folder.ok()) return folder.status();
  std::fprintf(stderr, "fetching %s from %s\n", repository->name.c_str(), repository->hub.title.c_str());

  const StoppedBySignals signals;
  const TimePoint begin = Clock::now();
  Result<fetch::Pulled> pulled = Status{};
  {
    ProgressLine line;
    pulled = fetch::pull(
        {*repository, *folder, order.all, order.download},
        [&](const fetch::Progress& progress) { line.show(to_string(progress)); }, g_stop);
  }
  if (!pulled.ok()) {
    Status status = pulled.status();
    if (status.code == Code::cancelled) status.message = "stopped; the same command goes on from here";
    return status;
  }
  return PullReport{*pulled, *folder, std::chrono::duration<double>(Clock::now() - begin).count()};
}

std::string describe(const PullReport& report) {
  const fetch::Pulled& pulled = report.pulled;
  std::string out = report.folder + ": " + std::to_string(pulled.files) +
                    (pulled.files == 1 ? " file, " : " files, ") + fetch::byte_text(pulled.bytes);
  if (pulled.was_there) return out + ", there already";
  char time[64];
  std::snprintf(time, sizeof time, " in %.1f s", report.seconds);
  out += time;
  if (pulled.without_sum > 0) {
    out += "; the hub gives no checksum for " + std::to_string(pulled.without_sum) +
           " of them, whose size alone was checked";
  }
  return out;
}

int stopping_signal() { return g_signal; }

}  // namespace troupe::cli
