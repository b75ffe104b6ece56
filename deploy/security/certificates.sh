#!/bin/sh
# Makes an authority, a broker's certificate and one for each member, as PEM files with unencrypted keys.
#
#   certificates.sh FOLDER DNS:broker.example.com MEMBER...
#
# The second word is the name under which clients reach the broker, as in a certificate: DNS:host or IP:address. A company's own
# authority does the same; then only the names of the files matter.
set -eu
umask 077
folder=$1 name=$2
shift 2
mkdir -p "$folder"
cd "$folder"
days=365

[ -f ca.pem ] || openssl req -x509 -newkey rsa:3072 -noenc -days 3650 -subj "/CN=streamfl authority" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout ca.key -out ca.pem 2>/dev/null

# NAME EXTENSION: a key and a certificate of this name.
issue() {
    openssl req -newkey rsa:2048 -noenc -subj "/CN=$1" -keyout "$1.key" -out "$1.csr" 2>/dev/null
    printf '%s\n' "$2" > "$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" -extfile "$1.ext" \
        -out "$1.pem" 2>/dev/null
    rm "$1.csr" "$1.ext"
}

# The broker is its own controller's client, too.
issue broker "subjectAltName=$name"
# Java wants key and certificate in one file.
cat broker.key broker.pem > broker-both.pem
for member in "$@"; do
    issue "$member" "extendedKeyUsage=clientAuth"
    cat "$member.key" "$member.pem" > "$member-both.pem"
done
