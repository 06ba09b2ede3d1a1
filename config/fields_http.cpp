// Flags of the HTTP server: where it listens, who may ask, and how much.
#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/address_set.h"
#include "config/fields.h"

namespace troupe::config {
namespace {

constexpr double kMostUriBytes = 56 << 10;  // a line of a head cannot be longer than 60 KiB
constexpr double kMostJsonDepth = 1000;     // values are copied and written by recursion
constexpr double kMostLogitBias =
    28'000;  // with stop ids and banned words, what one sequence may send a worker

Status check_networks(std::string_view value) {
  AddressSet set;
  while (!value.empty()) {
    const std::size_t comma = value.find(',');
    if (Status status = set.add(value.substr(0, comma)); !status.ok()) return status;
    value = comma == value.npos ? std::string_view() : value.substr(comma + 1);
  }
  return {};
}

/// Names of hosts, IPv4 addresses, and IPv6 addresses with or without brackets; no ports.
Status check_hosts(std::string_view value) {
  while (!value.empty()) {
    const std::size_t comma = value.find(',');
    const std::string_view name = value.substr(0, comma);
    const bool bracketed = name.size() > 2 && name.front() == '[' && name.back() == ']';
    const bool address = parse_address(bracketed ? name.substr(1, name.size() - 2) : name).has_value();
    const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_';
    });
    if (name != "*" && !plain && !address) {
      return invalid("got \"" + std::string(name.substr(0, 80)) +
                     "\", expected * or a name or an address, without scheme, port and path");
    }
    value = comma == value.npos ? std::string_view() : value.substr(comma + 1);
  }
  return {};
}

/// `max`: the largest number that holds as a limit, if something else gives in before.
Field limit(std::string_view name, int& member, std::string_view help, std::string_view unit = {},
            double min = 1, double max = 1 << 30) {
  return {.name = name, .slot = &member, .help = help, .unit = unit, .min = min, .max = max};
}

Field limit_bytes(std::string_view name, std::int64_t& member, std::string_view help) {
  return {.name = name, .slot = ByteCount{&member}, .help = help, .unit = "bytes", .min = 1};
}

}  // namespace

std::vector<Field> http_fields(HttpOptions& o) {
  return {
      {.name = "host", .slot = &o.host, .help = "address to listen on; 0.0.0.0 opens it to the network"},
      {.name = "port",
       .slot = &o.port,
       .help = "HTTP port; also identifies the instance; 0: a free one",
       .min = 0,
       .max = 65535},
      {.name = "metrics-port",
       .slot = &o.metrics_port,
       .help = "separate, open port for /metrics and /config-info",
       .min = 1,
       .max = 65535,
       .when_unset = "on --port"},
      {.name = "api-key",
       .slot = &o.api_keys,
       .help = "bearer key that clients must send; repeatable",
       .env = "FD_API_KEY",
       .when_unset = "no key needed",
       .secret = true,
       .refuses_empty = true},
      {.name = "allowed-origins",
       .slot = &o.allowed_origins,
       .help = "origins of web pages that may read answers, as https://name:port; * for all",
       .when_unset = "only the server's own pages"},
      {.name = "allowed-hosts",
       .slot = &o.allowed_hosts,
       .help = "names and addresses that Host may have, besides the server's own; * for all",
       .check = check_hosts,
       .when_unset = "the server's own, asked for only without a key on a loopback address"},
      {.name = "admin-api-key",
       .slot = &o.admin_api_keys,
       .help = "key for all routes, also those that control the server; repeatable",
       .when_unset = "those routes need no key, or are closed if --api-key is given",
       .secret = true,
       .refuses_empty = true},
      {.name = "admin-api-key-file",
       .slot = &o.admin_api_key_file,
       .help = "file of such keys, as --api-key-file",
       .when_unset = "none",
       .refuses_empty = true},
      {.name = "api-key-file",
       .slot = &o.api_key_file,
       .help = "file of keys, one a line, at most 1 MiB; SIGHUP reads it again",
       .when_unset = "none",
       .refuses_empty = true},
      {.name = "ssl-certfile",
       .slot = &o.ssl_certfile,
       .help = "certificate and its chain, PEM: the port speaks HTTPS; SIGHUP reads it again",
       .when_unset = "plain HTTP",
       .refuses_empty = true},
      {.name = "ssl-keyfile",
       .slot = &o.ssl_keyfile,
       .help = "its private key, PEM, without a passphrase",
       .when_unset = "in --ssl-certfile",
       .refuses_empty = true},
      {.name = "trusted-proxies",
       .slot = &o.trusted_proxies,
       .help = "networks of proxies whose X-Forwarded-For names the client, such as 10.0.0.0/8",
       .check = check_networks,
       .when_unset = "none"},
      {.name = "file-api-keys",
       .slot = &o.file_api_keys,
       .help = "keys of --api-key-file",
       .secret = true,
       .hidden = true},
      {.name = "file-admin-api-keys",
       .slot = &o.file_admin_api_keys,
       .help = "keys of --admin-api-key-file",
       .secret = true,
       .hidden = true},
      {.name = "certificate-pem",
       .slot = &o.certificate_pem,
       .help = "of --ssl-certfile",
       .secret = true,
       .hidden = true},
      {.name = "private-key-pem",
       .slot = &o.private_key_pem,
       .help = "of --ssl-keyfile",
       .secret = true,
       .hidden = true},
      {.name = "io-threads",
       .slot = &o.io_threads,
       .help = "threads that serve sockets",
       .min = 0,
       .max = 256,
       .when_unset = "half the usable cores, 1 to 4"},
      {.name = "max-concurrency",
       .slot = &o.max_concurrency,
       .help = "HTTP requests at once; one more gets 429",
       .min = 1,
       .max = 1 << 20},
  };
}

std::vector<Field> batch_fields(BatchOptions& o) {
  return {
      {.name = "batch-dir",
       .slot = &o.dir,
       .help = "directory (0700) of /v1/files and /v1/batches",
       .when_unset = "no files and no batches"},
      {.name = "batch-file-bytes",
       .slot = ByteCount{&o.file_bytes},
       .help = "of one file of /v1/files; a larger one gets 413",
       .unit = "bytes",
       .min = 1},
      {.name = "batch-dir-bytes",
       .slot = ByteCount{&o.dir_bytes},
       .help = "of all files; one more gets 413. Results are kept beyond it",
       .unit = "bytes",
       .min = 1},
      {.name = "batch-concurrency",
       .slot = &o.concurrency,
       .help = "sequences (choices, inputs of embeddings) of batches in the engines at once",
       .min = 0,
       .max = 1 << 16,
       .when_unset = "--max-num-seqs of each engine"},
  };
}

std::vector<Field> limit_fields(LimitOptions& o) {
  return {
      limit("max-connections", o.max_connections, "open sockets; one more gets 429"),
      {.name = "max-connections-per-address",
       .slot = &o.max_connections_per_address,
       .help = "open sockets of one address (IPv6: one /64), or client behind --trusted-proxies; one more "
               "gets 429",
       .min = 0,
       .max = 1 << 30,
       .when_unset = "256; --max-connections for addresses of this machine"},
      limit("max-header-bytes", o.max_header_bytes, "header lines together; 431", "bytes", 256),
      limit("max-header-count", o.max_header_count, "header lines; 431"),
      limit("max-uri-bytes", o.max_uri_bytes, "request target; 414", "bytes", 64, kMostUriBytes),
      limit("header-timeout", o.header_timeout_s, "from the first byte to the end of the headers; 408",
            "seconds"),
      limit("body-timeout", o.body_timeout_s, "for a body slower than --min-body-rate; 408", "seconds"),
      limit("min-body-rate", o.min_body_rate, "speed that keeps a long upload alive", "bytes/second"),
      limit("idle-timeout", o.idle_timeout_s, "keep-alive without a request", "seconds"),
      limit("write-timeout", o.write_timeout_s, "a client that reads nothing for this long is disconnected",
            "seconds"),
      limit("request-timeout", o.request_timeout_s,
            "from arrival to the end of the answer, unless the request names less: 504 before the first "
            "token, later the answer ends",
            "seconds"),
      limit("max-stream-buffer-bytes", o.max_stream_buffer_bytes,
            "unread output of one answer; beyond it the client must read as much within 2 s, once it is "
            "complete within --write-timeout",
            "bytes", 4096),
      limit_bytes("max-unsent-bytes", o.max_unsent_bytes,
                  "unread output of all answers; the largest are cut off"),
      limit_bytes("max-buffered-bytes", o.max_buffered_bytes,
                  "memory of requests without an answer yet; 503, one larger body 413; an eighth more for "
                  "bodies up to 64 KiB"),
      limit_bytes("max-answer-bytes", o.max_answer_bytes,
                  "one unstreamed answer, or what it repeats of its prompt; 400"),
      {.name = "max-answer-scores",
       .slot = &o.max_answer_scores,
       .help = "log-probabilities of one answer: choices x tokens x candidates; 400",
       .min = 1},
      {.name = "max-body-bytes",
       .slot = ByteCount{&o.max_body_bytes},
       .help = "request body; 413",
       .unit = "bytes",
       .min = 0,
       .when_unset = "8 MiB; 64 MiB for a model that reads images"},
      {.name = "strict-requests",
       .slot = &o.strict_requests,
       .help = "unknown fields get 400, not only a warning"},
      limit("max-json-depth", o.max_json_depth, "nesting of a request body", {}, 1, kMostJsonDepth),
      limit("max-json-elements", o.max_json_elements, "values in a request body"),
      limit("max-prompts", o.max_prompts, "prompts in one completions request"),
      limit("max-n", o.max_n, "choices per prompt"),
      limit("max-best-of", o.max_best_of, "candidates per prompt"),
      limit("max-stop-strings", o.max_stop_strings, "stop strings of one request", {}, 0),
      limit("max-stop-bytes", o.max_stop_bytes, "one stop string", "bytes"),
      limit("max-logprobs", o.max_logprobs, "top_logprobs and prompt_logprobs; -1: the whole vocabulary", {},
            -1),
      limit("max-completion-logprobs", o.max_completion_logprobs,
            "logprobs of a completions request; -1: the whole vocabulary", {}, -1),
      limit("max-logit-bias", o.max_logit_bias, "entries of logit_bias", {}, 0, kMostLogitBias),
      limit("max-messages", o.max_messages, "messages of one chat request"),
      limit("max-tools", o.max_tools, "tools of one chat request", {}, 0),
      {.name = "max-schema-depth",
       .slot = &o.max_schema_depth,
       .help = "nesting of a JSON schema",
       .min = 1,
       .max = 64},
      limit("max-schema-properties", o.max_schema_properties, "properties of a JSON schema"),
      limit("max-schema-enum-values", o.max_schema_enum_values, "enum values of a JSON schema"),
      limit("max-schema-name-chars", o.max_schema_name_chars, "names and values of a JSON schema",
            "characters"),
      limit("max-grammar-bytes", o.max_grammar_bytes, "a grammar or regular expression", "bytes"),
      limit("max-grammar-depth", o.max_grammar_depth, "nesting of a grammar"),
      limit("grammar-timeout", o.grammar_timeout_ms, "processor time of a grammar's check or compilation",
            "milliseconds"),
      limit_bytes("grammar-cache-bytes", o.grammar_cache_bytes, "compiled grammars that are kept"),
  };
}

}  // namespace troupe::config
