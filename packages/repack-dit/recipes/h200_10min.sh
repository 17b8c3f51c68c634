#!/bin/sh
# Ten minutes on one large GPU: 64-pixel pictures, RePack-DiT-S/1 on 8 x 8 tokens, batch 256, bf16, then the refiner.
# sh h200_10min.sh [photos | FOLDER] [OUT]. It was never timed: no GPU was at hand.
set -eu
data=${1:-photos} out=${2:-repack-dit-h200}
config=$(mktemp)
trap 'rm -f "$config"' EXIT
cat > "$config" <<'YAML'
pack: {steps: 1500, batch: 64}
train: {steps: 8000, lr_step: 6000, compile: true}
refine: {steps: 800, batch: 64}
YAML
repack-dit run "$data" --out "$out" --preset small --config "$config" --device cuda --precision bf16 --samples 2048
