# The same shapes, vocabularies and lengths in PyTorch, transformers and cuBLASLt. torch.compile takes longest: last.
flags=()
[ -z "$dry" ] || flags=(--quick --device cpu)
if ! timeout 60 python3 -c 'import torch' >> "$log" 2>&1; then
    failed=1
    write_row "peers" "NOT RUN: python3 has no torch" 0
    return
fi
compare() { step "$1" "$2" python3 gpu.py "${@:3}" "${flags[@]}" && note "$(cat "$last")"; }
compare 120 "decode, batch 1" decode --sizes 125m,0.6b --batches 1
compare 60 "decode, batch 32" decode --sizes 125m --batches 32
compare 90 "decode, batch 256" decode --sizes 125m --batches 256
compare 60 "decode with top-p, batch 32" decode --sizes 125m --batches 32 --top-p 0.9
compare 40 "matrix products" linear
compare 60 "train, eager" train --sizes 125m --eager
compare 150 "train, torch.compile" train --sizes 125m
