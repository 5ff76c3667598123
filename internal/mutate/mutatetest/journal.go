package mutatetest

import (
	"testing"

	"github.com/nodeagent/nodeagent/test/need"
)

// journal makes the journal of a machine in a folder with its own journald.
const journal = `set -e
mount -t tmpfs none /run; mount -t tmpfs none /var/log; mount -t tmpfs none /etc/systemd
printf '[Journal]\nStorage=persistent\nAudit=no\nReadKMsg=no\nRateLimitBurst=0\n' > /etc/systemd/journald.conf
mkdir -p /run/systemd/journal /var/log/journal/$(cat /etc/machine-id)
/usr/lib/systemd/systemd-journald & server=$!
until [ -S /run/systemd/journal/io.systemd.journal ]; do kill -0 $server; sleep 0.05; done
journalctl --flush
for i in 1 2 3; do head -c 300000 /dev/urandom | base64 | systemd-cat; journalctl --sync; journalctl --rotate; done
kill $server
cp -r /var/log/journal/$(cat /etc/machine-id) "$1"; sync -f "$1"`

// Journal makes the journal of this machine in dir, which it creates: three archived files, and an open one.
func Journal(t testing.TB, dir string) {
	t.Helper()
	need.Program(t, "/usr/bin/journalctl", "/usr/lib/systemd/systemd-journald", "unshare", "base64")
	Script(t, journal, dir)
}
