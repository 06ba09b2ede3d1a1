#include "cli/status_table.h"

#include <gtest/gtest.h>

#include "cli/command_line.h"

namespace troupe::cli {
namespace {

TEST(StatusTable, ShowsEveryPart) {
  const auto text = status_table(R"({"model": "demo", "state": "ready",
    "ports": {"http": 8180, "metrics": 8180, "engine_worker_queue": 40001, "cache_queue": 40002},
    "logs": {"dir": "/srv/log", "actor_dirs": {}},
    "processes": [{"name": "engine", "pid": 7, "uptime_s": 3725.2, "restarts": 0, "state": "ready"},
                  {"name": "worker-0", "pid": 12345, "uptime_s": 59, "restarts": 2, "state": "loading",
                   "last_end": "worker-0 was killed by signal 9"}],
    "queues": [{"name": "plans", "depth": 1, "capacity": 65536}],
    "tokens": {"prompt": 1000, "generated": 300, "prompt_per_s": 12.5, "generated_per_s": 80.0},
    "kv_blocks": {"total": 100, "free": 90, "cached": 3, "leased": 7, "moving": 0},
    "prefix_cache": {"prompt_tokens": 1000, "cached_tokens": 640, "evicted_blocks": 5},
    "swap_space": {"total": 50, "free": 10, "cached": 39, "moving": 1, "out_blocks": 70, "in_blocks": 30,
                   "evicted_blocks": 20, "failed_blocks": 0, "declined_blocks": 0},
    "media": {"file_bytes": 1250000, "file_limit": 256000000, "patch_bytes": 7000000,
              "patch_limit": 768000000, "cached_bytes": 900000, "cached_limit": 268435456,
              "cached_entries": 3, "hits": 5, "misses": 8, "decodes_running": 1, "decodes_waiting": 2,
              "requests_waiting": 4, "refused": 6}})");
  ASSERT_TRUE(text.ok()) << text.status().message;
  EXPECT_EQ(
      *text,
      "model   demo\n"
      "state   ready\n"
      "ports   http 8180 · metrics 8180 · engine worker queue 40001 · cache queue 40002\n"
      "logs    /srv/log\n"
      "kv      100 total · 90 free · 3 cached · 7 leased · 0 moving blocks\n"
      "tokens  12.5 prompt tokens/s · 80.0 output tokens/s · since the engine's start 1000 prompt · 300 "
      "output\n"
      "prefix  640 of 1000 prompt tokens found in the cache · 5 blocks evicted\n"
      "swap    50 total · 10 free · 39 cached · 1 moving blocks · 70 copied out · 30 copied back · 0 failed\n"
      "media   1.2 of 256.0 MB files · 7.0 of 768.0 MB patches · cache 3 items, 0.9 of 268.4 MB, 5 hits, "
      "8 misses · 1 decoding · 2 waiting · 4 requests waiting for memory · 6 refused\n"
      "\n"
      "  process   pid    up     restarts  state\n"
      "  engine    7      1h 2m  0         ready\n"
      "  worker-0  12345  59s    2         loading\n"
      "  last restart: worker-0 was killed by signal 9\n"
      "\n"
      "  queue  depth  capacity  unit\n"
      "  plans  1      65536     bytes\n");
}

TEST(StatusTable, PeersHaveALineEach) {
  const auto text = status_table(R"({"role": "decode", "peers": [
    {"role": "prefill", "port": 7013, "pid": 42, "state": "joined", "why": ""},
    {"role": "prefill", "port": 7023, "pid": 0, "state": "absent", "why": ""},
    {"role": "prefill", "port": 7033, "pid": 43, "state": "refused", "why": "model differs"},
    {"role": "decode", "port": 0, "pid": 44, "state": "joined", "why": ""},
    {"role": "engine", "address": "10.0.0.5:8200", "state": "absent", "why": "is lost"}]})");
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("peer    prefill instance at queue port 7013 · joined · pid 42\n"
                       "peer    prefill instance at queue port 7023 · absent\n"
                       "peer    prefill instance at queue port 7033 · refused · pid 43 · model differs\n"
                       "peer    decode instance · joined · pid 44\n"
                       "peer    engine at 10.0.0.5:8200 · absent · is lost\n"),
            std::string::npos)
      << *text;
}

TEST(StatusTable, MissingAndOddPartsAreDashes) {
  const auto text = status_table(R"({"model": null, "ports": 7, "processes": "none", "queues": [1]})");
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("model   -"), std::string::npos);
  EXPECT_FALSE(status_table("[]").ok());
  EXPECT_FALSE(status_table("").ok());
}

TEST(Printable, KeepsTextAndDropsWhatSteersATerminal) {
  EXPECT_EQ(printable("größe\n\t你好"), "größe\n\t你好");
  EXPECT_EQ(printable("\x1b[2Jx\x07\r\x7f"), "[2Jx");
  EXPECT_EQ(printable("a\xc2\x9b"
                      "b"),
            "ab");
}

}  // namespace
}  // namespace troupe::cli
