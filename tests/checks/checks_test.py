"""Tests of tools/check/check_*.py: for each rule, a small tree that breaks it, which the tool must report."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "check"

CLEAN = {
    "base/status.h": "#pragma once\n#include <string>\n",
    "config/parse.cpp": '#include "base/status.h"\nconst char* home() { return std::getenv("HOME"); }\n',
    "ipc/wire.h": '#pragma once\n#include "base/status.h"\n',
    "ipc/segment.h": "#pragma once\n#include <boost/interprocess/mapped_region.hpp>\n",
    "model/executor.h": '#pragma once\n#include "ipc/wire.h"\n#include <nlohmann/json.hpp>\n',
    "http/server/server.cpp": "#include <boost/asio/core.hpp>\n",
    "actors/protocol.h": '#pragma once\n#include <caf/all.hpp>\n#include "model/executor.h"\n',
    "text/grammar/form_check.h": '#pragma once\n#include "base/status.h"\n',
    "text/grammar/compiler.h": "#pragma once\n",
    "actors/grammar/form_worker.cpp": '#include "text/grammar/form_check.h"\nauto form = grammar::compile(1);\n',
    "actors/scheduler/scheduler.h": '#pragma once\n#include "ipc/wire.h"\n',
    "actors/scheduler/scheduler_actor.cpp": '#include "actors/protocol.h"\n#include <caf/actor.hpp>\n',
    "gpu/cuda_check.h": "#pragma once\n#include <cuda_runtime_api.h>\n",
    "gpu/cuda.h": "#pragma once\n",
    "gpu/cuda.cpp": '#include "gpu/cuda_check.h"\n#include <cuda.h>\n',
    "kernels/cuda/product/layout.h": "#pragma once\n",
    "kernels/cuda/launch.cuh": '#pragma once\n#include "gpu/cuda_check.h"\n'
                               "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900\n#endif\n",
    "kernels/embed_cuda.cu": '#include <cuda_bf16.h>\n#include "kernels/cuda/launch.cuh"\n__global__ void embed();\n'
                             "#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)\n#else  // never there\n#endif\n",
    "kernels/embed_cpu.cpp": '#include "kernels/cuda/product/layout.h"\n',
    "cli/bench/ceilings.cpp": '#include "kernels/cuda/product/layout.h"\n#include "actors/protocol.h"\n',
    "tests/ipc/ring_test.cpp": '#include <boost/asio.hpp>\n#include "ipc/segment.h"\n',
}


def run(tool, extra):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**CLEAN, **extra}.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, TOOLS / tool, folder], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


class JsonRules(unittest.TestCase):
    def found(self, name, line, expected):
        status, output = run("check_json.py", {name: "using Json = nlohmann::ordered_json;\n" + line + "\n"})
        self.assertEqual(status, 1, output)
        self.assertRegex(output, rf"^{re.escape(name)}:2: .*{expected}")

    def test_accessors_that_throw_are_found(self):
        for line, expected in ((r"auto x = value.get<int>();", "get<>"), (r"value->get_ref<const std::string&>();", "get<>"),
                               (r"value.get_to(x);", r"get_to\(\)"), (r'value.value("a", 1);', r"at\(\) or value\(\)"),
                               (r"value.at(name);", r"at\(\) or value\(\)"), (r"value->at(0);", r"at\(\) or value\(\)"),
                               (r"Json::parse(text);", r"parse\(\)"), (r"value.dump();", r"dump\(\)"),
                               (r'if (value["a"].is_string()) {', r"\[\]"), (r'f(value["a"]);', r"\[\]"),
                               (r'if (value["a"] == "b") {', r"\[\]")):
            for name in ("http/a.cpp", "text/grammar/a.cpp", "text/parsers/a.h", "text/template/a.cpp", "actors/x/a.cpp"):
                self.found(name, line, expected)

    def test_readers_and_writers_pass(self):
        lines = ['json::text(json::member(value, "a"));', 'value["a"] = 1;', "json::parse(text);", "result.value();",
                 "std::get<int>(variant);", 'return value.get();  // value.at("a")']
        status, output = run("check_json.py", {"http/a.cpp": "using Json = nlohmann::ordered_json;\n" + "\n".join(lines) + "\n"})
        self.assertEqual(status, 0, output)
        status, output = run("check_json.py", {"config/a.cpp": "auto x = Json().get<int>();\n", "actors/b.cpp": "map.at(key);\n"})
        self.assertEqual(status, 0, output)


class LayerRules(unittest.TestCase):
    def found(self, name, text, expected):
        status, output = run("check_layers.py", {name: text})
        self.assertEqual(status, 1, output)
        self.assertRegex(output, expected)
        self.assertEqual(len(output.splitlines()), 1, output)

    def test_a_clean_tree_passes(self):
        status, output = run("check_layers.py", {})
        self.assertEqual(status, 0, output)

    def test_a_lower_layer_includes_a_higher_one(self):
        self.found("base/log.cpp", '#include "config/options.h"\n', r"base/log\.cpp:1: base may not include config/")

    def test_the_wire_format_is_not_the_ring(self):
        self.found("model/worker.cpp", '\n#include "ipc/segment.h"\n', r"model/worker\.cpp:2: model may not include")

    def test_http_knows_no_actor(self):
        self.found("http/gateway.cpp", '#include "actors/protocol.h"\n', "http may not include")

    def test_includes_start_at_the_root(self):
        self.found("http/server/router.cpp", '#include "server.h"\n', "not relative to the root")

    def test_an_included_file_exists(self):
        self.found("http/server/router.cpp", '#include "http/nowhere.h"\n', "there is no http/nowhere.h")

    def test_caf_outside_actor_files(self):
        self.found("actors/scheduler/plan.cpp", "#include <caf/actor.hpp>\n", "CAF may not be included here")

    def test_a_name_of_caf_outside_the_actors(self):
        self.found("actors/engine/engine.cpp", '#include "actors/protocol.h"\ncaf::actor_system* system;\n',
                   r"engine\.cpp:2: names of CAF may not be used here")

    def test_caf_through_another_header(self):
        self.found("actors/scheduler/plan.h", '#pragma once\n#include "actors/protocol.h"\n', "gets it through")

    def test_interprocess_outside_ipc(self):
        self.found("actors/worker/map.cpp", "#include <boost/interprocess/mapped_region.hpp>\n", "Boost.Interprocess")

    def test_asio_outside_http(self):
        self.found("cli/chat.cpp", "#include <boost/asio/post.hpp>\n", "Asio may not be included here")

    def test_beast_outside_the_client(self):
        self.found("http/server/reader.cpp", "#include <boost/beast/http.hpp>\n", "Beast may not be included here")

    def test_beast_in_a_second_file(self):
        more = {f"http/client/{n}.cpp": "#include <boost/beast/http.hpp>\n" for n in ("a", "b")}
        status, output = run("check_layers.py", more)
        self.assertEqual(status, 1, output)
        self.assertIn("more than 1 file includes Beast", output)

    def test_json_below_config(self):
        self.found("ipc/dump.cpp", "#include <nlohmann/json.hpp>\n", "nlohmann/json may not be included")

    def test_cuda_outside_its_folders(self):
        self.found("model/decoder.cpp", "#include <cuda_runtime_api.h>\n", "CUDA may not be included")

    def test_cuda_through_another_header(self):
        self.found("kernels/embed.h", '#pragma once\n#include "gpu/cuda_check.h"\n', r"kernels/embed\.h:1: .*without CUDA")

    def test_cuda_in_a_plain_header(self):
        self.found("kernels/cuda/product/linear.h", "#pragma once\n#include <cuda_bf16.h>\n", "CUDA may not be included")
        self.found("gpu/cuda.h", "#pragma once\n#include <cuda_runtime.h>\n", "CUDA may not be included")

    def test_nvcc_compiles_nothing_else(self):
        for name in ("kernels/embed.cu", "gpu/copy_cuda.cu", "bench/peak.cu", "bench/cuda/peak.cuh", "tests/kernels/x_cuda.cu",
                     "kernels/tile.cuh"):
            self.found(name, "int x;\n", "only kernels/")

    def test_device_code_for_the_host_compiler(self):
        self.found("kernels/embed.h", "#pragma once\n__device__ int x();\n", "device code is not allowed here")
        self.found("tests/kernels/x.cpp", "__global__ void x();\n", "device code is not allowed here")

    def test_a_launch_without_the_launch_function(self):
        self.found("kernels/embed_cuda.cu", "embed<<<1, 32>>>();\n", r"only cuda::launch\(\)")

    def test_assembly_in_a_kernel(self):
        for name in ("kernels/embed_cuda.cu", "kernels/cuda/sample/draw.cuh", "kernels/embed_cpu.cpp"):
            self.found(name, '#pragma once\nvoid f() { asm volatile("bar.sync 1, 128;"); }\n',
                       r":2: inline assembly belongs in kernels/cuda/ptx\.cuh")

    def test_assembly_in_its_place(self):
        for name in ("ptx", "wgmma", "launch"):
            status, output = run("check_layers.py",
                                 {f"kernels/cuda/{name}.cuh": '#pragma once\nvoid f() { asm volatile("bar.sync 1, 128;"); }\n'})
            self.assertEqual(status, 0, output)

    def test_actors_do_not_look_at_devices(self):
        self.found("actors/worker/loop.cpp", '#include "kernels/cuda/product/layout.h"\n', "actors may not include kernels/")
        self.found("actors/worker/loop.cpp", '#include "gpu/cuda.h"\n', "actors may not include gpu/")

    def test_getenv_elsewhere(self):
        self.found("base/log.cpp", 'auto x = getenv("X");\n', "only config/parse.cpp may read the environment")

    def test_the_environment_by_another_name(self):
        self.found("base/log.cpp", "char** all = environ;\n", "only config/parse.cpp may read the environment")

    def test_getenv_twice(self):
        text = CLEAN["config/parse.cpp"] + 'auto again = std::getenv("USER");\n'
        self.found("config/parse.cpp", text, "one place only")

    def test_a_wait_without_a_deadline(self):
        self.found("actors/scheduler/scheduler_actor.cpp", "self->request(cache, caf::infinite, ask);\n", "without a deadline")
        self.found("actors/scheduler/scheduler_actor.cpp", "self->request(cache, caf::infinite, ask);  // no deadline: it ends\n",
                   "without a deadline")

    def test_the_clock_on_the_wall(self):
        for line in ("auto end = std::chrono::system_clock::now() + limit;", "clock_gettime(CLOCK_REALTIME, &now);",
                     "const std::time_t now = std::time(nullptr);", "if (time(NULL) > end) return;"):
            self.found("actors/scheduler/scheduler.h", "#pragma once\n" + line + "\n", "clock on the wall")
        for line in ("auto end = std::chrono::steady_clock::now();", "usage.time(0);", "// not system_clock"):
            status, output = run("check_layers.py", {"actors/scheduler/scheduler.h": "#pragma once\n" + line + "\n"})
            self.assertEqual(status, 0, output)

    def test_processes_and_cores_have_one_mechanism(self):
        for line in ("const pid_t pid = ::fork();", "execv(path, argv);", 'std::FILE* f = popen("less", "w");',
                     "posix_spawn(&pid, path, nullptr, nullptr, argv, envp);", 'int code = std::system("ls");'):
            self.found("cli/x.cpp", line + "\n", "programs are started by base/spawn.h")
        self.found("http/x.cpp", "auto n = std::thread::hardware_concurrency();\n", "usable_cores()")
        for line in ("cache.fork(ask, grant);", "self->system().render(error);", "// not fork()"):
            status, output = run("check_layers.py", {"cli/x.cpp": line + "\n"})
            self.assertEqual(status, 0, output)

    def test_forms_are_read_in_their_process_alone(self):
        for name in ("actors/grammar/form_service.cpp", "actors/engine/engine.cpp", "actors/gateway/resolver.cpp", "cli/chat.cpp"):
            self.found(name, '#include "text/grammar/form_check.h"\n', "the form checker may not be included here")
            self.found(name, "auto source = grammar::prepare(form);\n", "a process that may die of them")
            self.found(name, '#include "text/grammar/compiler.h"\nauto form = grammar::compile(table, source, 1);\n',
                       "a process that may die of them")
        status, output = run("check_layers.py", {
            "actors/grammar/form_worker.h": '#pragma once\n#include "text/grammar/form_check.h"\n',
            "actors/grammar/form_service.cpp": '#include "actors/grammar/form_worker.h"\n'})
        self.assertEqual(status, 1, output)
        self.assertIn("form_service.cpp:1: a file without the form checker gets it through actors/grammar/form_worker.h", output)

    def test_pictures_are_decoded_in_their_process_alone(self):
        for name in ("actors/media/media_process.cpp", "http/api/request.cpp", "media/prepare.cpp"):
            for header in ("jpeglib.h", "png.h", "webp/decode.h", "gif_lib.h"):
                self.found(name, f"#include <{header}>\n", "a picture's decoder may not be included here")
        self.found("media/decode/decode.h", "#pragma once\n#include <png.h>\n", "a picture's decoder may not be included here")
        self.found("media/media_main.cpp", "#include <seccomp.h>\n", "seccomp may not be included here")
        tree = {"media/decode/jpeg.cpp": "#include <jpeglib.h>\n", "media/sandbox.cpp": "#include <seccomp.h>\n",
                "media/prepare.h": "#pragma once\n", "media/media_main.cpp": '#include "media/prepare.h"\n',
                "media/all.h": '#pragma once\n#include "media/prepare.h"\n'}
        status, output = run("check_layers.py", tree)
        self.assertEqual(status, 0, output)
        status, output = run("check_layers.py", {**tree, "actors/media/media_process.cpp": '#include "media/all.h"\n'})
        self.assertEqual(status, 1)
        self.assertIn("media_process.cpp:1: a file without the decoding of pictures gets it through media/all.h", output)
        self.found("media/messages.h", '#pragma once\n#include "ipc/segment.h"\n', r"media may not include ipc/segment.h \(ipc\)")

    def test_conditional_compilation(self):
        self.found("base/x.cpp", "#ifdef __linux__\n#endif\n", "conditional compilation")

    def test_conditions_of_device_code(self):
        for line in ("#ifdef PROFILE", "#if defined(__CUDACC__)", "#if __CUDA_ARCH__ >= 900", "#if 0",
                     "#if defined(__CUDA_ARCH__) || defined(PROFILE)"):
            self.found("kernels/embed_cuda.cu", line + "\n#endif\n", "conditional compilation")
        self.found("kernels/embed_cuda.cu", "#if defined(__CUDA_ARCH__)\n#elif 1\n#endif\n", "conditional compilation")

    def test_architecture_guards_in_host_code(self):
        for name in ("kernels/cuda/product/linear.h", "gpu/x.cpp", "tests/kernels/x.cpp"):
            self.found(name, "#pragma once\n#if defined(__CUDA_ARCH__)\n#endif\n", "conditional compilation")

    def test_a_condition_within_a_guard(self):
        text = "#if defined(__CUDA_ARCH__)\n#ifdef PROFILE\n#endif\n#else\n#endif\n"
        self.found("kernels/embed_cuda.cu", text, r"embed_cuda\.cu:2: conditional compilation")

    def test_hidden_folders_are_skipped(self):
        status, output = run("check_layers.py", {".scratch/x.cu": "#ifdef X\n"})
        self.assertEqual(status, 0, output)

    def test_machine_paths(self):
        self.found("tools/x.py", "path = '/ho" + "me/someone'\n", "contains a path of one machine")

    def test_a_header_is_included_once(self):
        self.found("base/x.h", "int x();\n", "without #pragma once")

    def test_an_empty_folder_is_not_a_pass(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, TOOLS / "check_layers.py", folder], capture_output=True, check=False)
        self.assertEqual(done.returncode, 2)


class OptionRules(unittest.TestCase):
    OPTIONS = ("struct HttpOptions {\n  std::string host = \"::\";  ///< an address\n  std::vector<int> ports;\n"
               "  int limit = 1 << 20;\n\n  bool on() const { return limit > 0; }\n};\n")
    READER = "int x = o.host + options->ports[0] + o.limit;\n"

    def test_members_that_are_read_pass(self):
        status, output = run("check_options.py", {"config/options.h": self.OPTIONS, "http/a.cpp": self.READER})
        self.assertEqual(status, 0, output)

    def test_a_member_that_nothing_reads_is_found(self):
        for member in ("host", "ports", "limit"):
            rows = {"config/fields_http.cpp": self.READER, "config/validate.cpp": self.READER, "tests/a.cpp": self.READER,
                    "http/b.cpp": f"// o.{member}\nint x = {member}; // o->{member}\n"}
            others = self.READER.replace(f".{member}", "").replace(f">{member}", "")
            status, output = run("check_options.py", {"config/options.h": self.OPTIONS, **rows, "http/a.cpp": others})
            self.assertEqual(status, 1, output)
            self.assertRegex(output, rf"^config/options\.h: HttpOptions::{member} is read by nothing")
            self.assertEqual(len(output.splitlines()), 1, output)

    def test_an_excuse_that_is_not_needed_is_found(self):
        options = self.OPTIONS + "struct Options {\n  std::string config_file;\n};\n"
        status, output = run("check_options.py", {"config/options.h": options, "http/a.cpp": self.READER + "o.config_file;\n"})
        self.assertEqual(status, 1, output)
        self.assertIn("Options::config_file: excused, but read", output)
        status, output = run("check_options.py", {"config/options.h": options, "http/a.cpp": self.READER})
        self.assertEqual(status, 0, output)

    def test_a_tree_without_options_is_not_a_pass(self):
        self.assertEqual(run("check_options.py", {})[0], 2)


class SizeRules(unittest.TestCase):
    def test_a_short_tree_passes(self):
        status, output = run("check_sizes.py", {})
        self.assertEqual(status, 0, output)
        self.assertIn("median", output)

    def test_a_long_file_is_found(self):
        status, output = run("check_sizes.py", {"http/long.cpp": "int x;\n" * 501})
        self.assertEqual(status, 1, output)
        self.assertIn("http/long.cpp: 501 lines", output)

    def test_device_code_counts(self):
        for name in ("kernels/long_cuda.cu", "kernels/cuda/long.cuh", "cli/bench/long.cpp"):
            status, output = run("check_sizes.py", {name: "int x;\n" * 501})
            self.assertEqual(status, 1, output)
            self.assertIn(f"{name}: 501 lines", output)


class FormatRules(unittest.TestCase):
    def test_a_formatted_tree_passes(self):
        tree = {name: "int x;\n" for name in CLEAN}
        self.assertEqual(run("check_format.py", tree), (0, ""))

    def test_what_clang_format_would_change_is_found(self):
        for name in ("base/a.h", "base/a.cpp", "kernels/a_cuda.cu", "kernels/cuda/a.cuh"):
            status, output = run("check_format.py", {**{clean: "int x;\n" for clean in CLEAN}, name: "int  x ;\n"})
            self.assertEqual(status, 1, output)
            self.assertRegex(output, rf"^{re.escape(name)}: not as clang-format leaves it")


class TidyRules(unittest.TestCase):
    def look(self, text, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "base/a.cpp")
            path.parent.mkdir()
            path.write_text(text, encoding="utf-8")
            pathlib.Path(folder, "build").mkdir()
            command = {"directory": folder, "file": "base/a.cpp", "command": "c++ -std=c++20 -c base/a.cpp"}
            pathlib.Path(folder, "build/compile_commands.json").write_text(json.dumps([command]), encoding="utf-8")
            done = subprocess.run([sys.executable, TOOLS / "check_tidy.py", folder, *arguments], capture_output=True, text=True,
                                  check=False)
            return done.returncode, done.stdout + done.stderr

    def test_sound_code_passes(self):
        self.assertEqual(self.look("int twice(int x) { return 2 * x; }\n"), (0, ""))

    def test_a_fault_is_found(self):
        for arguments in ([], ["--files", "base/a.cpp"]):
            status, output = self.look("bool odd(int x) {\n  return x == x;\n}\n", *arguments)
            self.assertEqual(status, 1, output)
            self.assertRegex(output, r"^base/a\.cpp:2: .*\[misc-redundant-expression\]")

    def test_a_file_that_a_unity_file_includes_is_looked_at(self):
        with tempfile.TemporaryDirectory() as folder:
            source, unity = pathlib.Path(folder, "ipc/a.cpp"), pathlib.Path(folder, "build/Unity/unity_0_cxx.cxx")
            for path in (source, unity):
                path.parent.mkdir(parents=True)
            source.write_text("bool odd(int x) {\n  return x == x;\n}\n", encoding="utf-8")
            unity.write_text(f'#include "{source}"\n', encoding="utf-8")
            command = {"directory": folder, "file": str(unity), "command": f"c++ -std=c++20 -c {unity}"}
            pathlib.Path(folder, "build/compile_commands.json").write_text(json.dumps([command]), encoding="utf-8")
            done = subprocess.run([sys.executable, TOOLS / "check_tidy.py", folder], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"^ipc/a\.cpp:2: .*\[misc-redundant-expression\]")

    def test_a_build_without_the_folders_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "build").mkdir()
            pathlib.Path(folder, "build/compile_commands.json").write_text("[]", encoding="utf-8")
            done = subprocess.run([sys.executable, TOOLS / "check_tidy.py", folder], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("names no .cpp file", done.stderr)

    def test_code_that_does_not_compile_is_a_finding(self):
        status, output = self.look("int x = ;\n")
        self.assertEqual(status, 1, output)
        self.assertIn("base/a.cpp:1: expected expression", output)

    def test_a_file_that_no_build_knows_is_refused(self):
        status, output = self.look("int x;\n", "--files", "base/b.cpp")
        self.assertEqual(status, 1, output)
        self.assertIn("base/b.cpp: ", output)


@unittest.skipUnless(shutil.which("systemd-analyze"), "needs systemd-analyze")
class UnitRules(unittest.TestCase):
    UNIT = (TOOLS.parent / "packaging" / "troupe.service.in").read_text(encoding="utf-8")

    def look(self, unit):
        return run("check_units.py", {"tools/packaging/troupe.service.in": unit})

    def test_the_unit_is_confined(self):
        self.assertEqual(self.look(self.UNIT)[0], 0)

    def test_one_that_confines_nothing_is_found(self):
        bare = self.UNIT[:self.UNIT.index("NoNewPrivileges")]
        status, output = self.look(bare)
        self.assertEqual(status, 1, output)
        self.assertRegex(output, r"^tools/packaging/troupe\.service\.in:1: its exposure is \d")

    def test_a_misspelt_setting_is_found(self):
        status, output = self.look(self.UNIT.replace("ProtectProc=", "ProtectProcs="))
        self.assertEqual(status, 1, output)
        self.assertIn("ProtectProcs", output)


if __name__ == "__main__":
    unittest.main()
