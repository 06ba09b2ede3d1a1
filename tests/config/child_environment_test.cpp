// What children get of the environment, and what a platform sets in it.
#include "config/child_environment.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "config/fields.h"
#include "config/platform_variables.h"

namespace troupe::config {
namespace {

constexpr ChildKind kKinds[] = {ChildKind::engine, ChildKind::worker, ChildKind::text, ChildKind::server,
                                ChildKind::pager};

bool gets(ChildKind kind, const std::string& name) {
  const std::vector<std::string> out = child_environment(kind, {{name, "value"}, {"UNKNOWN", "1"}});
  EXPECT_EQ(std::ranges::count(out, "UNKNOWN=1"), 0);
  return std::ranges::count(out, name + "=value") == 1;
}

TEST(ChildEnvironment, NoKindGetsAKey) {
  std::vector<std::string> names = {"HF_TOKEN", "MODELSCOPE_API_TOKEN", "AISTUDIO_ACCESS_TOKEN",
                                    "AWS_SECRET_ACCESS_KEY", "NOTIFY_SOCKET"};
  Options options;
  for (const Field& field : fields(options)) {
    if (!field.secret) continue;
    names.push_back(variable_name(field));
    if (!field.env.empty()) names.emplace_back(field.env);
  }
  EXPECT_EQ(std::ranges::count(names, "FD_API_KEY"), 1);
  EXPECT_EQ(std::ranges::count(names, "TROUPE_API_KEY"), 1);
  for (const ChildKind kind : kKinds) {
    for (const std::string& name : names)
      EXPECT_FALSE(gets(kind, name)) << name << ' ' << static_cast<int>(kind);
  }
}

TEST(ChildEnvironment, EachKindGetsWhatItReads) {
  for (const ChildKind kind : kKinds) {
    for (const char* name :
         {"PATH", "LC_ALL", "LD_LIBRARY_PATH", "TZ", "ASAN_OPTIONS", "LLVM_PROFILE_FILE"}) {
      EXPECT_TRUE(gets(kind, name)) << name;
    }
    const bool on_gpu = kind == ChildKind::worker || kind == ChildKind::server;
    for (const char* name : {"CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "NVIDIA_VISIBLE_DEVICES"})
      EXPECT_EQ(gets(kind, name), on_gpu);
    const bool reads_options = kind == ChildKind::server;
    for (const char* name : {"TROUPE_MAX_NUM_SEQS", "FD_LOG_LEVEL", "TROUPE_PORT"})
      EXPECT_EQ(gets(kind, name), reads_options);
    EXPECT_EQ(gets(kind, "TERM"), kind == ChildKind::pager);
  }
  EXPECT_TRUE(child_environment(ChildKind::text, {}).empty());
}

// As a pod of the service "troupe" in the namespace "troupe" has them, with a second service beside it.
const Environment kPod = {{"TROUPE_PORT", "tcp://10.43.1.39:8180"},
                          {"TROUPE_SERVICE_HOST", "10.43.1.39"},
                          {"TROUPE_SERVICE_PORT", "8180"},
                          {"TROUPE_SERVICE_PORT_HTTP", "8180"},
                          {"TROUPE_PORT_8180_TCP", "tcp://10.43.1.39:8180"},
                          {"TROUPE_PORT_8180_TCP_ADDR", "10.43.1.39"},
                          {"TROUPE_PORT_8180_TCP_PORT", "8180"},
                          {"TROUPE_PORT_8180_TCP_PROTO", "tcp"},
                          {"TROUPE_METRICS_PORT", "tcp://[fd00::7]:9090"},
                          {"TROUPE_METRICS_SERVICE_HOST", "fd00::7"},
                          {"TROUPE_METRICS_SERVICE_PORT", "9090"},
                          {"KUBERNETES_PORT", "tcp://10.43.0.1:443"},
                          {"KUBERNETES_SERVICE_HOST", "10.43.0.1"},
                          {"KUBERNETES_SERVICE_PORT", "443"}};

TEST(PlatformVariables, ThoseOfServicesAreKnown) {
  EXPECT_EQ(platform_variables(kPod).size(), kPod.size());
  Environment ours = {{"TROUPE_PORT", "8181"},
                      {"TROUPE_SERVICE_HOST", "x"},
                      {"TROUPE_PORT_RANGE", "1"},
                      {"PORT", "tcp://a:1"}};
  EXPECT_TRUE(platform_variables(ours).empty()) << "no service without a port";
  Environment mixed = kPod;
  mixed["TROUPE_PORT"] = "8181";  // a person's, which goes before the platform's
  mixed["TROUPE_MAX_NUM_SEQS"] = "3";
  EXPECT_FALSE(platform_variables(mixed).contains("TROUPE_PORT"));
  EXPECT_TRUE(platform_variables(mixed).contains("TROUPE_SERVICE_PORT"));
  EXPECT_FALSE(platform_variables(mixed).contains("TROUPE_MAX_NUM_SEQS"));
}

TEST(PlatformVariables, AServiceNamedLikeUsDoesNotStopTheStart) {
  const auto result = parse({}, kPod);
  ASSERT_TRUE(result.ok()) << result.status().message;
  EXPECT_EQ(result->options.http.port, 8180);
  EXPECT_FALSE(result->options.http.metrics_port);
  ASSERT_EQ(result->warnings.size(), 1u) << result->warnings.back();
  EXPECT_EQ(
      result->warnings[0],
      "ignored, since the platform sets them for a service of that name: TROUPE_METRICS_PORT, TROUPE_PORT, "
      "TROUPE_METRICS_SERVICE_HOST, TROUPE_METRICS_SERVICE_PORT, TROUPE_PORT_8180_TCP, "
      "TROUPE_PORT_8180_TCP_ADDR, "
      "TROUPE_PORT_8180_TCP_PORT, TROUPE_PORT_8180_TCP_PROTO, TROUPE_SERVICE_HOST, TROUPE_SERVICE_PORT, "
      "TROUPE_SERVICE_PORT_HTTP");
}

TEST(PlatformVariables, AServiceNamedLikeFastDeploysVariablesNeither) {
  const auto result =
      parse({}, {{"FD_ZMQ_PORT", "tcp://10.0.0.1:80"}, {"FD_API_KEY_PORT", "udp://10.0.0.1:80"}});
  ASSERT_TRUE(result.ok()) << result.status().message;
  ASSERT_EQ(result->warnings.size(), 1u);
  EXPECT_EQ(result->warnings[0],
            "ignored, since the platform sets them for a service of that name: FD_API_KEY_PORT, FD_ZMQ_PORT");
}

TEST(PlatformVariables, WhatAPersonSetsWorksBesideAService) {
  Environment mixed = kPod;
  mixed["TROUPE_PORT"] = "8181";
  EXPECT_EQ(parse({}, mixed)->options.http.port, 8181);
  mixed["TROUPE_PORT"] = "http";
  EXPECT_EQ(parse({}, mixed).status().message,
            "TROUPE_PORT: got \"http\", expected a whole number from 0 to 65535");
}

TEST(PlatformVariables, ACommandIsToldOfWhatItWouldHaveRead) {
  Options options;
  const std::vector<Field> all = fields(options);
  EXPECT_EQ(platform_note({{"REDIS_PORT", "tcp://10.0.0.1:1"}}, all, true), "");
  EXPECT_EQ(platform_note(kPod, {}, false), "");
  EXPECT_EQ(
      platform_note(kPod, all, false),
      "ignored, since the platform sets them for a service of that name: TROUPE_METRICS_PORT, TROUPE_PORT");
}

}  // namespace
}  // namespace troupe::config
