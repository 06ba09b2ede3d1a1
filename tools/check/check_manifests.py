"""Checks manifests for Kubernetes against the schemas of its API, and that what they name of one another is there.

    check_manifests.py FILE…
"""
import sys

import kubernetes_validate
import yaml

VERSION = "1.31"


def inner_faults(documents):
    """Names that lead nowhere: a Service's pods, a StatefulSet's Service, a container's volumes."""
    pods = [document["spec"]["template"] for document in documents if "template" in document["spec"]]
    services = {document["metadata"]["name"] for document in documents if document["kind"] == "Service"}
    for document in documents:
        name = f"{document['kind']} {document['metadata']['name']}"
        spec = document["spec"]
        if document["kind"] == "Service":
            if not any(spec["selector"].items() <= pod["metadata"]["labels"].items() for pod in pods):
                yield f"{name}: no pod has the labels {spec['selector']}"
            continue
        if not spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items():
            yield f"{name}: its own pods have other labels"
        if spec.get("serviceName", next(iter(services))) not in services:
            yield f"{name}: there is no Service {spec['serviceName']}"
        volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
        for container in spec["template"]["spec"]["containers"]:
            for mount in container["volumeMounts"]:
                if mount["name"] not in volumes:
                    yield f"{name}: there is no volume {mount['name']}"


def main(files):
    faults = []
    for file in files:
        with open(file, encoding="utf-8") as text:
            documents = list(yaml.safe_load_all(text))
        for document in documents:
            try:
                kubernetes_validate.validate(document, VERSION, strict=True)
            except kubernetes_validate.ValidationError as error:
                faults.append(f"{file}: {document['kind']}: {error.message}")
        faults += [f"{file}: {fault}" for fault in inner_faults(documents)]
        print(f"{file}: {len(documents)} objects")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
