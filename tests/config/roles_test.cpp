// Flags of prefill and decode apart, on one machine and on several.
#include <gtest/gtest.h>

#include "config/parsed_words.h"

namespace troupe::config {
namespace {

TEST(Parse, RolesOfPrefillAndDecode) {
  EXPECT_EQ(parsed({}).split.role, SplitRole::mixed);
  EXPECT_EQ(parsed({"--splitwise-role", "prefill"}).split.role, SplitRole::prefill);
  const SplitOptions split = parsed({"--splitwise_role", "decode", "--inner-prefill-ports", "7013",
                                     "--innode-prefill-ports", "7023,7033", "--prefill-min-tokens", "100"})
                                 .split;
  EXPECT_EQ(split.role, SplitRole::decode);
  EXPECT_EQ(split.prefill_ports, (std::vector<int>{7013, 7023, 7033}));
  EXPECT_EQ(split.min_prompt_tokens, 100);
  EXPECT_TRUE(parsed({"--splitwise-role", "decode"}).split.prefill_ports.empty()) << "it serves mixed";
  EXPECT_EQ(option_error({"--splitwise-role", "router"}),
            "--splitwise-role: got \"router\", expected mixed, prefill or decode");
  option_error({"--prefill-min-tokens", "0"});
  EXPECT_EQ(split.kv_transfer, KvTransfer::automatic);
  EXPECT_EQ(parsed({"--kv-transfer", "nccl"}).split.kv_transfer, KvTransfer::nccl);
  EXPECT_EQ(option_error({"--kv-transfer", "ipc"}), "--kv-transfer: got \"ipc\", expected auto or nccl");
}

TEST(Parse, PrefillPortsAreThoseOfOtherInstances) {
  const auto refused = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--innode-prefill-ports", "7013"});
    return option_error(flags);
  };
  EXPECT_EQ(refused({}),
            "--innode-prefill-ports: got 7013, which needs --splitwise-role decode, but that is mixed");
  EXPECT_EQ(refused({"--splitwise-role", "prefill"}),
            "--innode-prefill-ports: got 7013, which needs --splitwise-role decode, but that is prefill");
  for (const std::string own : {"port", "metrics-port", "engine-worker-queue-port", "cache-queue-port"}) {
    EXPECT_EQ(refused({"--splitwise-role", "decode", "--" + own, "7013"}),
              "--innode-prefill-ports: got 7013, which is this server's own --" + own +
                  "; expected the --engine-worker-queue-port of a prefill instance");
  }
  EXPECT_EQ(refused({"--splitwise-role", "decode", "--innode-prefill-ports", "7013"}),
            "--innode-prefill-ports: got 7013 twice, expected one port of each prefill instance");
  EXPECT_EQ(refused({"--splitwise-role", "decode", "--innode-prefill-ports", "1,2,3,4"}),
            "--innode-prefill-ports: got 5 ports, expected at most 4");
}

TEST(Parse, PrefillEnginesAreThoseOfADecodeInstanceWithKeys) {
  const std::vector<std::string> decode{"--splitwise-role", "decode", "--cluster-keys", "/keys"};
  const auto with = [](std::vector<std::string> flags, const std::vector<std::string>& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  const Options options = parsed(with(decode, {"--prefill-engines", "10.0.0.1:8200,p:8201"}));
  EXPECT_EQ(options.relayed_engines(), (std::vector<std::string>{"10.0.0.1:8200", "p:8201"}));
  EXPECT_EQ(options.own_engines(), 1);
  const auto refused = [&](const std::vector<std::string>& flags) {
    return option_error(with(flags, {"--prefill-engines", "p:1"}));
  };
  EXPECT_EQ(refused({}),
            "--prefill-engines: got p:1, which needs --splitwise-role decode, but that is mixed");
  EXPECT_EQ(refused({"--splitwise-role", "decode"}),
            "--prefill-engines: needs --cluster-keys: fronts and engines prove to each other who they are");
  EXPECT_EQ(
      refused(with(decode, {"--engines", "e:1"})),
      "--prefill-engines: cannot be used with --engines or --listen: a decode instance has a front and an "
      "engine");
  EXPECT_EQ(refused(with(decode, {"--prefill-engines", "p:1"})), "--prefill-engines: got p:1 twice");
  EXPECT_EQ(refused(with(decode, {"--prefill-engines", "a:1,b:1,c:1,d:1"})),
            "--prefill-engines: got 5 engines, expected at most 4");
  EXPECT_NE(refused(with(decode, {"--prefill-engines", "nowhere"})).find("HOST:PORT"), std::string::npos);
  EXPECT_EQ(option_error(with(decode, {"--engines", "e:1"})),
            "--engines: cannot be used with --splitwise-role decode: a decode instance has an engine of its "
            "own and "
            "--prefill-engines");
  EXPECT_EQ(
      option_error(with(decode, {"--listen", "127.0.0.1:1"})),
      "--listen: cannot be used with --splitwise-role decode: a decode instance is a `troupe serve` with "
      "--prefill-engines");
  EXPECT_EQ(parsed({"--splitwise-role", "prefill", "--cluster-keys", "/keys", "--listen", "127.0.0.1:1"})
                .split.role,
            SplitRole::prefill);
}

TEST(Parse, WhatARoleCannotBeUsedWith) {
  for (const std::string role : {"prefill", "decode"}) {
    EXPECT_EQ(option_error({"--splitwise-role", role, "--data-parallel-size", "2"}),
              "--splitwise-role: got " + role +
                  ", which is not available with --data-parallel-size 2 yet; start several prefill instances "
                  "instead");
    EXPECT_EQ(option_error({"--splitwise-role", role, "--no-enable-prefix-caching"})
                  .find("--splitwise-role: got " + role + ", which needs --enable-prefix-caching"),
              0u);
  }
}

}  // namespace
}  // namespace troupe::config
