// A process for forms that also does what hostile forms do to one, when it compiles a regex of these words,
// or checks one of "check" and these words:
//
//   crash       it aborts                         kill    it is killed
//   hang…       it waits for ever                 spin…   it keeps the processor busy for ever
//   sleep       it is stopped                     stop    it is stopped behind its answer
//   garbage     it answers with damaged bytes     gate P  it writes a byte to P.waiting, and waits for P.open
//   … once      only the first of all processes with the same parent does
//
// Under a name with "stopped" in it, it stops at its start, with "crashing" it aborts there once.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "actors/grammar/form_worker.h"
#include "base/json.h"

namespace {

using namespace troupe;

/// True once for all processes of one parent.
bool is_first(const std::string& words) {
  const auto mark =
      std::filesystem::temp_directory_path() / ("first_form_child_of_" + std::to_string(getppid()) + "_" +
                                                std::to_string(std::hash<std::string>()(words)));
  if (!std::filesystem::exists(mark)) return std::ofstream(mark).good();
  std::filesystem::remove(mark);
  return false;
}

void wait_at_gate(const std::string& path) {
  std::ofstream(path + ".waiting", std::ios::app) << '.';
  while (!std::filesystem::exists(path + ".open")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// What the job says to do; empty: nothing.
std::string words_of(std::string_view bytes) {
  const auto job = frames::job_from_bytes(bytes);
  constexpr std::string_view kCheck = "check ";
  if (const auto* source = std::get_if<grammar::Source>(&*job))
    return source->text.starts_with(kCheck) ? "" : source->text;
  const auto* form = std::get_if<grammar::Form>(&*job);
  if (form == nullptr) return {};
  const auto value = json::parse(form->value);
  const std::string* text = value ? json::text(*value) : nullptr;
  return text != nullptr && text->starts_with(kCheck) ? text->substr(kCheck.size()) : "";
}

void play(std::string words) {
  constexpr std::string_view kOnce = " once";
  if (words.ends_with(kOnce)) {
    if (!is_first(words)) return;
    words.resize(words.size() - kOnce.size());
  }
  if (words == "crash") std::abort();
  if (words == "kill") std::raise(SIGKILL);
  if (words == "sleep") std::raise(SIGSTOP);
  if (words.starts_with("hang")) pause();
  if (words.starts_with("gate ")) wait_at_gate(words.substr(5));
  for (volatile bool spins = words.starts_with("spin"); spins;) {
  }
}

}  // namespace

int main(int, char** argv) {
  const std::string own_name = std::filesystem::read_symlink("/proc/self/exe").filename().string();
  if (own_name.find("stopped") != std::string::npos) std::raise(SIGSTOP);
  if (own_name.find("crashing") != std::string::npos && is_first(own_name)) std::abort();
  const int fd = std::atoi(argv[3] + 5);
  std::string bytes, image;
  if (frames::read(fd, bytes) != frames::Outcome::done || frames::read(fd, image) != frames::Outcome::done)
    return 1;
  auto worker = FormWorker::make(bytes, image, 1);
  frames::write(fd, frames::kReady);
  while (frames::read(fd, bytes) == frames::Outcome::done) {
    const std::string words = words_of(bytes);
    play(words);
    frames::write(fd, words == "garbage" ? "garbage" : *worker->answer(bytes));
    if (words == "stop") std::raise(SIGSTOP);
  }
  return 0;
}
