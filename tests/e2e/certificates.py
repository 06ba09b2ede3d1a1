"""Certificates for tests, made by the openssl command; each vouches for itself."""
import pathlib
import subprocess

NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost"


def make_certificate(folder, name="server", names=NAMES, password=None, bits=None):
    """Makes NAME.pem and NAME.key in the folder and returns both paths. An elliptic key, or RSA with so many bits."""
    folder = pathlib.Path(folder)
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    algorithm = ["rsa:" + str(bits)] if bits else ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    secret = ["-passout", "pass:" + password] if password else ["-nodes"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", *algorithm, *secret, "-days", "2", "-subj", f"/CN={name}",
                    "-addext", names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key
