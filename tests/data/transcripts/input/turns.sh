# Appends text to each completion that can be continued.
while IFS= read -r line; do
    id=${line#*:}
    id=${id%%,*}
    rest=${line#*,}
    case $line in
    *'"can_append":true'*) echo "{\"id\":$id,\"append\":\"ab\"}" ;;
    *) echo "{\"id\":$id,\"reward\":$((${#rest} % 5))}" ;;
    esac
done
