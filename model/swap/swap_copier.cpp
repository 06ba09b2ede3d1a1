#include "model/swap/swap_copier.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe::model {

SwapCopier::SwapCopier(std::unique_ptr<SwapStore> store, const RemotePeers& remotes)
    : store_(std::move(store)), remotes_(remotes), remote_copies_(remotes.count) {
  for (std::size_t lane = 0; lane <= remotes.count; ++lane)
    threads_.emplace_back([this, lane] { run(lane); });
}

SwapCopier::~SwapCopier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = stop_fetches_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void SwapCopier::set_memory(const KvPart& kv) {
  const std::lock_guard lock(mutex_);
  kv_ = static_cast<std::byte*>(kv.shape.data);
  block_bytes_ = kv.shape.block_bytes();
  peers_ = Peers(kv);
}

Status SwapCopier::attach(std::uint32_t peer, const PeerKvMemory& memory) {
  const std::lock_guard lock(mutex_);
  const Result<bool> needed = peers_.needs(memory);
  if (!needed || !*needed) return needed.status();
  Result<SealedMemory> mapped = SealedMemory::open(memory.fd, memory.bytes());
  if (!mapped) return mapped.status();
  peers_.set(peer, memory, std::make_shared<SealedMemory>(std::move(*mapped)));
  return {};
}

void SwapCopier::detach(std::uint32_t peer, int rank) {
  const std::lock_guard lock(mutex_);
  peers_.forget(peer, rank);
}

bool SwapCopier::set_remote_peer(std::uint32_t peer, FetchBlocks fetch, PutBlock put) {
  if (!has_remote_peer(peer)) return false;
  if (!put) {
    put = [this](BlockId to, std::span<const std::byte> block) {
      std::memcpy(kv(to), block.data(), block.size());
      return true;
    };
  }
  return set_remote_copies(
      peer, [this, fetch = std::move(fetch), put = std::move(put)](
                std::uint64_t life, std::span<const wire::BlockCopy> copies, const std::atomic<bool>& stop) {
        bool all_put = true;
        const auto take = [&](const wire::BlockCopy& copy, std::span<const std::byte> block) {
          all_put = all_put && block.size() == block_bytes_ && put(copy.to, block);
        };
        return fetch && fetch(life, copies, take, stop) && all_put;
      });
}

bool SwapCopier::set_remote_copies(std::uint32_t peer, CopyBlocks copy) {
  if (!has_remote_peer(peer)) return false;
  const std::lock_guard lock(mutex_);
  remote_copies_[peer - remotes_.first] = std::move(copy);
  return true;
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
  work_.notify_all();
}

void SwapCopier::end(std::uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    ended_.end(id);
  }
  work_.notify_all();
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
  stop_fetches_ = true;
  progress_.wait(lock, [this] { return running_ == 0; });
  stop_fetches_ = false;
  reports_.clear();
  ended_.clear();
  open_ = 0;
}

/// Which thread runs the job.
std::size_t SwapCopier::lane_of(const Job& job) const {
  return job.op == wire::CacheOp::peer_in && has_remote_peer(job.peer) ? 1 + job.peer - remotes_.first : 0;
}

/// The job to run now. Copies in come first: sequences wait for them, and rarely for a copy out.
std::deque<SwapCopier::Job>::iterator SwapCopier::next(std::size_t lane) {
  const auto ready = [&](bool in) {
    return std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& job) {
      return lane_of(job) == lane && (job.op != wire::CacheOp::swap_out) == in && ended_.through(job.after);
    });
  };
  const auto in = ready(true);
  return in != jobs_.end() ? in : ready(false);
}

void SwapCopier::run(std::size_t lane) {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto at = jobs_.end();
    work_.wait(lock, [&] { return stop_ || (at = next(lane)) != jobs_.end(); });
    if (stop_) return;
    const Job job = std::move(*at);
    jobs_.erase(at);
    std::vector<Peers::Source> sources;
    if (job.op == wire::CacheOp::peer_in && lane == 0) sources = peers_.of(job.peer, job.memory, job.copies);
    const CopyBlocks remote = lane == 0 ? CopyBlocks() : remote_copies_[lane - 1];
    ++running_;
    lock.unlock();
    EndedCommand report{job.id, false, now_ns(), 0};
    report.failed =
        lane == 0 ? !copy(job, sources) : !remote || !remote(job.memory, job.copies, stop_fetches_);
    report.finished_ns = now_ns();
    sources.clear();  // unmapping a memory takes time, too
    lock.lock();
    --running_;
    ended_.end(job.id);
    reports_.push_back(report);
    progress_.notify_one();
    work_.notify_all();  // jobs of other lanes may wait for this one
  }
}

/// False at the first block that fails: the command's blocks are lost together.
bool SwapCopier::copy(const Job& job, std::span<const Peers::Source> sources) const {
  if (job.op == wire::CacheOp::peer_in && sources.empty()) return false;
  for (const wire::BlockCopy& pair : job.copies) {
    if (job.op == wire::CacheOp::swap_out) {
      if (!store_->write(pair.to, kv(pair.from))) return false;
    } else if (job.op == wire::CacheOp::swap_in) {
      if (!store_->read(pair.from, kv(pair.to))) return false;
    } else {
      for (const Peers::Source& source : sources) {
        const auto* const from = static_cast<const std::byte*>(source.memory->data()) +
                                 static_cast<std::size_t>(pair.from) * source.block_bytes;
        copy_slice(source.slice, from, kv(pair.to));
      }
    }
  }
  return true;
}

}  // namespace troupe::model
