#!/usr/bin/env bash
# A robot simulator's clips through the whole path: film -> questions -> responses -> verify -> pairs -> benchmark -> evaluate.
#
#   apt-get install libosmesa6 && bash experiments/metaworld.sh
#
# Meta-World is an optional install of its own (METAWORLD, a virtual environment; made here where it is absent). MODELS are
# the policies, as in build_pairs.py sample --models, JUDGE is who judges the benchmark, SIZE the clips' width and height
# (56 is what the tiny model was taught with; give a real model 224 or more). Finished steps are kept and a killed
# run carries on; after a change of MODELS or their weights remove $OUT/train, $OUT/bench and $OUT/judge.*.
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-runs/metaworld} RECORD=${RECORD:-experiments/2026-11-30_metaworld} METAWORLD=${METAWORLD:-runs/metaworld_venv}
MODELS=${MODELS:-physworld/tiny_vlm} JUDGE=${JUDGE:-physworld/tiny_vlm}
SIZE=${SIZE:-56} PYTHON=.venv/bin/python
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

if [ ! -x "$METAWORLD/bin/python" ]; then
    "$PYTHON" -m venv "$METAWORLD"
    "$METAWORLD/bin/pip" install --quiet --disable-pip-version-check metaworld==3.1.1 packaging==26.4 av==18.1.0 pillow==13.0.0 tqdm==4.70.1
fi
ldconfig -p | grep -q libOSMesa || { echo "libOSMesa is not there: apt-get install libosmesa6" >&2; exit 1; }

MUJOCO_GL=osmesa LP_NUM_THREADS=1 "$METAWORLD/bin/python" -W ignore -m experiments.metaworld_clips film --out "$OUT" \
    --size "$SIZE"
for split in train bench; do
    questions=$OUT/${split/bench/test}.jsonl
    # shellcheck disable=SC2086  # MODELS is a list
    "$PYTHON" build_pairs.py sample --questions "$questions" --out "$OUT/$split" --models $MODELS \
        --max_frames 4 --max_new_tokens 48 --batch_size 64
    "$PYTHON" build_pairs.py verify --questions "$questions" --out "$OUT/$split"
done
"$PYTHON" build_pairs.py pair --questions "$OUT/test.jsonl" --out "$OUT/bench" --benchmark --apart_from "$OUT/train.jsonl"
"$PYTHON" build_pairs.py pair --questions "$OUT/train.jsonl" --out "$OUT/train" --apart_from "$OUT/bench/benchmark.jsonl"
"$PYTHON" evaluate.py --model "$JUDGE" --mode judge --dataset "$OUT/bench/benchmark.jsonl" --out "$OUT/judge.json" \
    --max_frames 4 --max_new_tokens 128
"$PYTHON" -m experiments.metaworld_clips record --out "$OUT" --record "$RECORD"
