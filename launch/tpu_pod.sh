#!/usr/bin/env bash
# Starts a training run on every worker of a TPU pod slice.
#
#   launch/tpu_pod.sh NAME ZONE --config=configs/mnist1k.py:paper [more flags of train.py]
#
# NAME is a TPU VM (gcloud compute tpus tpu-vm create NAME --accelerator-type=v4-32 ...).
# The checkout is copied to every worker, which installs the requirements and builds the data on
# its own disk. The workers find each other, and worker 0 writes the run's folder. After a
# preemption, the same command resumes from the newest checkpoint on worker 0.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; fi
name=$1 zone=$2
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
tpu() { gcloud compute tpus tpu-vm "$@" --zone="$zone" --worker=all; }

archive=$(mktemp --suffix=.tar.gz)
trap 'rm -f "$archive"' EXIT
git -C "$root" archive --format=tar.gz -o "$archive" HEAD
tpu scp "$archive" "$name":lavae_jax.tar.gz
tpu ssh "$name" --command="
  set -e
  mkdir -p lavae_jax && tar -xzf lavae_jax.tar.gz -C lavae_jax && cd lavae_jax
  python=\$(command -v python3.13 || command -v python3.12 || command -v python3.11 || echo python3)
  \$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo 'lavae_jax needs Python 3.11 or later on the TPU VM'; exit 1; }
  [ -d .venv ] || \$python -m venv .venv
  .venv/bin/pip install -q -r requirements.txt 'jax[tpu]'
  exec .venv/bin/python launch/train.py --distributed $(printf '%q ' "$@")
"
