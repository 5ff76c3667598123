package cluster

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// The limit of the server's files counts those that are there: after a restart with a volume half full, what is free is
// less than they take, and the server would accept nothing. The directory may be a link.
func TestLimitCountsWhatIsThere(t *testing.T) {
	const there = 1 << 40 // more than is free
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	err := os.WriteFile(name, nil, 0o600)
	if err == nil {
		err = os.Truncate(name, there)
	}
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	n, err := Start(Config{Name: "one", Dir: link, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if limit := n.server.JetStreamConfig().MaxStore; limit < there/4*3 {
		t.Errorf("%d bytes, though %d are in use", limit, there)
	}
}
