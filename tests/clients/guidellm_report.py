"""What guidellm's JSON report says of its requests."""
import json


def fault(path):
    """Why the run has not passed: no report, a request that failed, or none that succeeded. Empty if it has passed."""
    try:
        benchmarks = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    except FileNotFoundError:
        return f"there is no report {path}"
    if not benchmarks:
        return "the report has no benchmark"
    for benchmark in benchmarks:
        made = benchmark["scheduler_metrics"]["requests_made"]
        if made["errored"] > 0:
            errors = [request.get("info", {}).get("error") for request in benchmark["requests"]["errored"]]
            return f"{made['errored']} of {made['total']} requests failed: {errors[0] if errors else 'it does not say why'}"
        if made["successful"] == 0:
            return f"none of {made['total']} requests succeeded"
    return ""
