# Two named rewards; those of the first completions of a group are missing.
while IFS= read -r line; do
    id=${line#*:}
    id=${id%%,*}
    rest=${line#*,}
    case $line in
    *'"completion_index":0'*) echo "{\"id\":$id,\"rewards\":{\"even\":null,\"length\":$((${#rest} % 7))}}" ;;
    *) echo "{\"id\":$id,\"rewards\":{\"even\":$((${#rest} % 2)),\"length\":$((${#rest} % 7))}}" ;;
    esac
done
