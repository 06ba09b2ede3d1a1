#include "actors/worker/kv_pairs.h"

#include "model/swap/kv_pair_messages.h"

namespace troupe {

KvPairs::KvPairs(Executor& executor, Setup setup) : executor_(executor), setup_(std::move(setup)) {}

Status KvPairs::attach(std::uint32_t peer, const PeerKvMemory& memory) {
  Peer& of = peers_[peer];
  Rank& rank = of.ranks[memory.rank];
  rank = {memory};
  rank.memory.fd = -1;
  if (setup_.always) of.by_pairs = true;
  if (of.by_pairs) return pair(peer, rank);
  Status status = executor_.attach_peer(peer, memory);
  if (status.code != Code::unavailable) return status;
  of.by_pairs = true;
  of.why = status.message;
  const Status paired = pair_all(peer, of);
  if (paired.code != Code::unsupported) return paired;
  of.by_pairs = false;
  return status;
}

Status KvPairs::pair_all(std::uint32_t peer, Peer& of) {
  for (auto& [number, rank] : of.ranks) {
    if (Status status = pair(peer, rank); !status.ok()) return status;
  }
  return {};
}

Status KvPairs::pair(std::uint32_t peer, Rank& rank) {
  rank.retry_at = {};
  rank.tried = ++tries_;
  OwnedFd own, theirs;
  if (Status made = model::PairSocket::make(own, theirs); !made.ok()) return made;
  const auto tell = [inbox = inbox_, peer, number = rank.memory.rank,
                     tried = rank.tried](const PairNews& news) {
    const std::lock_guard lock(inbox->mutex);
    inbox->news.push_back({peer, number, tried, news});
  };
  const Result<bool> needed = executor_.attach_pair(peer, rank.memory, std::move(own), tell);
  if (!needed || !*needed) return needed.status();
  // If it cannot be sent, its end is closed with this call, and the pair is lost.
  (void)setup_.send(peer, rank.memory.rank, theirs.get());
  return {};
}

void KvPairs::detach(std::uint32_t peer, int rank) {
  executor_.detach_peer(peer, rank);
  const auto known = peers_.find(peer);
  if (known == peers_.end()) return;
  known->second.ranks.erase(rank);
  if (known->second.ranks.empty()) peers_.erase(known);  // the next one may be on another GPU
}

void KvPairs::tick(TimePoint now) {
  std::vector<News> all;
  {
    const std::lock_guard lock(inbox_->mutex);
    all.swap(inbox_->news);
  }
  for (const News& news : all) take(news, now);
  for (auto& [index, peer] : peers_) {
    for (auto& [number, rank] : peer.ranks) {
      if (rank.retry_at == TimePoint{} || now < rank.retry_at) continue;
      if (const Status status = pair(index, rank); !status.ok()) refuse(index, peer, status.message);
    }
  }
}

void KvPairs::take(const News& news, TimePoint now) {
  const auto known = peers_.find(news.peer);
  if (known == peers_.end()) return;
  Peer& peer = known->second;
  const auto at = peer.ranks.find(news.rank);
  if (at == peer.ranks.end() || at->second.tried != news.tried) return;  // of an earlier one
  Rank& rank = at->second;
  if (news.news.what == PairNews::What::ready) {
    rank.ready_at = now;
    setup_.log.info("kv_pair_ready", {kv("peer", news.peer), kv("rank", news.rank)});
    return;
  }
  setup_.log.warning("kv_pair_ended",
                     {kv("peer", news.peer), kv("rank", news.rank), kv("why", news.news.why)});
  if (news.news.what == PairNews::What::failed) {
    const bool was_good = rank.ready_at != TimePoint{} && now - rank.ready_at > kTrial;
    rank.failures = was_good ? 1 : rank.failures + 1;
    rank.ready_at = {};
  }
  if (news.news.what == PairNews::What::refused || rank.failures >= kMostFailures)
    return refuse(news.peer, peer, news.news.why);
  rank.retry_at = now + kPairRetry;
}

void KvPairs::refuse(std::uint32_t peer, Peer& of, const std::string& why) {
  for (auto& [number, rank] : of.ranks) rank.retry_at = {};
  setup_.refused(peer, of.why.empty() ? "its KV blocks do not come by NCCL: " + why
                                      : of.why + "; nor do its KV blocks come by NCCL: " + why);
}

}  // namespace troupe
