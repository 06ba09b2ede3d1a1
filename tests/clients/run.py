"""Runs published clients against the demo server: each file *_client.py in its own virtual environment.

    build/venv/bin/python tests/clients/run.py [CLIENT…]

tools/test-clients makes the environments, build/clients/NAME, and calls this. Prints each client's version and outcome.
"""
import os
import pathlib
import subprocess
import sys

import guidellm_report

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
from server import Server  # noqa: E402  (found by the line above)

OWN = ROOT / "build/venv"
# client → what it is run in, and the package whose version is told
CLIENTS = {
    "openai": (OWN, "openai"), "anthropic": (OWN, "anthropic"), "langchain": (None, "langchain-openai"),
    "litellm": (None, "litellm"), "instructor": (None, "instructor"), "llama-index": (None, "llama-index-llms-openai-like"),
    "guidellm": (None, "guidellm"), "schemathesis": (None, "schemathesis"),
    "bfcl": (None, "bfcl-eval"),
}
KEY = "secret"
GUIDELLM_JSON = ROOT / "build/clients/guidellm.json"
SECONDS = 600  # of one client
SECONDS_OF_BFCL = 7200  # some thousand questions on two cores


def command(name, place, url):
    binary = place / "bin"
    if name == "schemathesis":
        return [binary / "st", "run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {KEY}",
                "--exclude-path", "/v1/troupe/events", "--phases", "fuzzing", "--seed", "1", "--request-timeout", "60",
                "--max-examples", os.environ.get("EXAMPLES", "40"), "--checks",
                "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"]
    if name == "guidellm":
        return [binary / "guidellm", "run", "--backend", f"kind=openai_http,target={url},api_key={KEY}",
                "--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6",
                "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8",
                "--tokenizer", f"kind=huggingface_auto,model={ROOT / 'build/models/SmolLM2-135M-Instruct'}",
                "--output", f"kind=json,path={GUIDELLM_JSON}", "--disable-console-interactive"]
    if name == "bfcl":  # its questions alone; they are asked through the openai package
        return [OWN / "bin/python", HERE / "bfcl_client.py"]
    return [binary / "python", HERE / f"{name.replace('-', '_')}_client.py"]


def main():
    names = sys.argv[1:] or list(CLIENTS)
    unknown = [name for name in names if name not in CLIENTS]
    if unknown:
        sys.exit(f"there is no client {unknown[0]}; there are {', '.join(CLIENTS)}")
    failed = []
    server = Server("--max-num-seqs", "8", api_key=KEY)
    full = Server("--max-concurrency", "1", api_key=KEY)
    try:
        for name in names:
            place, package = CLIENTS[name]
            place = place or ROOT / "build/clients" / name
            version = subprocess.run([place / "bin/python", "-c", f"import importlib.metadata as m; print(m.version('{package}'))"],
                                     capture_output=True, text=True, check=True).stdout.strip()
            print(f"== {package} {version}", flush=True)
            env = os.environ | {"TROUPE_URL": server.url, "TROUPE_FULL_URL": full.url, "TROUPE_KEY": KEY,
                                "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(HERE), "HF_HUB_OFFLINE": "1",
                                "OPENAI_API_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "ANONYMIZED_TELEMETRY": "False",
                                "LANGSMITH_TRACING": "false",
                                "BFCL_DATA": str(next((place / "lib").glob("python3*")) / "site-packages/bfcl_eval/data")}
            GUIDELLM_JSON.unlink(missing_ok=True)
            done = subprocess.run(command(name, place, server.url), env=env, cwd=ROOT / "build/clients", timeout=SECONDS_OF_BFCL if name == "bfcl" else SECONDS)
            fault = f"it ended with status {done.returncode}" if done.returncode != 0 else ""
            if name == "guidellm" and not fault:  # it ends with 0 although its requests failed
                fault = guidellm_report.fault(GUIDELLM_JSON)
            print(f"== {package} {version}: {f'FAILED: {fault}' if fault else 'passed'}", flush=True)
            if fault:
                failed.append(package)
    finally:
        full.stop()
        status = server.stop()
    if status != 0:
        sys.exit(f"the server ended with status {status}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
