#pragma once
// The control channel between the supervisor and one child: a SOCK_SEQPACKET pair, one JSON object in each
// packet. Its messages are rare and small; nothing of a request's path goes here.
//
// from the front
//   {"event":"state","state":"loading"|"ready"|"restarting"|"draining"}   whenever it changes
//   {"event":"status","id":n,"state":…,"kv_blocks":{"total","free","cached","leased","moving"},
//    "tokens":{"prompt","generated"},
//    "prefix_cache":{"prompt_tokens","cached_tokens","evicted_blocks"},
//    "swap_space":{"total","free","cached","moving","out_blocks","in_blocks","evicted_blocks","failed_blocks",
//                  "declined_blocks"},
//    "media":{…},                                        as on the status page
//    "queues":[{"name","depth","capacity"}]}             the answer to "status"; queues of its own only
//   {"event":"served","requests":n,"tokens":m}           requests finished well, and tokens generated, since
//                                                        the last one; at most one a second, when there were
//                                                        any. Past deaths no longer count
//   {"event":"fatal","message":…}                        one sentence, right before the child ends
//   {"event":"silent","part":…}                          a part of it stands still; "": none does
//   {"event":"distrusted","child":"text-0","why":…}      it sends what it should not: it is killed, and
//   started again
// from the engine
//   {"event":"state","state":"loading"|"ready"|"restarting"}   "ready": a worker is attached
//   {"event":"silent","part":…}                          a part of it, or "worker-N"
//   {"event":"fatal","message":…}
// from a worker
//   {"event":"loading","done_bytes":n,"total_bytes":n}   of its weights; a few times a second
//   {"event":"memory","life":"<decimal>","blocks":n,"block_bytes":n}
//                                                        right before "ready", with the file of its KV memory
//                                                        (kv_memory.h)
//   {"event":"peer_unreadable","peer":n,"why":…}         no KV blocks come from that instance
//   {"event":"kv_pair","peer":n,"rank":r}                with a socket for the worker of that rank of the
//                                                        instance (model/swap/kv_pair_messages.h)
//   {"event":"state","state":"ready"}                    weights are loaded, plans are served
//   {"event":"fatal","message":…}
// from a text process
//   {"event":"state","state":"ready"}                    it can encode
//   {"event":"silent","part":…}
//   {"event":"fatal","message":…}
// from a media process, which closes its end then
//   {"event":"state","state":"ready"}                    it can decode
//   {"event":"fatal","message":…}
// to the front
//   {"do":"status","id":n}
//   {"do":"renew"}                                       with the descriptor of a file of options: what the
//   files of keys and
//                                                        the PEM files hold now
//   {"do":"processes","processes":[{"name","pid","restarts"}]}   all of them, whenever one has changed
//   {"do":"drain","deadline_s":30}                       refuse new requests, finish the open ones, exit 0
// to a worker of a decode instance, when it is ready
//   {"do":"peer_memory","peer":n,"rank":r,"ranks":m,"life":"<decimal>","blocks":n,"block_bytes":n}
//                                                        with the file of the KV memory of one of m ranks of
//                                                        the n-th prefill instance; again when that comes
//                                                        anew. It keeps those that it reads
//   {"do":"peer_gone","peer":n,"rank":r}                 that rank has ended: its memory is of no use
// to a worker of a prefill instance, when it is ready
//   {"do":"patches"}                                     with the decode instance's ipc::PatchRegion
//   {"do":"patches_gone"}                                that instance has ended
//   {"do":"kv_pair"}                                     with a socket to a worker of the decode instance
// to the relay of a prefill engine, when it is ready
//   {"do":"kv_memory","rank":n,"life":"<decimal>","own_life":"<decimal>","blocks":n,"block_bytes":n}
//                                                        with the file of the KV memory of that rank, when
//                                                        the memories of all ranks are there
//   {"do":"kv_memory_gone","rank":n}                     its worker has ended
// to the engine, a worker or a text process
//   {"do":"stop"}                                        finish the step, exit 0
//
// Both ignore unknown events and members. When the channel is closed (Packet::Kind::closed) the other process
// is gone; a child then ends at once.
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "ipc/fd.h"

namespace troupe::supervisor {

struct Packet {
  enum class Kind { message, timeout, closed };
  Kind kind = Kind::timeout;
  nlohmann::json message;  ///< an object, when kind is message
  ipc::Fd attached;        ///< the descriptor that came with it; mostly none

  /// A member, or the given value when it is absent or of another type.
  std::string text(const char* member) const;
  std::int64_t number(const char* member, std::int64_t otherwise = 0) const;
  /// The texts among the members of a member that is an object.
  std::map<std::string, std::string> texts(const char* member) const;
};

class Control {
 public:
  Control() = default;
  /// Takes the descriptor over.
  explicit Control(ipc::Fd socket) : socket_(std::move(socket)) {}

  /// Never waits: messages to a peer that does not read are lost (Code::overloaded). Any thread. The peer
  /// gets a duplicate of the descriptor `attached`, unless it is -1.
  Status send(const nlohmann::json& message, int attached = -1) const;

  /// As send(), for messages that may be lost.
  void tell(const nlohmann::json& message) const { (void)send(message); }

  /// The next message; a deadline in the past polls. Packets that are no JSON object are skipped: a sender of
  /// many makes it return early. One thread at a time.
  Packet receive(TimePoint deadline);

  int fd() const { return socket_.get(); }
  bool open() const { return socket_.valid(); }
  void close() { socket_.reset(); }

 private:
  ipc::Fd socket_;
};

/// Sends bytes with a duplicate of the descriptor `attached`, unless it is -1. Never waits; the result and
/// errno are those of sendmsg(2).
ssize_t send_attached(int socket, const char* data, std::size_t size, int attached);

/// Receives bytes and the descriptor that came with them, if one did. Never waits; as recvmsg(2).
ssize_t receive_attached(int socket, char* data, std::size_t size, ipc::Fd& attached);

/// The process that made the socket's other end, of a pair: that made the pair. 0: not known.
int pid_of_peer(int socket);

struct ControlPair {
  Control ours;
  ipc::Fd theirs;
};
Result<ControlPair> make_control_pair();

}  // namespace troupe::supervisor
