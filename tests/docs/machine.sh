#!/usr/bin/env bash
# machine.sh - runs a script on a machine of its own: a network with nothing but
# loopback, its own /etc, /var, /run, /tmp and /usr/local, and a PostgreSQL as
# Debian sets it up. Nothing of it is left afterwards.
#
#   unshare --mount --net --pid --fork --kill-child --mount-proc machine.sh SCRIPT
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
script=$(realpath "$1")
copies=/mnt

mount --make-rprivate /
mount -t tmpfs machine "$copies"
mkdir "$copies/bin" "$copies/root"
mount --bind "$root" "$copies/root"
cp "$script" "$copies/script"
for folder in /etc /var /usr/local /root; do
    mkdir -p "$copies/up$folder" "$copies/work$folder"
    mount -t overlay overlay -o \
        "lowerdir=$folder,upperdir=$copies/up$folder,workdir=$copies/work$folder" "$folder"
done
mount -t tmpfs -o mode=755 machine /run
mount -t tmpfs -o mode=1777 machine /tmp
case $root in
/tmp/* | /run/* | /root/*)
    mkdir -p "$root"
    mount --bind "$copies/root" "$root"
    ;;
esac
ip link set lo up

# As a new one is: no user of ours, no sites, nothing installed by hand.
if id latchkey >/dev/null 2>&1; then
    userdel latchkey
fi
if getent group latchkey >/dev/null; then # it has had other members
    groupdel latchkey
fi
rm -f /etc/nginx/conf.d/* /etc/nginx/sites-enabled/*
rm -rf /etc/latchkey /var/lib/latchkey
find /usr/local -depth -name '*latchkey*' -exec rm -rf {} +

# What a reader has before he begins: users, certificates, keys, files of his
# own that a block names.
mkdir -p /etc/latchkey /etc/tmpfiles.d
groupadd -f support
for name in alice deploy; do
    id $name >/dev/null 2>&1 || useradd $name
done
echo secret | tee /etc/nginx/latchkey.password /etc/latchkey/provider.token \
    >/etc/latchkey/cards.key
chmod 600 /etc/nginx/latchkey.password
echo "acme:$(openssl passwd -apr1 secret)" >/etc/nginx/users
openssl rand -hex 32 >/etc/nginx/latchkey.secret
chmod 600 /etc/nginx/latchkey.secret
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=api.example \
    -keyout /etc/nginx/key.pem -out /etc/nginx/cert.pem 2>/dev/null
cp /etc/nginx/cert.pem /etc/nginx/ca.pem

# systemd is not there: what a unit says is started by hand, as its user.
cat >"$copies/bin/systemctl" <<'END'
#!/usr/bin/env bash
set -eu
action=$1
unit=/usr/local/lib/systemd/system/${*: -1}.service
value() { sed -n "s/^$1=//p" "$unit" | tail -1; }
pid=/run/${*: -1}.pid
stop() {
    kill "$(cat "$pid")"
    while kill -0 "$(cat "$pid")" 2>/dev/null; do sleep 0.1; done
}
start() {
    local user
    user=$(value User)
    install -d -o "$user" -g "$user" "/run/$(value RuntimeDirectory)"
    install -d -m 700 -o "$user" -g "$user" "/var/lib/$(value StateDirectory)"
    setsid runuser -u "$user" -- $(value ExecStart) &
    echo $! >"$pid"
}
case $action in
daemon-reload) ;;
enable | start) start ;;
stop) stop ;;
restart)
    stop
    start
    ;;
reload)
    MAINPID=$(pgrep -P "$(cat "$pid")" || cat "$pid")
    export MAINPID
    sed -n 's/^ExecReload=//p' "$unit" | while read -r line; do eval "$line"; done
    ;;
*) echo "systemctl: $action is not known here" >&2; exit 1 ;;
esac
END
chmod 755 "$copies/bin/systemctl"
export PATH=$copies/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root

cluster=/var/lib/postgresql/documents
install -d -o postgres -g postgres /run/postgresql "$(dirname "$cluster")"
cd /
runuser -u postgres -- "$POSTGRES_BIN/initdb" --no-sync --auth-local=peer \
    --auth-host=scram-sha-256 --encoding=UTF8 -D "$cluster" >/dev/null
runuser -u postgres -- "$POSTGRES_BIN/pg_ctl" -s -w -t 120 -D "$cluster" -l "$cluster/log" \
    -o '-k /run/postgresql' start

cd "$root"
exec bash --noprofile --norc "$copies/script"
