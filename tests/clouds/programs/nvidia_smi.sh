#!/bin/sh
# nvidia-smi of a machine with cards that all are alike.
name=@NAME@ count=@COUNT@ memory=@MEMORY@

field() { # FIELD CARD
    case $1 in
    name | gpu_name) echo "$name" ;;
    memory.total) echo "$memory$mib" ;;
    memory.free) echo "$memory$mib" ;;
    memory.used) echo "0$mib" ;;
    index) echo "$2" ;;
    count) echo "$count" ;;
    uuid | gpu_uuid) printf 'GPU-%08d-0000-0000-0000-000000000000\n' "$2" ;;
    driver_version) echo 550.90.07 ;;
    utilization.gpu) echo "0$percent" ;;
    *) echo "Field \"$1\" is not a valid field to query." && return 2 ;;
    esac
}

fields='' mib=' MiB' percent=' %' header=yes list=
for word; do
    case $word in
    --query-gpu=*) fields=${word#*=} ;;
    --format=*)
        case ,${word#*=}, in *,noheader,*) header= ;; esac
        case ,${word#*=}, in *,nounits,*) mib='' percent='' ;; esac
        ;;
    -L | --list-gpus) list=yes ;;
    *) echo "nvidia-smi: $word is not played here" >&2 && exit 2 ;;
    esac
done
[ -n "$fields" ] && [ -n "$header" ] && echo "$fields"
card=0
while [ "$card" -lt "$count" ]; do
    line=''
    IFS=', '
    for one in $fields; do
        found=$(field "$one" "$card") || { echo "$found" && exit 2; }
        line="$line${line:+, }$found"
    done
    unset IFS
    if [ -n "$fields" ]; then
        echo "$line"
    else
        echo "GPU $card: $name (UUID: $(field uuid "$card"))"
    fi
    card=$((card + 1))
done
