#include "cli/pull_model.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/clock.h"
#include "base/counted.h"
#include "cli/command_line.h"
#include "cli/fit_machine.h"
#include "cli/progress_line.h"
#include "fetch/http_get.h"
#include "model/checkpoint/spec.h"

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

/// What `troupe fit` says of the model on this machine. A model that is not documented is known by its
/// config.json, which is asked for first.
std::string fit_of(const fetch::PullSettings& settings, const fetch::PullPlan& plan,
                   const std::string& name) {
  std::string note;
  const model::FitMachine machine = this_machine(false, note);
  Result<model::FitQuestion> question = failure(Code::not_found, "no documented model");
  // By the name alone, or a directory of that name would count.
  if (model::find_documented(name) != nullptr) question = question_about(name, machine, {});
  if (!question.ok()) {
    constexpr std::size_t kLargestConfig = 1 << 20;
    const auto config =
        fetch::get_page(fetch::file_request(settings.repository, "config.json"), kLargestConfig, g_stop);
    if (!config.ok()) return "cannot say: config.json could not be read: " + config.status().message + "\n";
    auto spec = model::parse_spec(*config, "config.json of " + name);
    if (!spec.ok()) return "cannot say: " + spec.status().message + "\n";
    question = model::FitQuestion{.spec = *std::move(spec)};
  }
  question->name = name;
  question->download_bytes = plan.bytes;
  const FitAnswer answer = answer_to(*question, machine);
  return fit_text(answer.row, machine, answer.elsewhere ? &*answer.elsewhere : nullptr);
}

void say_plan(const fetch::PullSettings& settings, const fetch::PullPlan& plan, const std::string& name) {
  std::string text = "size  " + fetch::byte_text(plan.bytes) + " in " + counted(plan.files.size(), "file");
  if (plan.missing_bytes < plan.bytes)
    text += ", of which " + fetch::byte_text(plan.missing_bytes) + " are missing";
  text +=
      "\ndisk  " +
      (plan.free_bytes ? fetch::byte_text(*plan.free_bytes) + " free" : std::string("free space unknown")) +
      " for " + settings.folder.string() + "\nfit   " + fit_of(settings, plan, name);
  std::fputs(printable(text).c_str(), stderr);
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
  const fetch::PullSettings settings{*repository, *folder, order.all, order.download};
  Result<fetch::Pulled> pulled = Status{};
  if (const auto plan = fetch::plan_pull(settings, g_stop); !plan.ok()) {
    pulled = plan.status();
  } else {
    if (!plan->is_there) say_plan(settings, *plan, order.name);
    if (order.dry_run)
      return PullReport{{plan->files.size(), plan->bytes, 0, plan->is_there}, *folder, 0, true};
    ProgressLine line;
    pulled = fetch::pull(
        settings, *plan, [&](const fetch::Progress& progress) { line.show(to_string(progress)); }, g_stop);
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
  if (report.dry_run) return out + ", not fetched (--dry-run)";
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
