#!/usr/bin/env bash
# DPO of the base with three kinds of pairs and three seeds, and what each policy answers; analysis/paper_tables.py makes the table.
#
#   make demo; for s in 1 2; do SEED=$s OUT=runs/demo_seed$s bash experiments/demo.sh; done       the critics, one a seed
#   bash experiments/dpo.sh                                                                       half an hour on one core
#
# Candidates are sampled once a seed and shared by its three kinds. Finished steps are kept and a killed run carries on.
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-runs/dpo} SEEDS=${SEEDS:-0 1 2} LIMIT=${LIMIT:-2000} BASE=physworld/tiny_vlm PYTHON=.venv/bin/python
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

evaluate() { # model out: its answers on both splits
    for split in test ood; do
        "$PYTHON" evaluate.py --model "$1" --mode question --limit "$LIMIT" --max_new_tokens 64 --split "$split" --out "$2$split.json"
    done
}

evaluate "$BASE" "$OUT/base_"
for seed in $SEEDS; do
    critic=runs/demo_seed$seed/stage2
    [ "$seed" = 0 ] && critic=runs/demo/stage2
    [ -d "$critic" ] || { echo "$critic, the critic of seed $seed, is not there: see the top of this file" >&2; exit 1; }
    for kind in verifier critic pivot; do
        to=$OUT/$seed/$kind
        [ -e "$to/pairs.json" ] || "$PYTHON" train_dpo.py pairs --pairs_by "$kind" --seed "$seed" --critic "$critic" \
            --candidates "$OUT/$seed/candidates.jsonl" --output_dir "$to"
        [ -e "$to/adapter_model.safetensors" ] ||
            "$PYTHON" train_dpo.py train --seed "$seed" --output_dir "$to" --resume_from_checkpoint true
        evaluate "$to" "$to/"
    done
done
