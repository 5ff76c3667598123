package jetstream_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/cluster"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/jetstream"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal/journaltest"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// One server, which nothing but the journal under test uses.
func TestConformance(t *testing.T) {
	journaltest.Run(t, func(t *testing.T) journaltest.Opener {
		dir := t.TempDir()
		node, err := cluster.Start(cluster.Config{Name: "one", Dir: filepath.Join(dir, "nats"), Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(node.Close)
		term := uint64(0)
		return func(t *testing.T, o journaltest.Options) journaltest.Journal {
			t.Helper()
			s, err := jetstream.Open(t.Context(), jetstream.Options{Dir: filepath.Join(dir, "journal"), Conn: node.Conn,
				Replicas: 1, Log: quiet(), Now: o.Now, Appended: o.Appended, BallastBytes: 1 << 16},
				func(err error) { t.Log(err) })
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			if s.Bounds().Oldest == 0 {
				t.Error("no bounds")
			}
			term++
			if err := s.Take(t.Context(), term); err != nil {
				t.Fatal(err)
			}
			return s
		}
	})
}
