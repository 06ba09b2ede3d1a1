#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "model/cuda/nccl_exchange.h"
#include "model/cuda/peer_exchange.h"
#include "model/ranks/collective.h"

namespace troupe::model {

struct Collective<Cuda>::Way {
  std::variant<PeerExchange, NcclExchange> exchange;

  template <class F>
  auto with(F&& f) {
    return std::visit(std::forward<F>(f), exchange);
  }
  /// Null over NCCL.
  PeerExchange* peers() { return std::get_if<PeerExchange>(&exchange); }
};

Collective<Cuda>::Collective(RankMeeting meeting, Cuda& device, std::unique_ptr<Way> way)
    : meeting_(std::move(meeting)), device_(device), way_(std::move(way)) {}

Collective<Cuda>::~Collective() = default;

Result<std::unique_ptr<Collective<Cuda>>> Collective<Cuda>::attach(int fd, const Shard& shard, Cuda& device,
                                                                   bool nccl, bool shares_gpu) {
  Result<RankMeeting> meeting = RankMeeting::attach(fd, shard);
  if (!meeting) return meeting.status();
  std::unique_ptr<Way> way(
      nccl ? new Way{decltype(Way::exchange)(std::in_place_type<NcclExchange>, device, shard, shares_gpu)}
           : new Way{decltype(Way::exchange)(std::in_place_type<PeerExchange>, device, shard, shares_gpu)});
  return std::unique_ptr<Collective>(new Collective(std::move(*meeting), device, std::move(way)));
}

bool Collective<Cuda>::lasting_graphs() const {
  return way_->with([](const auto& exchange) { return exchange.kLastingGraphs; });
}

bool Collective<Cuda>::knows_steps() const { return way_->peers() == nullptr || way_->peers()->known(); }

void Collective<Cuda>::set_two_steps_from(std::size_t numbers) {
  TROUPE_CHECK(way_->peers() != nullptr);
  way_->peers()->learn(numbers);
}

std::size_t Collective<Cuda>::two_steps_from() const {
  return way_->peers() == nullptr ? kernels::kNeverInTwoSteps : way_->peers()->two_steps_from();
}

void Collective<Cuda>::clear(Cuda&, float* memory, std::size_t count) {
  TROUPE_CHECK(cleared_ == nullptr || cleared_ == memory);
  cleared_ = memory;
  cleared_count_ = std::max(cleared_count_, count);
}

void Collective<Cuda>::all_reduce(Cuda&, float* in, float* out, std::size_t count) {
  way_->with([&](auto& exchange) { exchange.all_reduce(in, out, count); });
}

bool Collective<Cuda>::all_reduce(Cuda&, float* in, const kernels::AddRmsNorm& norm) {
  return way_->with([&](auto& exchange) { return exchange.all_reduce(in, norm); });
}

void Collective<Cuda>::all_gather(Cuda&, const float* in, std::size_t in_stride, float* out,
                                  std::size_t out_stride, int rows, std::span<const int> first) {
  way_->with([&](auto& exchange) { exchange.all_gather(in, in_stride, out, out_stride, rows, first); });
}

bool Collective<Cuda>::share(std::size_t bytes) {
  return way_->with([bytes](auto& exchange) { return exchange.share(bytes); });
}

std::byte* Collective<Cuda>::shared(int rank) const {
  return way_->with([rank](const auto& exchange) { return exchange.shared(rank); });
}

bool Collective<Cuda>::join() {
  if (go_on()) return true;
  const bool finding = stage_ != Stage::alone && stage_ != Stage::meeting;
  if (finding && !meeting_.ended() && Clock::now() - here_ > RankMeeting::kPatience) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(RankMeeting::kPatience).count();
    const std::string why = stage_ == Stage::unreachable ? ": " + unreachable_.message : std::string();
    throw CudaError("the ranks have not found each other within " + std::to_string(seconds) + " s" + why);
  }
  return false;
}

bool Collective<Cuda>::go_on() {
  switch (stage_) {
    case Stage::alone:
      if (meeting_.ended()) return false;
      way_->with([this](auto& exchange) { exchange.tell(meeting_.mine()); });
      meeting_.arrive();
      stage_ = Stage::meeting;
      [[fallthrough]];
    case Stage::meeting:
      if (!meeting_.all_here()) return false;
      here_ = Clock::now();
      if (cleared_ != nullptr) device_.zero(cleared_, cleared_count_ * sizeof(float));
      unreachable_ = way_->with([this](auto& exchange) {
        return exchange.connect([this](int rank) { return meeting_.message_of(rank); });
      });
      stage_ = unreachable_.ok() ? Stage::connecting : Stage::unreachable;
      return go_on();
    case Stage::unreachable: return false;
    case Stage::connecting:
      if (!way_->with([](auto& exchange) { return exchange.connected(); })) return false;
      meeting_.arrive();
      stage_ = Stage::waiting;
      [[fallthrough]];
    case Stage::waiting:
      if (!meeting_.all_here()) return false;
      if (knows_steps()) {
        stage_ = Stage::joined;
        return true;
      }
      way_->peers()->measure();
      stage_ = Stage::measuring;
      [[fallthrough]];
    case Stage::measuring:
      // Exchanges of an epoch that has ended give up, and their times mean nothing.
      if (!way_->peers()->measured() || meeting_.ended()) return false;
      if (shard().rank == 0) {
        const std::size_t found = way_->peers()->found();
        std::memcpy(meeting_.mine(), &found, sizeof found);
      }
      meeting_.arrive();
      stage_ = Stage::telling;
      [[fallthrough]];
    case Stage::telling: {
      if (!meeting_.all_here()) return false;
      std::size_t found = 0;
      std::memcpy(&found, meeting_.message_of(0), sizeof found);
      way_->peers()->learn(found);
      stage_ = Stage::joined;
      [[fallthrough]];
    }
    case Stage::joined: break;
  }
  return true;
}

void Collective<Cuda>::skip_to_exchange(std::uint32_t number) {
  way_->with([number](auto& exchange) { exchange.skip_to(number); });
}

void Collective<Cuda>::leave() {
  way_->with([](auto& exchange) { exchange.leave(); });
}

void Collective<Cuda>::begin_epoch(std::uint32_t epoch) {
  way_->with([](auto& exchange) { exchange.disconnect(); });
  stage_ = Stage::alone;
  meeting_.begin_epoch(epoch);
}

}  // namespace troupe::model
