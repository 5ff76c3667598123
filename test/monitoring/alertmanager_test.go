package monitoring

import (
	"bytes"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/chore"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

// A real Alertmanager: tracecenter counts the alerts that fire there, but not those that somebody has silenced.
func TestAlertmanager(t *testing.T) {
	need.Flag(t, *bin != "", "-prometheus: the programs")
	dir, on := t.TempDir(), loopback.Free(t)
	config := filepath.Join(dir, "alertmanager.yml")
	if err := os.WriteFile(config, []byte("route: {receiver: none}\nreceivers: [{name: none}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Debian's package reads its templates below /usr/share: here it is unpacked, not installed.
	running(t, "unshare", "--mount", "sh", "-c", `mount --bind "$0" /usr/share && exec "$@"`, filepath.Join(*bin, "../share"),
		filepath.Join(*bin, "prometheus-alertmanager"), "--config.file="+config, "--storage.path="+dir, "--web.listen-address="+on,
		"--cluster.listen-address=")
	post := func(path, body string) bool {
		answer, err := http.Post("http://"+on+path, "application/json", bytes.NewBufferString(body))
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}
	await := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never %s", what)
			}
		}
	}
	await("posted", func() bool {
		return post("/api/v2/alerts", `[{"labels":{"alertname":"EtcdSlow","severity":"critical"}},{"labels":{"alertname":"Quiet","severity":"critical"}},
 {"labels":{"alertname":"Disk","severity":"warning"}},{"labels":{"alertname":"ClusterUnhealthy","severity":"critical"}}]`)
	})
	begins, ends := time.Now().UTC().Format(time.RFC3339), time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	await("silenced", func() bool {
		return post("/api/v2/silences", `{"matchers":[{"name":"alertname","value":"Quiet","isRegex":false}],"startsAt":"`+begins+
			`","endsAt":"`+ends+`","createdBy":"test","comment":"test"}`)
	})
	want := []health.Alert{{Name: "Disk", Level: health.Warning}, {Name: "EtcdSlow", Level: health.Fatal}}
	reader := &probe.Alerts{Address: "http://" + on, Levels: probe.Levels{"critical": health.Fatal, "warning": health.Warning}}
	go chore.Repeat(t.Context(), slog.Default(), time.Second, chore.Chore{Do: reader.Read})
	await("read", func() bool {
		got := reader.Firing()
		slices.SortFunc(got, func(a, b health.Alert) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
		return slices.Equal(got, want)
	})
}
