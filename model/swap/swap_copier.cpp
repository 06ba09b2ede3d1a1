#include "model/swap/swap_copier.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe::model {

SwapCopier::SwapCopier(std::unique_ptr<SwapStore> store) : store_(std::move(store)) {
  thread_ = std::thread([this] { run(); });
}

SwapCopier::~SwapCopier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void SwapCopier::set_memory(std::byte* kv, std::size_t block_bytes) {
  const std::lock_guard lock(mutex_);
  kv_ = kv;
  block_bytes_ = block_bytes;
}

void SwapCopier::set_peer(std::uint32_t peer, MappedPeer memory) {
  const std::lock_guard lock(mutex_);
  peers_.insert_or_assign(peer, std::move(memory));
}

void SwapCopier::forget_peer(std::uint32_t peer) {
  const std::lock_guard lock(mutex_);
  peers_.erase(peer);
}

void SwapCopier::submit(const wire::CacheCommand& command, std::span<const wire::BlockCopy> copies) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({command.id,
                     command.after,
                     command.op,
                     command.peer,
                     command.memory,
                     {copies.begin(), copies.end()}});
  }
  ++open_;
  work_.notify_one();
}

void SwapCopier::end(std::uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    ended_.end(id);
  }
  work_.notify_one();
}

bool SwapCopier::through(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  return ended_.through(id);
}

bool SwapCopier::take_ended(EndedCommand& out, TimePoint deadline) {
  if (open_ == 0) return false;
  std::unique_lock lock(mutex_);
  if (reports_.empty() && deadline > Clock::now()) {
    progress_.wait_until(lock, deadline, [this] { return !reports_.empty(); });
  }
  if (reports_.empty()) return false;
  out = reports_.front();
  reports_.pop_front();
  --open_;
  return true;
}

void SwapCopier::reset() {
  std::unique_lock lock(mutex_);
  jobs_.clear();
  progress_.wait(lock, [this] { return !running_; });
  reports_.clear();
  ended_.clear();
  open_ = 0;
}

/// The job to run now. Copies in come first: sequences wait for them, and rarely for a copy out.
std::deque<SwapCopier::Job>::iterator SwapCopier::next() {
  const auto ready = [this](bool in) {
    return std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& job) {
      return (job.op != wire::CacheOp::swap_out) == in && ended_.through(job.after);
    });
  };
  const auto in = ready(true);
  return in != jobs_.end() ? in : ready(false);
}

void SwapCopier::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto at = jobs_.end();
    work_.wait(lock, [&] { return stop_ || (at = next()) != jobs_.end(); });
    if (stop_) return;
    const Job job = std::move(*at);
    jobs_.erase(at);
    const MappedPeer peer = peer_of(job);
    running_ = true;
    lock.unlock();
    EndedCommand report{job.id, false, now_ns(), 0};
    report.failed = !copy(job, peer);
    report.finished_ns = now_ns();
    lock.lock();
    running_ = false;
    ended_.end(job.id);
    reports_.push_back(report);
    progress_.notify_one();
  }
}

/// Of a copy from an instance whose memory has that life; else empty.
MappedPeer SwapCopier::peer_of(const Job& job) const {
  const auto known = job.op == wire::CacheOp::peer_in ? peers_.find(job.peer) : peers_.end();
  return known != peers_.end() && known->second.life == job.memory ? known->second : MappedPeer();
}

/// False at the first block that fails: the command's blocks are lost together.
bool SwapCopier::copy(const Job& job, const MappedPeer& peer) const {
  const auto kv = [this](BlockId block) { return kv_ + static_cast<std::size_t>(block) * block_bytes_; };
  const auto* const peer_kv = peer.memory ? static_cast<const std::byte*>(peer.memory->data()) : nullptr;
  for (const wire::BlockCopy& pair : job.copies) {
    if (job.op == wire::CacheOp::swap_out) {
      if (!store_->write(pair.to, kv(pair.from))) return false;
    } else if (job.op == wire::CacheOp::swap_in) {
      if (!store_->read(pair.from, kv(pair.to))) return false;
    } else {
      const auto from = static_cast<std::size_t>(pair.from);
      if (from >= peer.blocks) return false;
      std::memcpy(kv(pair.to), peer_kv + from * block_bytes_, block_bytes_);
    }
  }
  return true;
}

}  // namespace troupe::model
