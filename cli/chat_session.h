#pragma once
// One conversation with the model of a server: its history, and the answer printed as it arrives.
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "cli/chat_file.h"
#include "http/client/client.h"

namespace troupe::cli {

/// What requests may ask for.
inline constexpr double kLeastTemperature = 0, kMostTemperature = 2;

class ChatSession {
 public:
  /// `parameters`: members of every request beside model and messages. `show_rate`: a line with tokens and
  /// tokens/s follows every answer.
  ChatSession(http::Client client, std::string model, nlohmann::ordered_json parameters, bool show_rate)
      : client_(std::move(client)), parameters_(std::move(parameters)), show_rate_(show_rate) {
    chat_.model = std::move(model);
  }

  const ChatFile& chat() const { return chat_; }
  void set_chat(ChatFile chat) { chat_ = std::move(chat); }
  void set_model(std::string name) { chat_.model = std::move(name); }
  /// An empty text removes the system prompt.
  void set_system(const std::string& text);
  /// Removes every message but the system prompt.
  void clear();

  /// Of the requests from now on; nothing: the server's.
  void set_temperature(std::optional<double> value);
  std::optional<double> temperature() const;

  /// Asks the last question again and prints the new answer, which replaces the old one. invalid_argument if
  /// there is no answer yet; a failed request leaves the old answer.
  Status regenerate();

  /// Sends the question and prints the answer to the standard output as it arrives; notes (cut, stopped,
  /// rate) go to the standard error. Both are added to the history unless the request failed. Ctrl-C ends the
  /// answer: ok, and what arrived of it is kept.
  Status ask(const std::string& question);

 private:
  /// What one answer has brought so far.
  struct ChatAnswer {
    std::string text;
    std::string error;            ///< message of an error event
    std::string finish_reason;    ///< empty until the server says one
    bool thoughts_shown = false;  ///< and no text of the answer behind them yet
    int tokens = 0;               ///< of the usage at the end; 0 if there was none
    std::optional<std::chrono::steady_clock::time_point> first_at;
    std::chrono::steady_clock::time_point last_at;
  };

  std::string request_body(const std::string& question) const;
  static bool take_event(std::string_view data, ChatAnswer& answer);
  static void take_delta(const nlohmann::ordered_json& delta, ChatAnswer& answer);
  void print_notes(const ChatAnswer& answer, bool stopped,
                   std::chrono::steady_clock::time_point started) const;

  http::Client client_;
  nlohmann::ordered_json parameters_;
  bool show_rate_;
  ChatFile chat_;
};

}  // namespace troupe::cli
