#!/bin/sh
# A long calculation in plain shell: the sum of the squares up to LAST, kept in a file after every step.
# What makes it survive: the file is written beside and renamed, it is read at the start, and TERM ends the loop between
# two steps with 143.
set -eu
last=${LAST:-60}
folder=${BROKER_CHECKPOINT_DIR:-checkpoints}
mkdir -p "$folder" outputs

step=0 sum=0
if [ -s "$folder/state" ]; then
    read -r step sum <"$folder/state"
    echo "resumed at step $step"
fi

stop=
trap 'stop=yes' TERM
while [ "$step" -lt "$last" ]; do
    [ -z "$stop" ] || exit 143
    sleep "${PAUSE:-0.1}" & # in the background, so that TERM is heard at once
    wait $! || true
    step=$((step + 1)) sum=$((sum + step * step))
    echo "$step $sum" >"$folder/.state.part"
    mv "$folder/.state.part" "$folder/state"
    echo "step $step/$last sum $sum"
done
echo "$sum" >outputs/sum
