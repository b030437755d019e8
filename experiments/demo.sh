#!/usr/bin/env bash
# The embedded default, end to end: clips -> stage 1 -> stage 2 -> evaluate base and both stages -> runs/demo/report.md.
#
#   make demo                                              installs first; meant for two cores and 20 minutes
#   SEED=1 OUT=runs/demo_seed1 bash experiments/demo.sh    another seed, beside it
#
# Finished steps are kept: a killed demo carries on where it was. Where code, weights or settings have changed since, it
# starts from scratch. LIMIT is the number of questions, and of pairs (each in both orders), that an evaluation takes;
# THREADS the cores that training takes.
set -euo pipefail
cd "$(dirname "$0")/.."
export SEED=${SEED:-0} OUT=${OUT:-runs/demo} LIMIT=${LIMIT:-500} THREADS=${THREADS:-2} PYTHON=.venv/bin/python
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
started=$SECONDS

made_by=$({ find *.py answers data training judging physworld experiments/*.yaml experiments/demo.sh requirements.txt -type f ! -name '*.pyc' |
    LC_ALL=C sort | xargs sha256sum; echo "$SEED $LIMIT"; } | sha256sum | cut -c-16)
if [ -n "$(ls -A "$OUT" 2>/dev/null)" ] && [ "$(cat "$OUT/made_by" 2>/dev/null)" != "$made_by" ]; then
    [ -e "$OUT/made_by" ] || { echo "$OUT is not a demo's folder; give another OUT" >&2; exit 1; }
    echo "$OUT was made by other code, weights or settings: starting from scratch"
    rm -r "$OUT"
fi
mkdir -p "$OUT/eval"
echo "$made_by" > "$OUT/made_by"
touch "$OUT/steps.tsv"

step() { # name command...: run it unless steps.tsv has it, and note its seconds there
    local name=$1 begun=$SECONDS
    shift
    if grep -q "^$name	" "$OUT/steps.tsv"; then
        echo "== $name: finished before"
    else
        echo "== $name"
        "$@"
        printf '%s\t%s\n' "$name" $((SECONDS - begun)) >> "$OUT/steps.tsv"
    fi
}

clips() { # draws them, and joins pairs with their clips
    "$PYTHON" -c "
from physworld import dataset as d
d.questions_file('train'), d.pairs_file('pairs'), d.pairs_file('test'), d.pairs_file('ood')"
}

evaluate() { # name model mode split: one evaluation on one core; its log lies beside its result
    local out=$OUT/eval/$1_$3_$4 records=questions tokens=64
    if [ "$3" = judge ]; then records=pairs tokens=128; fi
    OMP_NUM_THREADS=1 "$PYTHON" evaluate.py --model "$2" --mode "$3" --out "$out.json" --limit "$LIMIT" \
        --dataset "runs/physworld/$4/$records.jsonl" --max_new_tokens "$tokens" > "$out.log" 2>&1 ||
        { cat "$out.log" >&2; return 1; }
    echo "$1 on $4: $(grep '  overall' "$out.log") $3 accuracy"
}
export -f evaluate

evaluations() { # two at a time
    local models=("base physworld/tiny_vlm" "stage1 $OUT/stage1" "stage2 $OUT/stage2")
    # the base before it was given bad habits; only there where make_base.py has run
    if [ -d runs/base/taught ]; then models+=("taught runs/base/taught"); fi
    for model in "${models[@]}"; do
        printf '%s\n' "$model "{"judge test","judge ood","question test","question ood"}
    done | xargs -P 2 -I '{}' bash -c 'evaluate {}'
}

step clips clips
step stage1 env OMP_NUM_THREADS="$THREADS" "$PYTHON" train_stage1.py \
    --output_dir "$OUT/stage1" --seed "$SEED" --resume_from_checkpoint true
step stage2 env OMP_NUM_THREADS="$THREADS" "$PYTHON" train_stage2.py --model_name_or_path "$OUT/stage1" \
    --output_dir "$OUT/stage2" --seed "$SEED" --resume_from_checkpoint true
step evaluate evaluations
"$PYTHON" -m analysis.demo_report "$OUT"
cat "$OUT/report.md"
echo "$OUT/report.md is there, after $(((SECONDS - started + 30) / 60)) minutes"
