#!/bin/sh
# docker, by podman: with --gpus a container gets the machine's nvidia-smi, as NVIDIA's runtime gives it.
[ "$1" = run ] || [ "$1" = create ] || exec /usr/bin/podman "$@"
state=options
for word; do
    shift
    case $state:$word in
    options:--gpus) state=value ;;
    options:--gpus=* | value:*)
        state=options
        [ ! -e /usr/bin/nvidia-smi ] || set -- "$@" -v /usr/bin/nvidia-smi:/usr/bin/nvidia-smi:ro
        ;;
    *)
        # What comes after the image is the program's.
        case $word in spotbroker.test/* | docker.io/* | localhost/*) state=command ;; esac
        set -- "$@" "$word"
        ;;
    esac
done
exec /usr/bin/podman "$@"
