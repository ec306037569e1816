#!/bin/sh
# Rewards completions that were not cut off. Any language can be a reward program.
#
#     xtrain grpo --reward 'sh examples/rewards/not_truncated.sh' ...
#
# "id" is the first key of a line, and a shell can cut it out. Text needs a JSON parser, such as jq.
while IFS= read -r line; do
    id=${line#*:}
    id=${id%%,*}
    case $line in
    *'"truncated":false'*) echo "{\"id\":$id,\"reward\":1}" ;;
    *) echo "{\"id\":$id,\"reward\":0}" ;;
    esac
done
