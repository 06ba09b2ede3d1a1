#pragma once
// The decode side of KV connections: one for each rank here, beside the connection that carries the link. It
// asks the prefill engine's relay for what this machine's worker wants, and puts the answers where the worker
// takes them (ipc/block_fetches.h).
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "actors/remote/cluster_keys.h"
#include "actors/remote/kv_frames.h"
#include "actors/remote/relay_greeting.h"
#include "actors/remote/stream.h"
#include "base/log.h"
#include "config/address.h"
#include "ipc/block_fetches.h"
#include "ipc/block_names.h"

namespace troupe::remote {

class KvClient {
 public:
  struct Setup {
    RelayGreeting own;
    http::TlsContext tls;
    config::Address engine;
    std::int32_t rank = 0;
    std::int32_t ranks = 1;  ///< of this instance; the engine may have another number
    Log log;
    /// The copy of the engine's table: under which name a block that is wanted is asked for.
    std::shared_ptr<const ipc::BlockNames> names;
    /// The engine gives no blocks, in its words. Called by run(), at each try.
    std::function<void(const std::string& why)> refused;
  };

  KvClient(Setup setup, ipc::BlockFetches fetches) : setup_(std::move(setup)), fetches_(std::move(fetches)) {
    fetches_.set_connected(false);  // a relay before this one may have been killed
  }

  /// Connects, again and again, and fetches, until asked to stop. One thread at a time.
  void run(const std::stop_token& stop);

 private:
  struct Pending {
    std::uint64_t number = 0;
    std::optional<ipc::BlockFetches::Want> want;  // nothing: a beat
  };

  std::string visit(const std::stop_token& stop);
  std::string send(Stream& stream, const std::stop_token& over);
  std::string receive(Stream& stream, const std::stop_token& over);
  std::string take(Stream& stream, const KvAnswerHead& head, const Pending& pending,
                   const std::stop_token& over);
  void put_wants(std::span<std::uint64_t> seen, bool wait, std::vector<std::byte>& out);
  void put_want(const ipc::BlockFetches::Want& want, std::vector<std::byte>& out);
  void put(KvWant asked, Pending pending, std::vector<std::byte>& out);

  const Setup setup_;
  ipc::BlockFetches fetches_;
  std::uint64_t block_bytes_ = 0;         // of this connection, as all below
  std::atomic<std::uint64_t> blocks_{0};  // that the worker has got
  std::uint64_t number_ = 0;
  std::mutex mutex_;
  std::deque<Pending> pending_;  // guarded by mutex_
};

}  // namespace troupe::remote
