package tailfile_test

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/tailfile"
)

func TestTailAndHead(t *testing.T) {
	h := hosttest.Host(t)
	hosttest.WriteHostFile(t, h, "log", "0123456789")
	for most, want := range map[int64]string{3: "789", 10: "0123456789", 99: "0123456789"} {
		data, size, err := tailfile.Tail(h.Files, "/log", most)
		if err != nil || string(data) != want || size != 10 {
			t.Errorf("last %d: %q of %d, %v", most, data, size, err)
		}
	}
	if data, err := tailfile.Head(h.Files, "/log", 3); err != nil || string(data) != "012" {
		t.Errorf("first 3: %q, %v", data, err)
	}
	if _, _, err := tailfile.Tail(h.Files, "/none", 1); err == nil {
		t.Error("want an error")
	}
}
