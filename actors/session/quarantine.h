#pragma once
// Lets one suspected request (EngineLives::suspect) at a time run alone, over all SESSION HOSTs. When an
// engine ends meanwhile, that request is the cause, and the end counts against no other.
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "actors/session/engine_process.h"

namespace troupe {

/// Any thread may call any function.
class Quarantine {
 public:
  struct Request {
    std::uint32_t host = 0;  ///< index of its SESSION HOST
    std::uint64_t exchange = 0;
    bool operator==(const Request&) const = default;
  };

  /// True when `request` may be submitted to this process of an engine now. It has the place until
  /// leave() or ended().
  bool enter(const Request& request, const EngineProcess& process) {
    const std::lock_guard lock(mutex_);
    if (holder_ && !(holder_->request == request)) return false;
    holder_ = Holder{request, process};
    return true;
  }

  /// The request is not suspected any longer, or has ended. Nothing happens when it does not have the place.
  void leave(const Request& request) {
    const std::lock_guard lock(mutex_);
    if (holder_ && holder_->request == request) holder_.reset();
  }

  /// The process has ended: returns which request ran alone in it, the same to every SESSION HOST that asks,
  /// whichever asks first, and frees the place.
  std::optional<Request> ended(const EngineProcess& process) {
    const std::lock_guard lock(mutex_);
    const bool held =
        holder_ && holder_->process.engine == process.engine && holder_->process.epoch <= process.epoch;
    auto& verdicts = verdicts_[process.engine];
    const auto [verdict, first] = verdicts.try_emplace(process.epoch);
    if (first && held) verdict->second = holder_->request;
    if (held) holder_.reset();
    const std::optional<Request> alone = verdict->second;
    while (verdicts.size() > kVerdicts) verdicts.erase(verdicts.begin());
    return alone;
  }

 private:
  // SESSION HOSTs hear of an engine's end within milliseconds of one another.
  static constexpr std::size_t kVerdicts = 8;

  struct Holder {
    Request request;
    EngineProcess process;
  };
  std::mutex mutex_;
  std::optional<Holder> holder_;
  std::map<std::uint32_t, std::map<std::uint32_t, std::optional<Request>>>
      verdicts_;  // by engine, then by epoch, the last few
};

}  // namespace troupe
