#include "cli/completion.h"

#include <cstdio>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"

namespace troupe::cli {
namespace {

// bash splits --flag=value into three words.
constexpr const char* kBash = R"(_troupe() {
  local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
  local name values rest
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    while IFS=$'\t' read -r name rest; do
      COMPREPLY+=($(compgen -W "$name" -- "$current"))
    done < <("$program" --help=commands 2>/dev/null)
    return
  fi
  if [[ $current == '=' ]]; then
    current=
  elif [[ $previous == '=' ]]; then
    previous=${COMP_WORDS[COMP_CWORD-2]}
  fi
  while IFS=$'\t' read -r name values rest; do
    if [[ $current == -* ]]; then
      COMPREPLY+=($(compgen -W "$name" -- "$current"))
    elif [[ $name == "$previous" && $values == *'|'* ]]; then
      COMPREPLY=($(compgen -W "${values//|/ }" -- "$current"))
    fi
  done < <("$program" "${COMP_WORDS[1]}" --help=flags 2>/dev/null)
}
complete -o default -F _troupe troupe
)";

constexpr const char* kZsh = R"(#compdef troupe
_troupe() {
  local name values help
  local -a found
  if (( CURRENT == 2 )); then
    while IFS=$'\t' read -r name help; do
      found+=("$name:${help//:/\\:}")
    done < <($words[1] --help=commands 2>/dev/null)
    _describe command found
    return
  fi
  while IFS=$'\t' read -r name values help; do
    if [[ $name == $words[CURRENT-1] && $values == *'|'* ]]; then
      compadd -- ${(s:|:)values}
      return
    fi
    found+=("$name:${help//:/\\:}")
  done < <($words[1] $words[2] --help=flags 2>/dev/null)
  if [[ $words[CURRENT] == -* ]]; then
    _describe flag found
  else
    _files
  fi
}
compdef _troupe troupe
)";

constexpr const char* kFish = R"(function __troupe_flags
  set -l words (commandline -opc)
  troupe $words[2] --help=flags 2>/dev/null
end
function __troupe_complete
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  if test (count $words) -eq 1
    troupe --help=commands 2>/dev/null
    return
  end
  __troupe_flags | while read -d \t -l name values help
    if string match -q -- '-*' $current
      printf '%s\t%s\n' $name $help
    else if test $name = $words[-1]; and string match -q -- '*|*' $values
      string split '|' -- $values
    end
  end
end
complete -c troupe -a '(__troupe_complete)'
)";

}  // namespace

Result<std::string> completion_script(std::string_view shell) {
  if (shell == "bash") return std::string(kBash);
  if (shell == "zsh") return std::string(kZsh);
  if (shell == "fish") return std::string(kFish);
  return invalid("there is no completion for \"" + std::string(shell) + "\": expected bash, zsh or fish");
}

int completion_main(int argc, char** argv) {
  const Synopsis synopsis{"completion", "prints a script by which a shell completes commands and flags",
                          "troupe completion bash|zsh|fish",
                          "  source <(troupe completion bash)\n"
                          "  troupe completion zsh > ~/.zfunc/_troupe\n"
                          "  troupe completion fish > ~/.config/fish/completions/troupe.fish\n"};
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, {}, words)) return *code;
  if (words.size() != 1) return fail(synopsis, invalid("one shell is expected: bash, zsh or fish"));
  const auto script = completion_script(words.front());
  if (!script.ok()) return fail(synopsis, script.status());
  std::fputs(script->c_str(), stdout);
  return 0;
}

}  // namespace troupe::cli
