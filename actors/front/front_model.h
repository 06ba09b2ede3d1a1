#pragma once
// One model of the front: what is read of its files, its links to engines and text processes, and its actors.
// Models share the HTTP threads and nothing else, so what happens to one does not touch the others.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/front/front.h"
#include "actors/health_cell.h"
#include "actors/link/link.h"
#include "actors/session/submission.h"
#include "base/status.h"
#include "config/options.h"
#include "http/api/openai_request.h"
#include "http/api/openai_response.h"
#include "ipc/block_names.h"
#include "model/checkpoint/generation_config.h"
#include "model/checkpoint/spec.h"
#include "text/template/chat_template.h"

namespace troupe {

class FrontSystem;
struct FrontSetup;

class FrontModel {
 public:
  struct Place {
    std::size_t index = 0;       ///< among the models
    bool alone = true;           ///< there is one
    std::size_t first_text = 0;  ///< index of its first text process
  };

  /// Reads tokenizer, template and config.json of the model of `options`, which are resolved.
  static Result<std::unique_ptr<FrontModel>> read(const config::Options& options, int vocabulary_fd,
                                                  Place place, const Log& log);
  ~FrontModel();

  /// Attaches to the links of its engines and text processes.
  Status attach(std::span<const FrontFds::Engine> engines_of_it,
                std::span<const std::pair<int, int>> texts_of_it);

  /// What requests may ask of it.
  http::ModelFacts facts() const;
  /// What /v1/models lists: one for each served name.
  std::vector<http::ModelCard> cards(std::int64_t created_s) const;

  /// What its actors are started with, as far as the model decides it.
  FrontSetup setup() const;

  const std::string& name() const { return names_.front(); }
  bool sees() const { return spec_.vision.has_value(); }
  /// Engines that are no prefill instances.
  std::size_t own_engines() const { return own_; }

  config::Options options;
  Place place;
  std::shared_ptr<HealthCell> health = std::make_shared<HealthCell>();
  std::vector<std::shared_ptr<Link>> engines;  // by index
  std::vector<std::shared_ptr<Link>> texts;    // to the text processes
  std::vector<std::shared_ptr<const ipc::BlockNames>> block_names;
  std::unique_ptr<FrontSystem> actors;

 private:
  FrontModel(const config::Options& given, Place where) : options(given), place(where) {}
  Status read_files(int vocabulary_fd, const Log& log);

  model::ModelSpec spec_;
  std::shared_ptr<const SessionContext> sessions_;
  std::shared_ptr<const ChatTemplate> chat_;  // null: the checkpoint has none
  model::GenerationConfig generation_;
  std::vector<std::string> names_;  // every name that a request may use, the served ones first
  std::size_t served_ = 1;
  std::size_t own_ = 0;
};

}  // namespace troupe
