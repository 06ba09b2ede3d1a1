// What n-gram drafts bring where a text repeats its prompt, and what they cost where it does not: the demo
// model on the CPU writes a program again, with one change, or goes on with a sentence. Both servers run at
// once and take turns, so what else the machine does counts for both.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/report.h"
#include "bench/started_server.h"
#include "http/client/load_client.h"

namespace {

using namespace troupe;
using namespace troupe::bench;

constexpr int kRounds = 5;
constexpr int kTokens = 192;

constexpr const char* kProgram = R"(class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError('amount must be positive')
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError('balance is too low')
        self.balance -= amount
        return self.balance

    def report(self):
        print(f'{self.owner} has {self.balance}')
)";
constexpr const char* kSentence = "Once upon a time, in a village between two rivers, there lived";

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// The program, and the beginning of the same one with another name: the rest is the model's.
std::string again() {
  std::string copy = kProgram;
  copy.replace(copy.find("Account"), 7, "Wallet");
  return std::string(kProgram) + "\n\n" + copy.substr(0, copy.find("    def deposit"));
}

std::unique_ptr<ServerProcess> started(const std::vector<std::string>& flags) {
  return started_server("speculation_bench", flags);
}

/// Tokens a second of `batch` equal requests at once. `prompt` is a JSON string.
double run(const ServerProcess& server, const std::string& prompt, int batch) {
  const std::string body =
      "{\"prompt\":" + prompt + ",\"max_tokens\":" + std::to_string(kTokens) +
      ",\"temperature\":0,\"ignore_eos\":true,\"stream\":true,\"stream_options\":{\"include_usage\":true}}";
  const http::LoadRun run = http::run_at_once(
      server.port(), "/v1/completions", std::vector<std::string>(static_cast<std::size_t>(batch), body), 120);
  if (!run.all_ok()) {
    std::fprintf(stderr, "speculation_bench: a request failed\n");
    std::exit(1);
  }
  return batch * kTokens / run.seconds;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  Report report(argc, argv);
  const auto plain = started({"--no-enable-prefix-caching"});
  const auto drafting =
      started({"--no-enable-prefix-caching", "--speculative-config",
               R"({"method":"ngram","num_speculative_tokens":4,"min_ngram_size":2,"max_ngram_size":5})"});
  struct Case {
    const char* name;
    std::string prompt;
    int batch;
    double must;
  };
  for (const Case& one :
       {Case{"program_again", quoted(again()), 1, 1.5}, Case{"program_again", quoted(again()), 8, 1.2},
        Case{"sentence", quoted(kSentence), 1, 0.98}, Case{"sentence", quoted(kSentence), 8, 0.98}}) {
    std::vector<double> without, with, gains;
    run(*plain, one.prompt, one.batch);
    run(*drafting, one.prompt, one.batch);  // the first measures each number of drafts
    for (int round = 0; round < kRounds; ++round) {
      without.push_back(run(*plain, one.prompt, one.batch));
      with.push_back(run(*drafting, one.prompt, one.batch));
      gains.push_back(with.back() / without.back());
    }
    const std::string name = std::string("speculation.") + one.name + ".batch_" + std::to_string(one.batch);
    report.row({.name = name + ".tokens", .value = median(with), .unit = "tok/s", .bound = median(without)});
    report.row({.name = name + ".gain", .value = median(gains), .unit = "x", .must = one.must});
  }
  return report.all_met() ? 0 : 1;
}
