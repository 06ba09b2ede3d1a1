#pragma once
// A SESSION HOST whose neighbours are played by the test.
#include "actors/session/session_host_actor.h"

#include <algorithm>
#include <string>
#include <vector>

#include "support/actor_world.h"
#include "support/byte_tokenizer.h"

namespace troupe::testing {

class SessionHostRig : public ActorWorld {
 protected:
  /// Keeps what it is told, and refuses with the verdict.
  class Engine final : public EngineSide {
   public:
    explicit Engine(SessionHostRig& test, std::uint32_t index = 0) : test_(test), index_(index) {}
    void submit(Submit&& submit, std::uint32_t) override {
      if (!test_.verdict_.ok())
        caf::anon_send(test_.host_, Refused{submit.exchange, submit.attempt, test_.verdict_});
      test_.submits_.push_back(std::move(submit));
      test_.submitted_to_.push_back(index_);
    }
    void took_step() override { ++test_.steps_taken_; }
    void cancel(Cancel&& cancel, std::uint32_t) override {
      test_.cancels_.insert(test_.cancels_.end(), cancel.keys.begin(), cancel.keys.end());
    }

    void expect(ExpectBlocks&& prompt, std::uint32_t) override {
      test_.expected_.push_back(std::move(prompt));
      test_.expected_at_.push_back(index_);
    }
    void forget(ForgetBlocks&& prompts, std::uint32_t) override {
      test_.forgotten_.insert(test_.forgotten_.end(), prompts.keys.begin(), prompts.keys.end());
    }

   private:
    SessionHostRig& test_;
    const std::uint32_t index_;
  };

  SessionHostRig() {
    tokenizer_ = keep(system_.spawn([this](tokenizer_actor::pointer self) -> tokenizer_actor::behavior_type {
      self->set_exit_handler(
          [this](const caf::exit_msg&) { answer_pending(); });  // a promise needs its actor
      return {answer_beat, [](const TextArrivals&) {},
              [this, self](const Encode& job) {
                switch (job.lane) {
                  case TextLane::common: encodes_.push_back(job.request_id); break;
                  case TextLane::long_texts: long_encodes_.push_back(job.request_id); break;
                  case TextLane::background: background_encodes_.push_back(job.request_id); break;
                }
                auto promise = self->make_response_promise<Encoded>();
                encoded_media_.push_back(job.media);
                if (slow_tokenizer_) {
                  pending_.push_back(promise);  // the answer comes when the test gives it
                } else {
                  promise.deliver(job.media.empty() ? text_ : with_image());
                }
                return promise;
              },
              [](const TextAnswer&) {}, [](const LinkEpoch&) {}};
    }));
    metrics_ = keep(system_.spawn([this](metrics_actor::pointer) -> metrics_actor::behavior_type {
      return {answer_beat,
              [](const StepStats&) {},
              [this](const RequestStats& stats) { finished_.push_back(stats); },
              [](const HttpStats&) {},
              [](const DoorStats&) {},
              [](const MediaStats&) {},
              [](const ProcessReports&) {},
              [](caf::get_atom) { return std::string(); }};
    }));
    grammar_ = keep(system_.spawn([this](grammar_actor::pointer self) -> grammar_actor::behavior_type {
      self->set_exit_handler([this](const caf::exit_msg&) {
        if (grammar_lost_) {
          compiling_[answered_].deliver(caf::make_error(caf::sec::request_receiver_down));
        } else {
          compiling_[answered_].deliver(compiled_);
        }
      });
      return {answer_beat,
              [this, self](const Compile& job) {
                compiles_.push_back(job);
                return compiling_.emplace_back(self->make_response_promise<Compiled>());
              },
              [this](const CancelCompile& cancel) { cancelled_compiles_.push_back(cancel.exchange); },
              [this](const ReleaseGrammar& release) { released_.push_back(release.grammar); },
              [](const GrammarStep&) {},
              [](const FormReady&) {},
              [](const TakeMade&) {}};
    }));
    media_ = keep(system_.spawn([this](media_actor::pointer) -> media_actor::behavior_type {
      return {answer_beat,
              [this](MeasureMedia& job) {
                measures_.push_back(job);
                return measured_;
              },
              [this](const PrepareMedia& job) {
                prepares_.push_back(job.exchange);
                return prepared_;
              },
              [this](const ReleaseMedia& ended) { media_released_.push_back(ended.exchange); },
              [](const TakeMedia&) {},
              [](const MediaWaited&) {},
              [](caf::get_atom) { return MediaStats{}; }};
    }));
    SessionHostParts parts;
    parts.media = media_;
    parts.grammars = {grammar_};
    parts.slice_ns =
        std::chrono::nanoseconds(std::chrono::hours(1)).count();  // a busy machine must not end a turn
    parts.context = std::make_shared<SessionContext>(
        SessionContext{std::make_shared<ByteTokenizer>(), {ByteTokenizer::kEos}, 64, 258});
    parts.tokenizers = {tokenizer_};
    parts.engines = {std::make_shared<Engine>(*this)};
    parts.quarantine = quarantine_;
    parts.metrics = metrics_;
    parts.deliver = [this](std::uint32_t, std::vector<http::Output>&& outputs) {
      for (auto& output : outputs) answers_.push_back(std::move(output));
    };
    parts_ = parts;
    host_ = keep(system_.spawn(session_host_behavior, std::move(parts)));
    up(1);
  }

  static Encoded hi() {
    Encoded out;
    out.prompts = {{'h', 'i'}};
    return out;
  }
  static constexpr PatchGrid kGrid{1, 4, 4};
  /// "h", an image of four tokens, "i".
  static Encoded with_image() {
    Encoded out;
    out.prompts = {{'h', 'I', 'I', 'I', 'I', 'i'}};
    out.media = {{MediaKind::image, kGrid, 1}};
    return out;
  }
  void answer_pending() {
    for (auto& promise : std::exchange(pending_, {})) promise.deliver(hi());
  }

  /// GRAMMAR answers the Compile of this index.
  void compiled(std::size_t index, Compiled outcome) {
    answered_ = index;
    compiled_ = std::move(outcome);
    caf::anon_send_exit(grammar_, caf::exit_reason::user_shutdown);
    run();
  }

  void up(std::uint32_t epoch) {
    self_->send(host_, EngineUp{0, epoch});
    run();
  }
  void down(std::uint32_t epoch) {
    self_->send(host_, EngineDown{0, epoch, "killed"});
    run();
  }

  /// Opens an exchange as GATEWAY would; `closed_` tells when its credit came back.
  void open(bool stream = false, std::uint64_t exchange = 3, std::int64_t body_bytes = 100,
            std::chrono::nanoseconds timeout = std::chrono::hours(1), http::AnswerForm form = {},
            const std::string& image = {}, bool background = false) {
    Ask ask;
    ask.background = background;
    if (!image.empty()) {
      ask.source.media.emplace_back().file = image;
      ask.source.media.back().param = "messages.0.content.0";
    }
    ask.client = "net:somebody";
    ask.generation.form = std::move(form);
    ask.arrived_ns = now_ns();
    ask.timeout_ns = timeout.count();
    ask.exchange = exchange;
    ask.body_bytes = body_bytes;
    ask.request_id = "r" + std::to_string(exchange);
    ask.answer.stream = stream;
    auto gateway = keep(system_.spawn([this, ask](caf::event_based_actor* self) -> caf::behavior {
      self->request(host_, caf::infinite, ask).then([this](const Closed& closed) {
        closed_.push_back(closed.exchange);
      });
      return {[](int) {}};
    }));
    run();
  }
  void withdraw(std::uint64_t exchange = 3) {
    self_->send(host_, Withdraw{0, exchange});
    run();
  }
  /// The engine that exchange 3 was given to last goes on with it.
  void tokens(const std::string& text, Finish finish, const std::string& error = {}) {
    const auto of =
        std::find_if(submits_.rbegin(), submits_.rend(), [](const Submit& one) { return one.exchange == 3; });
    ASSERT_NE(of, submits_.rend());
    StepTokens step;
    step.engine = submitted_to_.at(static_cast<std::size_t>(submits_.rend() - of) - 1);
    SequenceTokens sequence;
    sequence.key = of->sequences.at(0).key;
    sequence.attempt = of->attempt;
    sequence.position = static_cast<std::int32_t>(of->sequences.at(0).output.size());
    for (const char c : text) step.tokens.push_back(static_cast<unsigned char>(c));
    of->sequences.at(0).output.insert(of->sequences.at(0).output.end(), step.tokens.begin(),
                                      step.tokens.end());
    sequence.tokens = static_cast<std::int32_t>(text.size());
    sequence.finish = finish;
    if (!error.empty()) step.set_error(sequence, error);
    step.sequences.push_back(sequence);
    self_->send(host_, step);
    run();
  }
  std::string bytes_of(std::uint64_t exchange) const {
    std::string out;
    for (const http::Output& answer : answers_) {
      if (answer.exchange_id == exchange) out += answer.body;
    }
    return out;
  }

  bool slow_tokenizer_ = false;
  Encoded text_ = hi();  ///< what a text without images is answered with, unless the tokenizer is slow
  Status verdict_;
  std::vector<caf::typed_response_promise<Encoded>> pending_;
  std::vector<std::string> encodes_;
  std::vector<std::string> long_encodes_, background_encodes_;
  std::vector<Submit> submits_;
  std::vector<std::uint32_t> submitted_to_;  ///< the engines of submits_, by index
  int steps_taken_ = 0;                      ///< that the engine was told of
  std::vector<RequestKey> cancels_;
  std::vector<ExpectBlocks> expected_;
  std::vector<std::uint32_t> expected_at_;  ///< index of the engine that was told, likewise
  std::vector<RequestKey> forgotten_;
  std::vector<Compile> compiles_;
  std::vector<caf::typed_response_promise<Compiled>> compiling_;
  std::size_t answered_ = 0;  ///< index of the Compile that compiled_ answers
  Compiled compiled_;
  std::vector<std::uint64_t> cancelled_compiles_;
  std::vector<RequestStats> finished_;
  std::vector<http::Output> answers_;
  std::vector<std::uint64_t> closed_;
  tokenizer_actor tokenizer_;
  SessionHostParts parts_;
  std::shared_ptr<Quarantine> quarantine_ = std::make_shared<Quarantine>();
  bool grammar_lost_ = false;  ///< the Compile that is answered next fails with its engine
  std::vector<std::uint64_t> released_;
  std::vector<MeasureMedia> measures_;
  MeasuredMedia measured_{{}, {{MediaKind::image, kGrid}}};
  std::vector<std::uint64_t> prepares_;
  MediaReady prepared_{{}, {{MediaKind::image, kGrid, {1, 2}, {4096, 7}}}};
  std::vector<std::uint64_t> media_released_;
  std::vector<std::vector<MediaGrid>> encoded_media_;
  grammar_actor grammar_;
  media_actor media_;
  metrics_actor metrics_;
  session_host_actor host_;
};

}  // namespace troupe::testing
