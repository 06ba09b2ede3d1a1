// The table of routes.
#include "http/server/routes.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "http/pages/pages.h"

namespace troupe::http {
namespace {

/// The row of a path, whatever method and listener make of it.
const Route* named(std::string_view path) { return match_route("PUT", path, Pages::operations).named; }

TEST(Routes, EveryRowIsComplete) {
  std::set<std::string_view> paths;
  for (const Route& route : routes()) {
    EXPECT_TRUE(paths.insert(route.path).second) << route.path << " has two rows";
    EXPECT_EQ(route.parse != nullptr, route.handler == Handler::json) << route.path;
    EXPECT_EQ(route.event != nullptr, route.generates() && route.api != Api::embeddings) << route.path;
    EXPECT_EQ(named(route.path), &route) << route.path << " is hidden by a row above it";
  }
}

TEST(Routes, MethodsAndListeners) {
  EXPECT_TRUE(match_route("POST", "/v1/chat/completions", Pages::api).serves(Handler::json));
  EXPECT_TRUE(match_route("HEAD", "/health", Pages::operations).serves(Handler::health));
  EXPECT_TRUE(match_route("GET", "/metrics", Pages::both).serves(Handler::info));
  EXPECT_EQ(match_route("GET", "/metrics", Pages::api).route, nullptr);
  EXPECT_EQ(match_route("POST", "/v1/completions", Pages::operations).route, nullptr);

  const RouteMatch wrong = match_route("GET", "/v1/messages", Pages::both);
  EXPECT_FALSE(wrong.allowed);
  EXPECT_EQ(wrong.allow, "POST, OPTIONS");
  EXPECT_EQ(wrong.api(), Api::messages) << "the error is told in the route's words";
  EXPECT_TRUE(match_route("get", "/health", Pages::both).route != nullptr);
  EXPECT_FALSE(match_route("get", "/health", Pages::both).allowed) << "methods are case-sensitive";
}

TEST(Routes, APathHasOneSpelling) {
  for (const char* path : {"/v1/chat/completions/", "//v1/chat/completions", "/V1/chat/completions",
                           "/v1/models/", "/health/", "/pages/", "/pages/nothing.js", "", "*"}) {
    const RouteMatch match = match_route("GET", path, Pages::both);
    EXPECT_EQ(match.route, nullptr) << path;
    EXPECT_TRUE(match.allow.empty()) << path;
  }
  EXPECT_EQ(match_route("GET", "/v1/models/a/b", Pages::both).tail, "a/b");
  for (const Page& page : pages()) {
    EXPECT_TRUE(match_route("GET", page.path, Pages::api).serves(Handler::page)) << page.path;
    EXPECT_EQ(match_route("GET", page.path, Pages::api).tail, page.path);
  }
}

TEST(Routes, ANameMayHaveAnEndBehindIt) {
  const RouteMatch content = match_route("GET", "/v1/files/file-1/content", Pages::both);
  ASSERT_TRUE(content.serves(Handler::store));
  EXPECT_EQ(content.route->resource, StoreRequest::Resource::content);
  EXPECT_EQ(content.tail, "file-1");
  EXPECT_EQ(match_route("POST", "/v1/batches/b/cancel", Pages::both).tail, "b");
  EXPECT_EQ(match_route("GET", "/v1/files/content", Pages::both).tail, "content");
  const RouteMatch removal = match_route("DELETE", "/v1/files/file-1", Pages::both);
  EXPECT_TRUE(removal.allowed);
  EXPECT_EQ(removal.verb, StoreRequest::Verb::remove);
  EXPECT_EQ(match_route("POST", "/v1/files/file-1", Pages::both).allow, "GET, HEAD, DELETE, OPTIONS");
  EXPECT_TRUE(match_route("POST", "/v1/files", Pages::both).uploads());
  EXPECT_FALSE(match_route("GET", "/v1/files", Pages::both).uploads());
  EXPECT_FALSE(match_route("POST", "/v1/batches", Pages::both).uploads());
}

TEST(Routes, Options) {
  EXPECT_EQ(match_route("OPTIONS", "*", Pages::both).allow, "GET, HEAD, POST, OPTIONS");
  const RouteMatch match = match_route("OPTIONS", "/reset_prefix_cache", Pages::both);
  EXPECT_TRUE(match.options);
  EXPECT_FALSE(match.allowed);
  EXPECT_EQ(match.access(), Access::none) << "a browser cannot add a key";
}

TEST(Routes, Access) {
  EXPECT_EQ(match_route("GET", "/health/live", Pages::both).access(), Access::none);
  EXPECT_EQ(match_route("DELETE", "/health/live", Pages::both).access(), Access::client);
  EXPECT_EQ(match_route("GET", "/nowhere", Pages::both).access(), Access::client);
  EXPECT_EQ(match_route("GET", "/metrics", Pages::both).access(), Access::client);
  EXPECT_EQ(match_route("POST", "/reset_prefix_cache", Pages::both).access(), Access::admin);
  EXPECT_EQ(match_route("GET", "/v1/troupe/events", Pages::both).access(), Access::admin);
}

TEST(Routes, WhatActsIsTakenByPostAloneOrIsAStore) {
  for (const Route& route : routes()) {
    const bool acts = route.handler == Handler::json || route.handler == Handler::store ||
                      route.info == InfoRequest::Kind::reset_prefix_cache;
    EXPECT_EQ(route.acts(), acts) << route.path;
  }
}

TEST(Routes, AClientCannotInventLabels) {
  EXPECT_EQ(metrics_label(named("/v1/chat/completions")), "/v1/chat/completions");
  EXPECT_EQ(metrics_label(named("/v1/models/x")), "/v1/models");
  EXPECT_EQ(metrics_label(named("/v1/messages/count_tokens")), "/v1/messages/count_tokens");
  EXPECT_EQ(metrics_label(named("/reset_prefix_cache")), "/reset_prefix_cache");
  EXPECT_EQ(metrics_label(named("/pages/made-up.js")), "/pages");
  EXPECT_EQ(metrics_label(named("/v1/messages/x")), "other");
  EXPECT_EQ(metrics_label(named("/made/up")), "other");
  EXPECT_EQ(metrics_label(match_route("GET", "/v1/models/x", Pages::api).named), "/v1/models");
  EXPECT_EQ(metrics_label(match_route("OPTIONS", "*", Pages::both).named), "other");
  EXPECT_TRUE(named("/v1/responses")->generates());
  EXPECT_TRUE(named("/v1/messages")->generates());
  EXPECT_FALSE(named("/v1/messages/count_tokens")->generates());
  EXPECT_FALSE(named("/v1/troupe/events")->generates());
}

}  // namespace
}  // namespace troupe::http
