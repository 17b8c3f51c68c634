#!/bin/sh
# FID of R8 on ImageNet-256: sh full_scale.sh IMAGENET OUT REFERENCE.npz INCEPTION.pth VGG16.pth [PROCESSES]
# IMAGENET holds train/CLASS/*.JPEG and val/CLASS/*.JPEG; REFERENCE is ADM's VIRTUAL_imagenet256_labeled.npz.
# Stage 2 alone is 320,000 steps of 256 images, 5.8e19 FLOP: about 40 H200-hours at 400 TFLOP/s. Every line resumes.
set -eu
imagenet=$1 out=$2 reference=$3 inception=$4 trunk=$5 processes=${6:-8}

stage() {
    accelerate launch --num_processes "$processes" --mixed_precision "$2" \
        -m repack_dit.training "$out" "$1" --device cuda --precision "$2"
}

repack-dit pack "$imagenet" --out "$out" --preset official --lpips-trunk "$trunk" --device cuda --no-train --resume
stage pack no
repack-dit cache "$out" --device cuda
stage train bf16
stage refine no
repack-dit refine "$out" --device cuda # puts the pipeline together

sampling="--count 50 --steps 249 --guidance 15 --channels 3 --interval 0.11 1 --device cuda"
# shellcheck disable=SC2086
repack-dit sample "$out" $sampling --no-refine --out "$out/generated"
# shellcheck disable=SC2086
repack-dit sample "$out" $sampling --out "$out/refined"
for kind in generated refined; do
    repack-dit evaluate "$out/$kind" "$reference" --metrics fid,sfid,isc --inception-weights "$inception" --json \
        > "$out/$kind.json"
done
echo "repack-dit reproduce R8 --full --fid (fid of $out/generated.json) --refined (fid of $out/refined.json)"
