#!/bin/sh
# Gives somebody the rights of a role, and no others.
#
#   allow.sh CONFIG User:NAME BROKER:PORT admin.properties
#
# streamfl and Kafka's kafka-acls.sh have to be on the PATH. streamfl is let in by CONFIG and the environment, as for the role itself.
set -eu
config=$1 principal=$2 broker=$3 admin=$4

# Exit code 4 says that topics are missing or cannot be seen yet; rights are printed all the same.
lines=$(streamfl topics "$config" --principal "$principal" || [ $? -eq 4 ])
printf '%s\n' "$lines" | grep '^--allow-principal ' | while read -r line; do
    # The line is quoted for a shell.
    eval "kafka-acls.sh --bootstrap-server \"\$broker\" --command-config \"\$admin\" --add $line" < /dev/null
done
