# The reward depends on the length of the line behind its id.
while IFS= read -r line; do
    id=${line#*:}
    id=${id%%,*}
    rest=${line#*,}
    echo "{\"id\":$id,\"reward\":$((${#rest} % ${1:-5}))}"
done
